"""The shape of a mesh: `c2t2e2`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_FORM = re.compile(r"(?:([cte])([1-9][0-9]*))+")
_ONE = re.compile(r"([cte])([1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of ranks that divide the tokens of a row, the matrices, and the experts."""

    context: int = 1
    tensor: int = 1
    experts: int = 1

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the shape that a text describes; "": nothing is divided.

        Raises:
            ValueError: it is no such text.
        """
        found = {letter: int(number) for letter, number in _ONE.findall(text)}
        if text and (not _FORM.fullmatch(text) or len(found) < len(_ONE.findall(text))):
            raise ValueError(
                f"expected letters with numbers, each letter once, as in c2t2e2; got {text!r}"
            )
        return cls(found.get("c", 1), found.get("t", 1), found.get("e", 1))

    @property
    def unit(self) -> int:
        """Return the number of ranks that compute the same rows."""
        return self.context * self.tensor

    def problem(self, num_ranks: int) -> str:
        """Return why so many ranks of a copy of the model cannot have this shape; "" if they
        can."""
        for count, what in (
            (self.unit, f"c{self.context} x t{self.tensor} = {self.unit}"),
            (self.experts, f"e{self.experts}"),
        ):
            if num_ranks % count:
                near = max(count, round(num_ranks / count) * count)
                return f"{what} does not divide {num_ranks} ranks; the nearest number is {near}"
        return ""
