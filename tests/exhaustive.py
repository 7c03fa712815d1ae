"""What is tried only when it is asked for, in the environment of the tests."""

import os

CASE = os.environ.get("ARL_CASE", "")
"""Of a test with many cases, only those run that have this text in their name; a test without any
such case is skipped. `ARL_CASE=TEXT pytest PATH` is for a case that failed."""
EXHAUSTIVE = os.environ.get("ARL_EXHAUSTIVE") == "1"
"""Whether tests try every case; each that does not says so in its docstring."""
REQUIRED = os.environ.get("ARL_REQUIRE", "").split(",")
"""What may not skip, as in `ARL_REQUIRE=local,docker`."""
WITH_DOCKER = "docker" in REQUIRED
"""Whether tests of sandboxes are repeated in containers, as `make test-docker` does."""
