"""The commands of arl_inspect."""

from argparse import ArgumentParser
from pathlib import Path


def runs_argument(parser: ArgumentParser) -> None:
    """Add the argument RUN, which can be given several times or left out."""
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="runs, or folders of runs (default: runs)"
    )
