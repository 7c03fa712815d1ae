"""The loops that `arl bench env` times, a file for each package, and the disturbances of ours."""
