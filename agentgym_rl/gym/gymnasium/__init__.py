"""Our environments for code written for Gymnasium, without async.

env          a `gymnasium.Env` that plays one of ours
spaces       replies and messages as Gymnasium spaces
loop_thread  the event loop it plays on
"""
