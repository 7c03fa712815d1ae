"""The command `arl inspect`: a page that shows runs, live and afterwards (docs/inspect.md).

`folders` finds runs and reads their small files; `index` keeps the summaries of episodes in memory,
and `query` selects from them; `detail` reads a complete episode or group; `timeline` makes the
timeline. `app` answers over HTTP and sends news of runs, `export` writes one file.
The inspector never writes to a run; all functions that read from disk run in a thread.
"""

from .export import write_page
from .serve import inspect_live

__all__ = ["inspect_live", "write_page"]
