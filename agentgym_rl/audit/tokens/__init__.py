"""`arl audit`: was every trained token sampled by the very version recorded with it?

run.py         the command: reads the run, recomputes version by version, returns the report
tokens.py      every trained token of the run, as flat arrays
verdict.py     which tokens count, and what is allowed
diagnosis.py   why tokens fail: another version? log-probs before temperature? old KV?

trainer/audit.py computes the log-probs, report/audit.py shows the report.
"""
