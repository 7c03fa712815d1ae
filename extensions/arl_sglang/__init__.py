"""The extension of SGLang as the engine: its start, its client and its weight routes.

build.py          the SGLang of an interpreter, checked; what its releases can do
command.py        the command line and environment of a server
server.py         the program that becomes the server, in the interpreter that has SGLang
checks.py         the check of a server that runs already
client.py         the engine contract over SGLang's own routes
weight_routes.py  a server as a receiver of policy versions
in_pauses.py      the transport of a version in a pause of each server
version.py        a version, checked as a whole, in the forms that SGLang loads
adapters.py       adapters beside the model: their names and folders

Only server.py runs inside SGLang, in an environment that has none of this package's dependencies,
and need not have this package: it is started by its path.
"""

BUILDS_ON = ("arl_gloo",)
"""The other extensions that this one imports: the group of the transport `gloo`."""
