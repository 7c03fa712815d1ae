"""The extension with what a user of an installed package has no clone for: `arl config`, which
writes the configuration with its comments, `arl docs` and `arl examples`.

configuration.py  a configuration as a TOML file with comments
pages.py          the pages of docs/: their sections, links and words
shipped.py        the folders docs, examples and requirements, in a wheel or in a clone
"""
