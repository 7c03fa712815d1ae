"""Training on episodes that other programs play: they open sessions, ask, and post rewards.

desk.py    sessions in groups: seats, rewards, deadlines, and what becomes of a group
app.py     the same over HTTP, for whoever has the admin key
"""
