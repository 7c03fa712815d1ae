"""The extension that reads the rows of files and of Hugging Face data sets, and keeps the index of
their tasks.

formats.py       the kinds of files (the group `agentgym_rl.data_formats`), and the readers
json_file.py     rows of JSON: one object a line, or one list
parquet_file.py  rows of parquet files, of which the groups decoded last are kept
csv_file.py      rows of CSV and TSV files; broken.py: their broken lines
saved.py         rows of folders that `save_to_disk` wrote
forms.py         the forms in which rows are written (the group `agentgym_rl.row_forms`)
hub.py           rows of data sets on the hub
index.py         one pass over all rows, and the index of their tasks
seen.py          duplicates, and the split of a question; words.py: other words for the same one
stamp.py         changes of a file after the pass
"""
