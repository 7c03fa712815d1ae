"""The keys of this extension, a file for each algorithm. Every process of a run imports them, also
those without torch."""
