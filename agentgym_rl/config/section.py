"""What every section of the configuration is."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

SECRET = "secret"
"""Type of the errors whose input is not shown: it may be a key."""


LARGEST = 2**53
"""The largest whole number that JSON, SQLite and a float64 all keep as it is."""
LONGEST_S = 1e8
"""The longest time in seconds, three years: the clocks of event loops overflow later."""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    absent: ClassVar[Mapping[str, str]] = {}
    """Why there is no key of a name that one may look for."""

    @field_validator("*", mode="after")
    @classmethod
    def _can_be_kept(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that a run's files or clocks cannot hold."""
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"too large; allowed: at most 2^53 = {LARGEST:,}")
        if str(info.field_name).endswith("_s") and isinstance(value, float) and value > LONGEST_S:
            raise ValueError(f"too long; allowed: at most {LONGEST_S:,.0f} seconds")
        return value
