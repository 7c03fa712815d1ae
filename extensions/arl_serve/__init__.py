"""The extension for episodes of other programs, which open sessions, send requests and post
rewards: `arl serve`.

session_groups.py    sessions in groups: rewards, deadlines, and the end of a group
app.py               their HTTP routes, for programs with the admin key
"""
