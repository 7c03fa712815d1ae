"""`arl inspect`: a page that shows runs, while they train and afterwards (docs/inspect.md).

`folders` finds runs and reads what is small; `index` keeps what is asked of their episodes again
and again, `query` is such a question; `detail` reads a whole episode or group; `timeline` says when
what happened. `app` answers over HTTP, `changes` tells of what is new, `export` writes one file.
It only reads; whatever reads a disk runs in a thread.
"""

from .serve import inspect_live, write_page

__all__ = ["inspect_live", "write_page"]
