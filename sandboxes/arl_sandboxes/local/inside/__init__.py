"""The code that runs inside: standard library only, and only in the sandbox's own interpreter."""
