"""`arl reverify`: would the environment of today pay what the recorded episodes were paid?

    episodes.db ─► replay: task, recorded actions ─► environment as it is now ─► what changed

The run itself is never written to.
"""
