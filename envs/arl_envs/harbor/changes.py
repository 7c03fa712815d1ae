"""The changes between an image's work folder and the agent's, without the files that are left out.

The verification's folder is put together first: the agent's entries that may be there, and the
image's in place of those that may not. Links are judged in this folder, because only there they
have to be harmless. Its differences to the image's folder are the changes.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from .hooks import Hooks, Why
from .links import FILE, FOLDER, LINK, Entry, below, is_in, real_path
from .mentions import Mentions
from .tree import Tree

MAX_PATCH_CHARS, MAX_PATCHED_BYTES = 100_000, 200_000
MAX_EQUAL_LINES = 200_000
"""The most pairs of equal lines in two versions of a file of which a difference is computed: the
time grows with it."""
MAX_FOLDER_LINKS = 64
"""The most links to folders that are taken over: the time of their judgement grows with them."""
MAX_PASSES = 8
"""The most times that all links are judged again since others were left out."""


@dataclass(slots=True)
class Changes:
    """The differences between the agent's work folder and the image's, without hooks."""

    written: dict[str, bytes] = field(default_factory=dict[str, bytes])
    removed: list[str] = field(default_factory=list[str])
    """The image's files and links that are gone, and all entries that another kind of entry
    replaces."""
    folders: list[str] = field(default_factory=list[str])
    closed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """The image's folders to which their owner may not write, with their modes."""
    gone: list[str] = field(default_factory=list[str])
    """The image's folders that are gone, the deepest first."""
    links: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    modes: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    dropped: dict[str, Why] = field(default_factory=dict[str, Why])
    """The agent's files and links that are left out, with the reasons."""

    @property
    def empty(self) -> bool:
        return not (self.written or self.removed or self.shape)

    @property
    def shape(self) -> bool:
        return bool(self.folders or self.gone or self.links or self.modes)

    @property
    def size(self) -> int:
        return sum(map(len, self.written.values()))


def changes_of(
    agent: Tree,
    image: Tree,
    hooks: Hooks,
    *,
    work_dir: str,
    test_names: Collection[str] = (),
    test_folders: Collection[str] = (),
    mentions: Mentions | None = None,
) -> Changes:
    """Return the changes that make the image's work folder the agent's, hooks left out.

    Args:
        test_names: The names of the tests' files, which tests may copy into the work folder.
        test_folders: The names of the folders around them.
        mentions: The names in the tests' texts.
    """
    names = frozenset(test_names), frozenset(test_folders)
    found = _Merge(agent, image, hooks, work_dir, *names, mentions or Mentions())
    found.judge_files()
    found.keep_the_images()
    found.judge_links()
    return found.changes()


class _Merge:
    """The folder of the verification, while it is put together."""

    def __init__(
        self,
        agent: Tree,
        image: Tree,
        hooks: Hooks,
        work_dir: str,
        test_names: frozenset[str],
        test_folders: frozenset[str],
        mentions: Mentions,
    ) -> None:
        self._agent, self._image, self._hooks = agent, image, hooks
        self._work_dir = work_dir
        self._test_names, self._mentions = test_names, mentions
        self._linked_names = test_names | test_folders
        self._theirs = _entries(image)
        self._mine = _entries(agent)
        if not (agent.entries and image.entries):  # only files are known, and what they displace
            self._mine = _with_unlisted(self._mine, self._theirs)
        self._dropped: dict[str, Why] = {}
        self._closed: dict[str, Why] = {}
        """The agent's folders that are left out."""
        self._final: dict[str, Entry] = {}
        self._links: list[str] = []
        """The agent's own links."""
        self._copies: dict[str, str] = {}
        """The agent's links to files in whose place copies are, with the files."""

    # ------------------------------------------------------------------ files and folders
    def judge_files(self) -> None:
        """Take over the agent's entries that are not hooks."""
        aliases = self._aliases()
        for path, entry in self._mine.items():
            parent = str(PurePosixPath(path).parent)
            if path != "." and parent not in self._final:
                why = self._closed.get(parent) or Why("its folder is left out")
                (self._closed if entry.kind == FOLDER else self._dropped)[path] = why
                continue
            if path == "." or self._is_images(path, entry):
                self._final[path] = entry
                continue
            why = self._why(path, entry, aliases)
            if why is None:
                self._final[path] = entry
                if entry.kind == LINK:
                    self._links.append(path)
            elif entry.kind == FOLDER and not why.is_doubtful:
                self._closed[path] = why
            else:
                self._closed[path] = self._dropped[path] = why

    def _is_images(self, path: str, entry: Entry) -> bool:
        """Return whether the image has the same entry, apart from its mode."""
        before = self._theirs.get(path)
        if before is None or (before.kind, before.target) != (entry.kind, entry.target):
            return False
        if entry.kind != FILE:
            return True
        if path in self._agent.unread or path in self._image.unread:
            return path in self._agent.unread and path in self._image.unread
        return self._agent.files[path] == self._image.files[path]

    def _why(self, path: str, entry: Entry, aliases: Sequence[tuple[str, str]]) -> Why | None:
        if path in self._agent.unread:
            return Why("it cannot be read: too large, or too deep")
        if entry.kind == FOLDER:
            if PurePosixPath(path).name in self._test_names and not self._hooks.takes(path):
                return Why("a file of the tests has this name", is_doubtful=True)
            return self._hooks.why(path)
        if why := self._hooks.why(path, self._agent.files.get(path, b"")):
            return why
        for link, real in aliases:
            if is_in(path, real) and path != real:
                seen = f"{link}/{PurePosixPath(path).relative_to(real)}"
                if why := self._hooks.why(seen):
                    return Why(f"{why.text}, as {seen}", why.is_doubtful)
        return None

    def _aliases(self) -> list[tuple[str, str]]:
        """Return the image's links to folders, with the folders."""
        found: list[tuple[str, str]] = []
        for path, entry in self._theirs.items():
            if entry.kind == LINK and self._mine.get(path) == entry:
                real = real_path(path, self._mine, self._work_dir)
                if real is not None and real != "." and self._kind(real) == FOLDER:
                    found.append((path, real))
        return found[:MAX_FOLDER_LINKS]

    def _kind(self, path: str) -> int:
        entry = self._mine.get(path)
        return FOLDER if path == "." else entry.kind if entry else 0

    # ------------------------------------------------------------------ the image's entries
    def keep_the_images(self) -> None:
        """Put back the image's hooks, and the entries that the agent's dropped files replaced."""
        for path, before in self._theirs.items():
            held = self._final.get(path)
            if held is not None and held.kind == before.kind:
                continue
            if path in self._dropped:
                self._put_back(path)
            elif why := self._hooks.why(path):
                self._put_back(path)
                if why.is_doubtful and path not in self._mine and before.kind != FOLDER:
                    self._dropped[path] = Why(f"not removed: {why.text}", is_doubtful=True)

    def _put_back(self, path: str) -> None:
        """Remove what occupies the place of the image's entry, and put the entry there, with its
        folders and all below it."""
        for up in reversed(PurePosixPath(path).parents[:-1]):
            self._replace(str(up), self._theirs[str(up)], path)
        self._replace(path, self._theirs[path], path)
        if path in self._dropped and self._theirs[path].kind == FOLDER:
            for inner, entry in below(path, self._theirs):
                self._final[f"{path}/{inner}"] = entry

    def _replace(self, path: str, entry: Entry, why: str) -> None:
        held = self._final.get(path)
        if held is not None and held.kind == entry.kind == FOLDER:
            return
        if held is not None and path in self._mine and held.kind != FOLDER and held != entry:
            self._dropped.setdefault(path, Why(f"the image's {why} stays"))
        if entry.kind != FOLDER:
            for inner, _ in [*below(path, self._final)]:
                gone = self._final.pop(f"{path}/{inner}")
                if gone.kind != FOLDER:
                    self._dropped.setdefault(f"{path}/{inner}", Why(f"the image's {path} stays"))
        self._final[path] = entry

    # ------------------------------------------------------------------ links
    def judge_links(self) -> None:
        """Leave out the agent's links that lead to other files than its own, until no link depends
        on one that is left out."""
        for _ in range(MAX_PASSES):
            num_folders = 0
            out: dict[str, Why] = {}
            self._links = [path for path in self._links if self._is_mine(path)]
            for path in self._links:
                real = real_path(path, self._final, self._work_dir)
                is_folder = real is not None and self._final[real].kind == FOLDER
                num_folders += is_folder
                why = (
                    Why(f"the folder has more than {MAX_FOLDER_LINKS} links to folders")
                    if num_folders > MAX_FOLDER_LINKS
                    else self._why_no_link(path, real)
                )
                if why is None or (why.is_doubtful and self._hooks.takes(path)):
                    continue
                if why.is_doubtful and real is not None and not is_folder:
                    self._copies[path] = real
                out[path] = why
            if not out:
                break
            self._leave_out(out)
        else:
            self._leave_out(
                {path: Why("it depends on links that are left out") for path in self._links}
            )
        self._put_copies()

    def _put_copies(self) -> None:
        """Replace links by copies of files where a link could be another name of a file that the
        tests write."""
        for path, real in [*self._copies.items()]:
            target, held = self._final.get(real), self._final.get(path)
            parent = self._final.get(str(PurePosixPath(path).parent))
            is_free = (
                parent is not None and parent.kind == FOLDER and (held is None or held.kind == FILE)
            )
            if is_free and target is not None and target.kind == FILE and self._is_read(real):
                self._final[path] = Entry(FILE, target.mode | 0o600)
                self._dropped[path] = replace(
                    self._dropped[path], text=f"{self._dropped[path].text}; a copy is in its place"
                )
            else:
                del self._copies[path]

    def _is_read(self, path: str) -> bool:
        return path in (self._image if self._has_images(path) else self._agent).files

    def _has_images(self, path: str) -> bool:
        """Return whether the file that was put together is the image's."""
        return self._final[path] is self._theirs.get(path)

    def _is_mine(self, path: str) -> bool:
        return path not in self._dropped and self._final.get(path) == self._mine[path]

    def _leave_out(self, out: Mapping[str, Why]) -> None:
        self._dropped.update(out)
        for path in out:
            if self._final.get(path) == self._mine[path]:
                del self._final[path]
            if path in self._theirs:
                self._put_back(path)

    def _why_no_link(self, path: str, real: str | None) -> Why | None:
        if real is None:
            return Why("the link leads out of the work folder, or to nothing that is there")
        is_folder = self._final[real].kind == FOLDER
        is_expected = PurePosixPath(path).name in self._mentions.links
        for one in (path, real):
            name = PurePosixPath(one).name
            if name in self._linked_names:
                return Why(f"the tests have the name of {one}", is_doubtful=True)
            words = self._mentions.written if is_folder or is_expected else self._mentions.words
            if name in words or (not is_folder and name.partition(".")[0] in words):
                return Why(f"the tests may write to {one}", is_doubtful=True)
        if not is_folder:
            return None
        if is_in(path, real):
            return Why("the link leads to a folder around itself")
        for inner, entry in below(real, self._final):
            seen = f"{path}/{inner}"
            if entry.kind == LINK:
                whole = f"{real}/{inner}"
                end = real_path(whole, self._final, self._work_dir)
                if end is None or self._final[end].kind == FOLDER:
                    return Why(f"the link leads to a folder that has the link {inner}")
            if entry.kind != FOLDER and (why := self._hooks.why(seen)):
                return Why(f"{seen}: {why.text}", why.is_doubtful)
        return None

    # ------------------------------------------------------------------ the result
    def changes(self) -> Changes:
        """Return the differences between the image's folder and the one that was put together."""
        found = Changes(dropped=self._dropped)
        for path, entry in sorted(self._final.items()):
            before = self._theirs.get(path)
            if path == "." or entry is before:
                continue
            is_other = before is None or before.kind != entry.kind
            if before is not None and (
                (is_other and (before.kind != FOLDER or entry.kind != FOLDER))
                or before.target != entry.target
            ):
                found.removed.append(path)
            if entry.kind == LINK and (before is None or before.target != entry.target):
                found.links.append((path, entry.target))
            if entry.kind == FOLDER and is_other:
                found.folders.append(path)
            is_new = is_other or path in self._copies or not self._is_images(path, entry)
            if entry.kind == FILE and is_new:
                found.written[path] = self._content(path)
        found.removed += sorted(
            path
            for path, before in self._theirs.items()
            if path not in self._final and before.kind != FOLDER
        )
        gone = [
            path
            for path, before in self._theirs.items()
            if path not in self._final and before.kind == FOLDER
        ]
        found.gone = sorted(gone, key=lambda path: -path.count("/"))
        found.modes = sorted(self._modes(), key=depth, reverse=True)
        found.closed = [
            (path, entry.mode)
            for path, entry in sorted(self._theirs.items())
            if entry.kind == FOLDER and entry.mode & 0o700 != 0o700
        ]
        return found

    def _modes(self) -> Iterator[tuple[str, int]]:
        """Yield the modes that differ from the image's: the tests can read everything, and replace
        entries with the name of one of their files."""
        if not (self._agent.entries and self._image.entries):
            return
        named = {path for path in self._final if PurePosixPath(path).name in self._test_names}
        opened = named.union(*(map(str, PurePosixPath(path).parents) for path in named))
        for path, entry in self._final.items():
            before = self._theirs.get(path)
            if path == "." or entry == before or entry.kind == LINK or path in self._agent.unread:
                continue
            if before is not None and self._hooks.is_hook(path):
                continue
            mode = entry.mode | (0o500 if entry.kind == FOLDER else 0o400)
            if not mode & 0o200 and (path in opened or not self._stays_closed(path)):
                mode |= 0o200
                why = Why("its mode alone: the tests may have to write there", is_doubtful=True)
                self._dropped.setdefault(path, why)
            if before is None or (before.kind, before.mode) != (entry.kind, mode):
                yield path, mode

    def _stays_closed(self, path: str) -> bool:
        """Return whether no program has to write there; programs of git take the modes of its
        objects for granted."""
        return self._hooks.takes(path) or "/.git/objects/" in f"/{path}"

    def _content(self, path: str) -> bytes:
        source = self._copies.get(path, path)
        return (self._image if self._has_images(source) else self._agent).files[source]


def depth(item: tuple[str, int]) -> int:
    """Return a number that is larger for folders further down, and 0 for the work folder."""
    return 0 if item[0] == "." else 1 + item[0].count("/")


def _entries(tree: Tree) -> dict[str, Entry]:
    """Return the entries of a folder in which files that the host has read are files, below
    folders, and nothing is below anything else."""
    found = {
        path: entry
        for path, entry in tree.entries.items()
        if entry.kind != FILE or path in tree.names
    }
    for path in tree.names:
        if (held := found.get(path)) is None or held.kind != FILE:
            found[path] = Entry(FILE, 0o644)
        for up in map(str, PurePosixPath(path).parents):
            if (held := found.get(up)) is None or held.kind != FOLDER:
                found[up] = Entry(FOLDER, 0o755)
    found.setdefault(".", Entry(FOLDER, 0o755))
    return _without_orphans(found)


def _with_unlisted(mine: Mapping[str, Entry], theirs: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the agent's entries with the image's folders and links, of which nothing is known."""
    found = {path: entry for path, entry in theirs.items() if entry.kind != FILE}
    return _without_orphans(found | dict(mine))


def _without_orphans(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries whose parent is a folder; folders come before their contents."""
    kept: dict[str, Entry] = {}
    for path in [".", *sorted(entries.keys() - {"."})]:
        parent = kept.get(str(PurePosixPath(path).parent))
        if path == "." or (parent is not None and parent.kind == FOLDER):
            kept[path] = entries[path]
    return kept


def patch_of(changes: Changes, base: Tree) -> str:
    """Return the changes of small text files as a unified diff, cut at MAX_PATCH_CHARS."""
    lines: list[str] = []
    for path in sorted({*changes.written, *changes.removed}):
        before, after = base.files.get(path, b""), changes.written.get(path, b"")
        old = before.decode("utf-8", "replace").splitlines(keepends=True)
        new = after.decode("utf-8", "replace").splitlines(keepends=True)
        too_large = len(before) + len(after) > MAX_PATCHED_BYTES
        if too_large or b"\0" in before + after or _num_equal(old, new) > MAX_EQUAL_LINES:
            lines.append(f"{path}: {len(before)} bytes before, {len(after)} after\n")
            continue
        lines += (
            line if line.endswith("\n") else f"{line}\n"
            for line in difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
        )
    return "".join(lines)[:MAX_PATCH_CHARS]


def _num_equal(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of pairs of equal lines."""
    counts = Counter(new)
    return sum(counts[line] for line in old)
