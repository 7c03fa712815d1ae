"""What is tried only when it is asked for, in the environment of the tests."""

import os

EXHAUSTIVE = os.environ.get("ARL_EXHAUSTIVE") == "1"
"""Whether tests try every case; each that does not says so in its docstring."""
REQUIRED = os.environ.get("ARL_REQUIRE", "").split(",")
"""What may not skip, as in `ARL_REQUIRE=local,docker`."""
WITH_DOCKER = "docker" in REQUIRED
"""Whether tests of sandboxes are repeated in containers, as `make test-docker` does."""
