"""The interface of a package: names that load on first use (PEP 562), so that its import is light.

The `__init__.py` of a package lists them once, under `if TYPE_CHECKING:`, where type checkers and
editors see them, in lines `from .module import name as name`. The table of what loads is read from
these lines, as lazy_loader reads it from a stub (https://scientific-python.org/specs/spec-0001/).
"""

import sys
from collections.abc import Callable

_LISTED = "    from "


def lazy_names(
    package: str, *, of_extensions: tuple[str, ...] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the functions `__getattr__` and `__dir__`, and `__all__`, of a package.

    A name is looked up in its module each time, as by an import from there: what a test puts into
    its place counts. Names `of_extensions` are in the entry-point group `agentgym_rl.names`.
    """
    with open(f"{sys.modules[package].__file__}", encoding="utf-8") as file:
        lines = [line.split() for line in file if line.startswith(_LISTED) and " as " in line]
    homes = {name: package + home if home[0] == "." else home for _, home, *_, name in lines}
    names = sorted({*homes, *of_extensions})

    def load(name: str) -> object:
        if home := homes.get(name):
            return getattr(__import__(home, fromlist=[name]), name)
        why = f"module {package!r} has no attribute {name!r}"
        if name in of_extensions:
            return _of_extension(name, why)
        raise AttributeError(why)

    return load, lambda: names, names


def _of_extension(name: str, why: str) -> object:
    from .errors import ConfigError
    from .extensions import load_extension

    try:
        return load_extension("names", name)
    except ConfigError as error:
        raise AttributeError(f"{why}: {error}") from error
