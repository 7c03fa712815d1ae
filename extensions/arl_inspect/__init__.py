"""The extension of the inspector, a page that shows runs, live and afterwards (docs/inspect.md):
`arl inspect`, `arl timeline` and `arl runs`; and of the picture that a run leaves, `reward.png`.

`run_list` finds, compares and deletes runs, and `run_tables` shows them as text.
`folders` finds runs and reads their small files; `index` keeps the summaries of episodes in memory,
and `query` selects from them; `detail` reads a complete episode or group; `timeline` makes the
timeline, `picture` the picture. `app` serves HTTP requests and sends changes of runs, `export`
writes one file. The page never writes to a run; all functions that read from disk run in a
thread.
"""
