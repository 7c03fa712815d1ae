"""The docker SDK and its errors; without the SDK the backend can be listed, but not made."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING or importlib.util.find_spec("docker"):
    import docker as docker
    import docker.errors as errors
    from requests.exceptions import RequestException as RequestException

    CONNECT_ERRORS = (errors.DockerException, RequestException, OSError)
else:
    CONNECT_ERRORS = (OSError,)
