"""The views of a run: progress while it runs, and texts when it ends."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .evaluation import eval_line as eval_line
    from .evaluation import print_table as print_table
    from .evaluation import summary_lines as summary_lines
    from .progress import Progress as Progress
    from .progress import make_progress as make_progress
    from .progress import named as named
    from .progress import reporting_to as reporting_to
    from .run import training_text as training_text
else:
    from agentgym_rl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(__name__)
