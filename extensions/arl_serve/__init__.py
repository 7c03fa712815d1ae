"""The extension for episodes of other programs, which open sessions, send requests and post
rewards: `arl serve`.

desk.py    sessions in groups: seats, rewards, deadlines, and the end of a group
app.py     the same over HTTP, for programs with the admin key
"""
