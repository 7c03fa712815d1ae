"""What every section of the configuration is."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

SECRET = "secret"
"""Type of the errors whose input is not shown: it may be a key."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    absent: ClassVar[Mapping[str, str]] = {}
    """Why there is no key of a name that one may look for."""
