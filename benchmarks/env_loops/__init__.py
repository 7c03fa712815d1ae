"""The loops that `arl bench env` times, a file a package, and what it does to ours on purpose."""
