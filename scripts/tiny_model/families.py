"""The families by name."""

from __future__ import annotations

from code_habits import CODE
from family import Family
from frozenlake_habits import FROZENLAKE
from math_habits import MATH
from tools_habits import TOOLS

FAMILIES: dict[str, Family] = {family.name: family for family in (MATH, TOOLS, FROZENLAKE, CODE)}
