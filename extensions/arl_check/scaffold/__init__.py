"""The command `arl new`: a new package that can be installed, or a new task in Harbor's format;
both pass `arl check` and can train.

The folders here are the templates; `$name` and `$Class` are replaced, in file names too.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from string import Template

from agentgym_rl.core import ConfigError
from agentgym_rl.gym import registry

_TEMPLATES = Path(__file__).parent
_SUFFIX = ".tmpl"


def new_env(name: str, folder: Path) -> list[Path]:
    """Write the package of an environment called `name` into `folder`; return its files, in order.

    Raises:
        ConfigError: the name cannot be used for an environment, or the folder is not empty.
    """
    _check_name(name, "an environment and its Python module")
    words = {"name": name, "Class": "".join(word.capitalize() for word in name.split("_"))}
    if taken := _taken(name, words["Class"]):
        raise ConfigError(f"{name!r} cannot name a new environment: {taken}; try my_{name}")
    return _write("env", words, folder)


def new_task(name: str, folder: Path) -> list[Path]:
    """Write a task in Harbor's format into `folder`; return its files, in order.

    Raises:
        ConfigError: the name cannot be used for a task, or the folder is not empty.
    """
    _check_name(name, "a task")
    return _write("harbor", {"name": name}, folder)


def _check_name(name: str, of: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} cannot name {of}: lower-case letters, digits and _, a letter first, as in "
            "my_env"
        )


def _write(kind: str, words: dict[str, str], folder: Path) -> list[Path]:
    """Write the files of the templates of a kind."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already, and not empty: choose another with --into")
    top = _TEMPLATES / kind
    sources = sorted(top.rglob(f"*{_SUFFIX}"))
    files = [folder / _filled(str(source.relative_to(top)), words) for source in sources]
    for source, file in zip(sources, files, strict=True):
        text = _filled(source.read_text(encoding="utf-8"), words)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            file.chmod(0o755)
    return files


def _taken(name: str, class_name: str) -> str:
    """Describe the conflict with an existing name; "" if there is none."""
    if keyword.iskeyword(class_name):
        return f"its class would be {class_name}, which is a word of Python's own"
    if name in sys.stdlib_module_names:
        return f"Python's own module {name} would be hidden by it"
    module = importlib.util.find_spec(name)
    if module is not None and module.origin is not None:  # a mere folder has no origin
        return f"there is a module of that name, {module.origin}"
    ids = [id for id in registry.names("env") if re.fullmatch(rf"{name}(-v\d+)?", id)]
    return f"{', '.join(sorted(ids))} is there (`arl list`)" if ids else ""


def _filled(text: str, words: dict[str, str]) -> str:
    return Template(text.removesuffix(_SUFFIX)).substitute(words)
