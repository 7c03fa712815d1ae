"""The shop: its tables, and the tools that work on them and enforce its rules."""

from .database import TABLES, Database, Rows
from .desk import READS, WRITES, Desk
from .rules import Refused

__all__ = ["READS", "TABLES", "WRITES", "Database", "Desk", "Refused", "Rows"]
