"""The extension of the inspector, a page that shows runs, live and afterwards (docs/inspect.md):
`arl inspect`, `arl timeline` and `arl runs`; and of the picture that a run leaves, `reward.png`.

`run_list` shows runs as tables, compares some, and deletes one. `folders` finds runs and reads
their small files, `overview` sums one up for the list of runs, `notes` keeps the notes and tags
that a user writes; `index` keeps the summaries of episodes in memory, and `query` selects from
them; `detail` reads a complete episode or group; `timeline` makes the timeline, `picture` the
picture. `app` serves HTTP requests and sends changes of runs, `export` writes one file. The page
writes nothing to a run but its notes; all functions that read from disk run in a thread.
"""
