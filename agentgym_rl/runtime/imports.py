"""The import of objects that a user names as `module:attr`, and of optional packages; and the
parsing of Python sources in threads."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentgym_rl.core import (
    ConfigError,
    cause_of,
    explain,
    headline,
    install_command,
    is_users,
    near_match,
    only_here,
)

_TRIES = 10
_PARSING = threading.RLock()
"""Held while a source is parsed, which may collect garbage whose finalizers parse as well."""
_SECRET_NAME = re.compile(r"_(KEY|TOKEN|SECRET|PASSWORD)$")
_SHORTEST_SECRET = 8


def import_object(path: str) -> Any:
    """Return the object named `module:attr`; raise ConfigError when it cannot be imported."""
    module, _, attribute = path.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for name in attribute.split("."):
            target = getattr(target, name)
    except (Exception, SystemExit) as error:  # foreign code runs: it can raise anything
        known = vars(sys.modules.get(module, error))
        own = [name for name, it in known.items() if getattr(it, "__module__", "") == module]
        near = near_match(attribute, known) or f"; it has {', '.join(own)}" * bool(own)
        raise ConfigError(
            only_here(path, "this process")
            or f"cannot import {path!r} (module:attr): {explain(error)}{whose(module) or near}"
        ) from error
    return target


def whose(module: str) -> str:
    """Return what a module is, if it is missing, or not the user's own; "" if it is."""
    name = module.partition(".")[0]
    own, loaded = Path(f"{name}.py"), sys.modules.get(name)
    if module == own.name:
        return f"; write the module without .py: {name}:NAME"
    if loaded is None and own.exists():
        return ""
    if loaded is None:
        return near_match(name, (file.stem for file in Path().glob("*.py")))
    file = getattr(loaded, "__file__", None)
    if file and is_users(os.path.abspath(file)):
        return ""
    text = f"; {name!r} is a module of Python or of a package ({file or 'built in'})"
    return f"{text}, not your {own}: rename that, as in my_{own}" if own.exists() else text


def hidden_modules(error: BaseException) -> str:
    """Return a hint if an error of an import names a module of Python that a file in the current
    folder hides."""
    cause = cause_of(error)
    names = re.findall(r"'(\w+)'", str(cause) * isinstance(cause, ImportError | AttributeError))
    hidden = [it for it in names if it in sys.stdlib_module_names and Path(f"{it}.py").exists()]
    said = f"in this folder: it hides a module of Python ({headline(cause)})"
    return f"rename {hidden[0]}.py {said}" if hidden else ""


def import_function(
    key: str, path: str, *, gets: str, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return the function (or class) `module:function` that is the value of the configuration's
    `key`. It has to accept the positional arguments `gets`, such as "a, b", and `options` by
    keyword.

    Raises:
        ConfigError: it cannot be imported, cannot be called, or does not take these arguments.
    """
    function = import_object(path)
    if not callable(function):
        raise ConfigError(
            f"{key}={path!r} is a {type(function).__name__}; expected a function of "
            f"({gets}, **options)"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C code need not have one
        return function
    try:
        signature.bind(*gets.split(", "), **(options or {}))
    except TypeError as error:
        raise ConfigError(
            f"{key}={path!r} takes {signature}, and {error}; expected a function of ({gets}"
            f"{''.join(f', {name}=…' for name in options or ())})"
        ) from error
    return function


def check_litellm(needed_by: str) -> None:
    """Refuse a feature that needs LiteLLM if it is not installed.

    Raises:
        ConfigError: it is not installed.
    """
    if importlib.util.find_spec("litellm") is None:
        raise ConfigError(
            f"{needed_by} needs LiteLLM: {install_command('litellm')} (it holds openai at 2.x, "
            "which this package works with too)"
        )


def load_litellm(needed_by: str) -> Any:
    """Return the LiteLLM module, configured to print no messages and make no network requests by
    itself; the first call takes seconds.

    The prices are those of the installed package: LiteLLM fetches newer ones only if the user has
    set LITELLM_LOCAL_MODEL_COST_MAP=False.

    Raises:
        ConfigError: LiteLLM is not installed.
    """
    check_litellm(needed_by)
    for name in ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"):
        os.environ.setdefault(name, "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


def environment_secrets(*others: str) -> list[str]:
    """Return the texts that no error message may contain: `others`, and the values of environment
    variables whose names indicate secrets. LiteLLM reads the API keys of providers from there."""
    found = [*others, *(v for name, v in os.environ.items() if _SECRET_NAME.search(name))]
    return [value for value in found if len(value) >= _SHORTEST_SECRET]


def check_findable(path: str, key: str) -> None:
    """Refuse a `module:attr` whose package is not installed, without importing anything.

    Raises:
        ConfigError: it is not; the message has `key`, and where modules are searched.
    """
    package = path.partition(":")[0].partition(".")[0]
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{key}={path!r}: no module {package!r} in the current folder, in PYTHONPATH or among "
            "the installed packages"
        )


def parse_python(source: str, mode: str = "exec") -> Any:
    """Return `ast.parse(source, mode=mode)`, in any thread.

    CPython counts the depth of all threads' syntax trees in one number. A correct parse raises
    SystemError if another thread parsed meanwhile (3.11: one in twelve, if each collects garbage
    all the time). So callers parse one after the other, and repeat what other code has disturbed.
    """
    with _PARSING:
        for _ in range(_TRIES):
            try:
                return ast.parse(source, mode=mode)
            except SystemError:
                continue
        return ast.parse(source, mode=mode)
