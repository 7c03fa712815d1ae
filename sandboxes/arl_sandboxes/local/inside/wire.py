"""The protocol between host and slot; both sides import this file.

Host to slot, over a SOCK_SEQPACKET: first a JSON object, then commands of the form `COMMAND`.
Slot to host: a byte of kind and a body, with handles beside it. Host to child, over a stream:
`HEADER`, a JSON object, the bytes it refers to; with it stdin, stdout and stderr.
"""

import struct

CONFIG_BYTES = 1 << 17
"""The largest size of the JSON object."""
COMMAND = struct.Struct("<cI")
COMMAND_BYTES = COMMAND.size
FRESH = b"F"  # end everything, make a work folder of that many MB, then a child
ANOTHER = b"A"  # make another child, in the present work folder
LASTING = b"L"  # that child is a session: the end of another program does not end it
KILL, INTERRUPT = b"K", b"I"  # of that child
LISTEN = b"N"  # at that port of 127.0.0.1, in an image's sandbox

AHEAD = b"H"  # started, without namespaces: another JSON object completes the first
READY = b"R"
FAILED = b"E"  # errno (int), text
CHILD = b"P"  # NUMBER; handles: the child's socket; after FRESH the work folder, an image's root
NUMBER = struct.Struct("<I")
LISTENER = b"W"  # NUMBER, the port; handle: the listening socket, or without one an error's text
DONE = b"D"
DONE_BODY = struct.Struct("<IIIdq")  # number, wait status, others killed, CPU s, max RSS kB

HEADER = struct.Struct("<II")  # bytes of the JSON object, bytes after it
GAVE_UP = b"X"  # the child could not begin; text follows

HELLO = b"H"  # the first message of a session's fork
