"""A reader of the part of a Dockerfile that every backend with images understands.

The reader knows FROM, WORKDIR, COPY and ADD of local files, ENV, ARG, RUN, SHELL and USER; it skips
the instructions that only describe a container. It refuses all else by line, so that no task is
built differently from what its author wrote. https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from agentgym_rl.core import ImageError
from agentgym_rl.gym import ImageRecipe

NAME = "Dockerfile"
HARMLESS = frozenset(
    ("CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME")
)
"""The instructions that do not change the files, variables or folder of a program."""
SHELL = ("/bin/sh", "-c")
_PLATFORM = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(os.uname().machine, "linux")
"""The platform of images here; a Dockerfile that requires another platform is refused."""
_READ = "ADD ARG COPY ENV FROM RUN SHELL USER WORKDIR"
_CONTINUED = re.compile(r"(?:^|[^\\])\\[ \t]*$")
_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S)", re.IGNORECASE)
_HERE = re.compile(r"(?<!<)<<-?[\"']?[A-Za-z_]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^{}]*))?\}")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\s+")
_ARCHIVE = re.compile(r"\.(tar|tgz|tbz2?|txz|tar\.\w+)$")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction, with its lines joined."""

    line: int
    word: str
    rest: str

    def __str__(self) -> str:
        text = f"{self.word} {self.rest}"
        return text if len(text) <= 200 else f"{text[:197]}..."


@dataclass(frozen=True, slots=True)
class Copy:
    """The files that one COPY puts into the image."""

    at: Instruction
    dest: str
    """The absolute path of the target."""
    files: Mapping[str, str]
    """The paths in the context by their path below `dest`."""
    is_file: bool
    """True if `dest` names a file, unless the image has a folder there."""
    mode: int | None
    """The mode that the author gives (--chmod); None: that of the context's file."""

    def entries(
        self, recipe: ImageRecipe, *, has_folder: Callable[[str], bool]
    ) -> Iterator[tuple[str, bytes, int]]:
        """Yield the absolute path, the contents and the mode of each file.

        has_folder: returns True if the image has a folder of that name.
        """
        is_file = self.is_file and not has_folder(self.dest)
        for path, source in self.files.items():
            target = self.dest if is_file else posixpath.join(self.dest, path)
            data = recipe.files[source]
            yield target, data, mode_of(data) if self.mode is None else self.mode


@dataclass(frozen=True, slots=True)
class Run:
    """The command of one RUN."""

    at: Instruction
    argv: Sequence[str]
    work_dir: str
    env: Mapping[str, str]
    """The variables: ENV and ARG together."""
    user: str
    """The user of the last USER before it, or that of the base."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder that a WORKDIR makes."""

    at: Instruction
    path: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps from a base image to the image of a recipe."""

    steps: Sequence[Copy | Run | Folder]
    work_dir: str
    env: Mapping[str, str]
    user: str
    """The user of the last USER, or that of the base."""

    @property
    def runs(self) -> bool:
        """Return True if a step runs a program."""
        return any(isinstance(step, Run) for step in self.steps)


def digest(recipe: ImageRecipe) -> str:
    """Return the key of a recipe: the SHA-256 of its contents, without its name."""
    found = hashlib.sha256()
    for path, data in [("", recipe.published.encode()), *sorted(recipe.files.items())]:
        found.update(f"{len(path.encode())} {len(data)} {path}".encode())
        found.update(data)
    return found.hexdigest()


def mode_of(data: bytes) -> int:
    """Return the mode of a context's file: a script is executable."""
    return 0o755 if data.startswith(b"#!") else 0o644


@dataclass(slots=True)
class Dockerfile:
    """A parsed Dockerfile.

    Raises:
        ImageError: an instruction is not read here; the message has its line.
    """

    recipe: ImageRecipe
    base: str = ""
    """The name of the base image."""
    _rest: list[Instruction] = field(default_factory=list["Instruction"])
    _global: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if self.recipe.published:
            self.base = self.recipe.published
            return
        if NAME not in self.recipe.files:
            raise ImageError(f"{self.recipe.name}: the image has no {NAME}, nor a published name")
        if ignored := self.recipe.files.get(".dockerignore", b"").strip():
            raise ImageError(
                f"{self.recipe.name}: .dockerignore ({ignored[:40]!r}) is not read: leave such "
                "files out of the context"
            )
        for at in _instructions(self.recipe):
            self._head(at)
        if not self.base:
            raise ImageError(f"{self.recipe.name}: the {NAME} has no FROM")

    def _head(self, at: Instruction) -> None:
        if self.base:
            if at.word == "FROM":
                raise self.error(at, "a second FROM; expected one stage")
            self._rest.append(at)
        elif at.word == "ARG":
            name, _, value = at.rest.partition("=")
            self._global[name.strip()] = "".join(self._words(at, value, self._global))
        elif at.word == "FROM":
            words = self._words(at, at.rest, self._global)
            if words and words[0] in (f"--platform={_PLATFORM}", "--platform="):  # "": a variable
                words = words[1:]
            if len(words) not in (1, 3) or words[0].startswith("--"):
                raise self.error(at, "expected FROM IMAGE or FROM IMAGE AS NAME")
            self.base = words[0]
        else:
            raise self.error(at, "an instruction before FROM")

    def error(self, at: Instruction, why: str) -> ImageError:
        return ImageError(f"{self.recipe.name}: {NAME} line {at.line}: {at}: {why}")

    def plan(self, env: Mapping[str, str], work_dir: str = "/", user: str = "") -> Plan:
        """Return the steps, after a base image with these variables, folder and user.

        Raises:
            ImageError: an instruction is not read here.
        """
        reading = _Reading(self, dict(env), work_dir or "/", user, self._global)
        for at in self._rest:
            reading.read(at)
        return Plan(tuple(reading.steps), reading.work_dir, reading.env, reading.user)

    def _words(
        self, at: Instruction, text: str, variables: Mapping[str, str], *, split: bool = True
    ) -> list[str]:
        try:
            return words(text, variables, split=split)
        except ValueError as error:
            raise self.error(at, str(error)) from None


class _Reading:
    """The state of the image between two instructions."""

    def __init__(
        self, file: Dockerfile, env: dict[str, str], work_dir: str, user: str, given: dict[str, str]
    ) -> None:
        self.steps: list[Copy | Run | Folder] = []
        self.env, self.work_dir, self.user = env, work_dir, user
        self._file, self._global = file, given
        self._args: dict[str, str] = {}
        self._shell: Sequence[str] = SHELL
        self._reads: dict[str, Callable[[Instruction], None]] = {
            "ADD": self._copy, "ARG": self._arg, "COPY": self._copy, "ENV": self._set,
            "RUN": self._run, "SHELL": self._set_shell, "USER": self._set_user,
            "WORKDIR": self._enter,
        }  # fmt: skip

    def read(self, at: Instruction) -> None:
        if at.word in HARMLESS:
            return
        if at.word not in self._reads:
            raise self._file.error(at, f"this instruction is not read; allowed: {_READ}")
        if not at.rest:
            raise self._file.error(at, "expected something after it")
        self._reads[at.word](at)

    def _words(self, at: Instruction, text: str) -> list[str]:
        return self._file._words(at, text, self._args | self.env)

    def _word(self, at: Instruction, text: str) -> str:
        return "".join(self._file._words(at, text, self._args | self.env, split=False))

    def _arg(self, at: Instruction) -> None:
        for word in self._words(at, at.rest):
            name, given, value = word.partition("=")
            self._args[name] = value if given else self._global.get(name, "")

    def _set(self, at: Instruction) -> None:
        first = at.rest.split(None, 1)
        if "=" not in first[0]:  # the old form: ENV NAME the rest of the line
            found = self._word(at, first[1] if len(first) > 1 else "")
            self.env = self.env | {first[0]: found}
            return
        pairs = [word.partition("=") for word in self._words(at, at.rest)]
        for name, given, _ in pairs:
            if not given or not name:
                raise self._file.error(at, f"{name!r}; expected NAME=VALUE")
        self.env = self.env | {name: value for name, _, value in pairs}

    def _set_shell(self, at: Instruction) -> None:
        self._shell = _json_words(at.rest) or ()
        if not self._shell:
            raise self._file.error(at, 'expected a list such as ["/bin/bash", "-c"]')

    def _set_user(self, at: Instruction) -> None:
        self.user = self._word(at, at.rest)

    def _enter(self, at: Instruction) -> None:
        self.work_dir = self._path(self._word(at, at.rest))
        self.steps.append(Folder(at, self.work_dir))

    def _path(self, path: str) -> str:
        return posixpath.normpath("/" + posixpath.join(self.work_dir, path).lstrip("/"))

    def _run(self, at: Instruction) -> None:
        if at.rest.startswith("--"):
            raise self._file.error(at, "options of RUN are not read")
        if _HERE.search(at.rest):
            raise self._file.error(at, "here-documents are not read; copy a script, and run it")
        argv = _json_words(at.rest) or [*self._shell, at.rest]
        self.steps.append(Run(at, argv, self.work_dir, self._args | self.env, self.user))

    def _copy(self, at: Instruction) -> None:
        flags, rest = _flags(at.rest)
        if odd := sorted(set(flags) - {"chown", "chmod", "link"}):
            raise self._file.error(at, f"--{odd[0]} is not read; allowed: --chown, --chmod")
        mode = flags.get("chmod")
        if mode is not None and not re.fullmatch(r"0?[0-7]{3}", mode):
            raise self._file.error(at, f"--chmod={mode}; expected octal digits such as 755")
        if _HERE.search(rest):
            raise self._file.error(at, "here-documents are not read; add a file to the context")
        listed = _json_words(rest)
        found = [self._word(at, word) for word in listed or ()] or self._words(at, rest)
        if len(found) < 2:
            raise self._file.error(at, "expected a source and a target")
        *sources, dest = found
        files: dict[str, str] = {}
        folders = False
        for source in sources:
            more, is_folder = self._matches(at, source)
            files |= more
            folders |= is_folder
        is_file = len(files) == 1 and len(sources) == 1 and not folders and not dest.endswith("/")
        if not is_file and not folders and len(files) > 1 and not dest.endswith("/"):
            raise self._file.error(at, f"several files for {dest!r}: expected it to end with /")
        step = Copy(at, self._path(dest), files, is_file, int(mode, 8) if mode else None)
        self.steps.append(step)

    def _matches(self, at: Instruction, source: str) -> tuple[dict[str, str], bool]:
        """Return the files of a source, by their path in the target; True if it has a folder."""
        if "://" in source or source.startswith("git@"):
            raise self._file.error(at, f"{source!r}: only files of the context can be copied")
        if at.word == "ADD" and _ARCHIVE.search(source):
            raise self._file.error(at, "ADD would unpack an archive; use COPY, and RUN tar")
        pattern = [part for part in source.split("/") if part not in ("", ".")]
        if ".." in pattern:
            raise self._file.error(at, f"{source!r} leads out of the context")
        found: dict[str, str] = {}
        is_folder = False
        for path in sorted(self._file.recipe.files):
            parts = path.split("/")
            if len(parts) < len(pattern) or not all(map(_match, parts, pattern)):
                continue
            inner = parts[len(pattern) :]
            is_folder |= bool(inner)
            found["/".join(inner or parts[-1:])] = path
        if not found:
            raise self._file.error(at, f"{source!r}: the context has no such file")
        return found, is_folder


def _match(part: str, pattern: str) -> bool:
    return fnmatchcase(part, pattern.replace("[^", "[!"))


def _flags(rest: str) -> tuple[dict[str, str], str]:
    """Split the options before the words of an instruction from the words."""
    found: dict[str, str] = {}
    while match := _FLAG.match(rest):
        found[match[1]] = match[2] or ""
        rest = rest[match.end() :]
    return found, rest


def _json_words(text: str) -> list[str] | None:
    """Return the words of a JSON list; None if the text is not a list, and so has the shell's
    form."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(w, str) for w in found) else None


def _instructions(recipe: ImageRecipe) -> list[Instruction]:
    """Return the instructions of a Dockerfile.

    Raises:
        ImageError: the file is not text, or changes the escape character.
    """
    try:
        lines = recipe.files[NAME].decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise ImageError(f"{recipe.name}: the {NAME} is not UTF-8: {error}") from None
    found: list[Instruction] = []
    parts: list[str] = []
    start = 0
    for number, line in enumerate([*lines, ""], 1):
        bare = line.strip()
        if not found and not parts and (escape := _ESCAPE.match(bare)) and escape[1] != "\\":
            raise ImageError(f"{recipe.name}: {NAME} line {number}: escape={escape[1]} is not read")
        if number <= len(lines) and (bare.startswith("#") or (not bare and parts)):
            continue
        start = start if parts else number
        continued = _CONTINUED.search(line)
        parts.append(line[: line.rindex("\\")] if continued else line)
        if continued:
            continue
        word, _, rest = "".join(parts).strip().partition(" ")
        if "\t" in word:
            word, _, rest = "".join(parts).strip().partition("\t")
        parts.clear()
        if word:
            found.append(Instruction(start, word.upper(), rest.strip()))
    return found


def words(text: str, variables: Mapping[str, str], *, split: bool = True) -> list[str]:
    """Split text as a shell does, with quotes, backslashes, and the variables' values put in.

    split: False for one word, in which spaces stay.

    Raises:
        ValueError: a quote is open, or an expansion is not read here.
    """
    found: list[str] = []
    word: list[str] | None = None
    quote, at = "", 0
    while at < len(text):
        char = text[at]
        at += 1
        if split and not quote and char.isspace():
            if word is not None:
                found.append("".join(word))
            word = None
            continue
        word = [] if word is None else word
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif quote == "'":
            word.append(char)
        elif char == "\\" and at < len(text) and (not quote or text[at] in '"\\$'):
            word.append(text[at])
            at += 1
        elif char == "$":
            value, at = _expansion(text, at, variables)
            word.append(value)
        else:
            word.append(char)
    if quote:
        raise ValueError(f"a {quote} is not closed")
    return found if word is None else [*found, "".join(word)]


def _expansion(text: str, at: int, variables: Mapping[str, str]) -> tuple[str, int]:
    """Return the value of the variable at a place after "$", and the place after it."""
    if match := _NAME.match(text, at):
        return variables.get(match[0], ""), match.end()
    if not text.startswith("{", at):
        return "$", at
    match = _BRACED.match(text, at)
    if not match:
        raise ValueError(f"${text[at : at + 20]} is not read; allowed: ${{NAME}}, :-, :+")
    name, kind, other = match[1], match[2] or "", match[3] or ""
    value = variables.get(name)
    is_set = bool(value) if kind.startswith(":") else value is not None
    if kind.endswith("-"):
        chosen = (value or "") if is_set else "".join(words(other, variables))
    elif kind.endswith("+"):
        chosen = "".join(words(other, variables)) if is_set else ""
    else:
        chosen = value or ""
    return chosen, match.end()
