"""The files of a work folder that shells, interpreters, test runners and git load by themselves.

An agent that adds or changes such a file changes how the tests run, not what they test. So the
verification keeps the image's version, or none. A task whose answer is such a file names it in
task.toml, as in `[metadata] arl_keep = ["pyproject.toml"]`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

_PYTHON = ("conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*._pth", "*.pyc")
_PYTHON_TOOLS = (
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", ".coveragerc", "*.egg-link", "pyvenv.cfg", ".pdbrc", "pip.conf"),
    *(".pydistutils.cfg", ".python-version", "entry_points.txt", "uv.toml"),
)
_SHELLS = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
    *(".inputrc", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".kshrc", ".envrc"),
)
_OTHERS = (
    *(".gitconfig", ".gitattributes", ".gitmodules", ".hgrc", ".npmrc", ".yarnrc*", ".mocharc*"),
    *("jest.config.*", "vitest.config.*", "babel.config.*", ".babelrc*", ".rspec", ".irbrc"),
    *("phpunit.xml*", ".gdbinit", ".curlrc", ".wgetrc", ".netrc", "ld.so.preload", "crontab"),
    *("phpunit.dist.xml", ".user.ini", ".lldbinit", ".rprofile", ".renviron", ".proverc"),
    *(".octaverc", ".erlang", ".ghci", ".pryrc", ".nycrc*", ".taprc", ".pnpmfile.*", "bunfig.toml"),
    *(".bazelrc", "directory.build.*", "nuget.config", "gnumakefile", "go.work", "rust-toolchain*"),
)
NAMES = (*_PYTHON, *_PYTHON_TOOLS, *_SHELLS, *_OTHERS)
"""The patterns of names, in any folder."""
FOLDERS = (
    *("__pycache__", ".pytest_cache", "site-packages", "dist-packages", ".hypothesis"),
    *(".git/hooks", ".git/config", ".git/config.worktree", ".git/info", ".git/commondir"),
    *(".git/modules", ".git/worktrees", ".hg/hgrc", ".config", ".local", ".cargo", ".husky"),
    *(".mvn", ".vscode", ".idea", "cron.d"),
)
"""The folders, in any folder, below which everything is a hook."""
_RUNNERS = (
    *("pytest", "_pytest", "pluggy", "iniconfig", "py", "nose", "nose2", "hypothesis", "pip"),
    *("packaging", "pygments", "exceptiongroup", "tomli", "attr", "attrs", "colorama", "coverage"),
    *("xdist", "execnet", "setuptools", "pkg_resources", "typing_extensions", "distutils", "imp"),
)
_MODULES = sys.stdlib_module_names.union(_RUNNERS)
_OFTEN_OWN = {"tests", "docs", "examples", "scripts", "benchmarks"}
"""The folders that some packages install beside themselves by mistake."""
_SUFFIXES = (".py", ".so", ".pyd")


class Hooks:
    """The judgement of paths of a work folder (relative to it).

    Args:
        image: The image's files in the work folder, which show where Python looks for modules.
        keep: The patterns of paths that are no hooks of this task.
        bins: The folders of PATH that lie in the work folder, relative to it.
        modules: The modules that are installed in the image, besides Python's own.
    """

    def __init__(
        self,
        image: Collection[str],
        *,
        keep: Sequence[str] = (),
        bins: Sequence[str] = (),
        modules: Collection[str] = (),
    ) -> None:
        self._modules = _MODULES.union(modules) - (_OFTEN_OWN - _MODULES)
        self._image = frozenset(image)
        self._folders = {
            str(folder) for path in self._image for folder in PurePosixPath(path).parents
        }
        self._keep = tuple(keep)
        self._bins = tuple(bins)

    def is_hook(self, path: str) -> bool:
        """Return whether the agent's version of a file is to be left out."""
        pure = PurePosixPath(path)
        if any(fnmatchcase(path, each) or fnmatchcase(pure.name, each) for each in self._keep):
            return False
        parts = pure.parts
        if ".git" in parts[-1:]:  # a file in its place names another repository
            return True
        if path == "HEAD" and path not in self._image:  # it makes the folder itself a repository
            return True
        around = "/" + "/".join(parts) + "/"
        return (
            any(fnmatchcase(pure.name.lower(), each) for each in NAMES)
            or any(f"/{folder}/" in around for folder in FOLDERS)
            or any(path.startswith(f"{folder}/") for folder in self._bins)
            or self._shadows(pure)
        )

    def _shadows(self, path: PurePosixPath) -> bool:
        """Return whether a new file would be imported in the place of a module that others use."""
        if str(path) in self._image or not path.name.endswith(_SUFFIXES):
            return False
        stem = path.name.split(".")[0]
        module, folder = (
            (path.parent.name, path.parent.parent)
            if stem == "__init__"
            else (
                stem,
                path.parent,
            )
        )
        return module in self._modules and self._on_path(str(folder))

    def _on_path(self, folder: str) -> bool:
        """Return whether tests of the image's author may have Python look for modules there: it is
        the work folder, or a folder of the image that is no package."""
        if folder == ".":
            return True
        return folder in self._folders and f"{folder}/__init__.py" not in self._image


def path_without(env: Mapping[str, str], work_dir: str) -> str:
    """Return PATH without the work folder itself, in which every file of the agent would be a
    program with a name of its choice."""
    parts = env.get("PATH", "").split(":")
    return ":".join(
        each for each in parts if each not in ("", ".") and each.rstrip("/") != work_dir
    )


def bins_of(env: Mapping[str, str], work_dir: str) -> list[str]:
    """Return the folders of PATH below the work folder, relative to it."""
    found: list[str] = []
    for each in env.get("PATH", "").split(":"):
        path = PurePosixPath(each or "/")
        if path.is_relative_to(work_dir) and str(path) != work_dir:
            found.append(str(path.relative_to(work_dir)))
    return found
