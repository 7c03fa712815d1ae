"""The extension of SGLang as the engine: its start, its client and its weight routes.

command.py   the SGLang of an interpreter, checked; the command line and environment of a server
server.py    the program that becomes the server, in the interpreter that has SGLang
client.py    the engine contract over SGLang's own routes

Only server.py runs inside SGLang, in an environment that has none of this package's dependencies,
and need not have this package: it is started by its path. `engines/checks.py` checks a server that
runs already.
"""
