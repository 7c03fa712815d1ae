"""The extension of notebooks: a live view of a run in the cell that started it, and what results
show of themselves there: a table, a curve, a data frame of episodes.

view.py     the view of a run, and the line of an interrupted cell
results.py  the attributes of results: `_repr_html_`, `plot`, `episodes`
charts.py   curves as SVG and as matplotlib figures
frames.py   data frames of pandas
"""
