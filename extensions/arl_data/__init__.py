"""The extension that reads the rows of files and of Hugging Face data sets, and keeps the index of
their tasks.

formats.py       the kinds of files (the group `agentgym_rl.data_formats`), and the readers
json_file.py     rows of JSON: one object a line, or one list
parquet_file.py  rows of parquet files, of which the groups decoded last are kept
hub.py           rows of data sets on the hub
index.py         one pass over all rows, and the index of their tasks; words.py: forms of a question
stamp.py         changes of a file after the pass
"""
