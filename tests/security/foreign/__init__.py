"""Task folders of strangers, and cheats that are tried in each of them: none may be paid."""

from .cheats import CHEATS
from .tasks import TASKS, Foreign, written

__all__ = ["CHEATS", "TASKS", "Foreign", "written"]
