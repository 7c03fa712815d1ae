"""The examples by name: the entries of examples/, and the requirements of vLLM and SGLang."""

from __future__ import annotations

from pathlib import Path

from .shipped import shipped

_REQUIREMENTS = ("vllm-cpu.txt", "sglang-cpu.txt", "sglang-cpu")
_WIDTH = 60


def all_examples() -> dict[str, Path]:
    """Return the files and folders that can be copied, by name."""
    folder = shipped("examples")
    names = sorted(entry.name for entry in folder.iterdir() if _is_example(entry))
    found = {name: folder / name for name in names}
    return found | {name: shipped("requirements") / name for name in _REQUIREMENTS}


def first_line(path: Path) -> str:
    """Return the first sentence of an example, without the marks of comments; "" if it has none."""
    if path.is_dir():
        return f"a folder of {sum(file.is_file() for file in path.rglob('*'))} files"
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    text = first.strip("#/\"' \t")
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH].rpartition(' ')[0]} …"


def _is_example(entry: Path) -> bool:
    return not entry.name.startswith((".", "__"))
