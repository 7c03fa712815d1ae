"""The shop: its tables, and the tools that work on them and enforce its rules."""

from .database import TABLES, Database, Row, Rows
from .desk import WRITES, Desk, tools_of
from .rules import RuleRefusal

__all__ = ["TABLES", "WRITES", "Database", "Desk", "Row", "Rows", "RuleRefusal", "tools_of"]
