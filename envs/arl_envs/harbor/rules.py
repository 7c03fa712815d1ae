"""The rules of one task's verification: the files that it takes over from the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import PurePosixPath

from agentgym_rl.gym import Image

from .changes import Changes, changes_of
from .config import TaskConfig, resolved
from .hooks import Hooks, Search, Why, relative_to
from .links import LINK
from .mentions import Mentions
from .proof import Terms, runs_programs
from .task import HarborTask
from .tree import Tree

PUBLISHED = "/logs/artifacts"
"""The folder whose files all tests get, even if task.toml does not list it as an artifact."""


class Rules:
    """The rules for the agent's files, from the task, its image and its tests.

    Args:
        image: The task's image.
        tests_image: The image of the tests, if they have one of their own.
    """

    def __init__(
        self, task: HarborTask, config: TaskConfig, image: Image, tests_image: Image | None
    ) -> None:
        self._task, self._config, self._image = task, config, image
        self._tests_image = tests_image

    def hooks_among(self, files: Mapping[str, bytes], artifacts: Sequence[str]) -> dict[str, Why]:
        """Return the files below artifacts that programs load by themselves; an artifact that is a
        file is the result that the task requires."""
        judges = {
            one: Hooks(
                (),
                work_dir=one,
                keep=self._config.kept,
                search=Search.of(self.tests_env, one),
                mentions=Mentions.of(self._task.tests, one),
                all_doubtful=True,
            )
            for one in artifacts
        }
        found: dict[str, Why] = {}
        for path in files:
            below = [one for one in artifacts if is_below(path, one)]
            whys = [judges[one].why(str(PurePosixPath(path).relative_to(one))) for one in below]
            if path == PUBLISHED:
                found[path] = Why("it has the place of a folder")
            elif whys and (why := whys[0]) and all(whys):
                found[path] = why
        return found

    def changes(self, tree: Tree, base: Tree, terms: Terms) -> Changes:
        """Return the changes from the image's work folder to the agent's that are taken over."""
        folder = self._image.work_dir
        sources = [relative_to(folder, each.source) for each in self._config.artifacts]
        declared = [each for each in sources if each not in (None, ".")]
        mentions = Mentions.of(self._task.tests, folder)
        hooks = Hooks(
            base.names,
            links={path: one.target for path, one in base.entries.items() if one.kind == LINK},
            work_dir=folder,
            keep=[*self._config.kept, *(escape(each) for each in declared if each in tree.files)],
            needed=terms.needed,
            declared=declared,
            search=Search.of(self.tests_env, folder),
            mentions=mentions,
            around=base.around,
            all_doubtful=self._config.is_generated,
        )
        paths = [PurePosixPath(path) for path in self._task.tests]
        return changes_of(
            tree,
            base,
            hooks,
            work_dir=folder,
            test_names={path.name for path in paths},
            test_folders={part for path in paths for part in path.parent.parts},
            mentions=mentions,
        )

    @property
    def tests_env(self) -> dict[str, str]:
        """Return the variables of the tests, those of their image included."""
        image, place = self._tests_image or self._image, self._config.tests_place
        return {**image.env, **resolved(place.env), **resolved(self._config.verifier.env)}

    def is_isolated(self, base: Tree, terms: Terms) -> bool:
        """Return whether Python is kept from the work folder."""
        around = base.around
        if not terms.is_isolated or around is None:
            return False
        modes = {path: base.entries[path].mode for path in base.names & base.entries.keys()}
        modules = around.modules | around.namespaces
        return not runs_programs(self._task.tests, modes, modules, self._image.work_dir)


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path is that of a folder, or below it."""
    return PurePosixPath(path).is_relative_to(folder)
