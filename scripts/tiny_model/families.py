"""The families by name."""

from __future__ import annotations

from agents_habits import AGENTS
from bugs_habits import BUGS
from code_habits import CODE
from family import Family
from frozenlake_habits import FROZENLAKE
from math_habits import MATH
from tictactoe_habits import TICTACTOE
from tools_habits import TOOLS

_ALL = (MATH, TOOLS, FROZENLAKE, CODE, AGENTS, BUGS, TICTACTOE)
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
