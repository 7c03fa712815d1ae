"""The inspected runs: they are found in folders, have an id, read their small files, and know the
texts of their tokens. Growing files of JSON lines are read once, line by line."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from agentgym_rl.core import ConfigError, flat, parse_json, parse_toml
from agentgym_rl.models import BUNDLED_MODELS
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.storage import EpisodeReader, end_of, kind_of_folder
from agentgym_rl.storage.evaluations import LINES
from agentgym_rl.storage.run_folder import MARK, shown
from agentgym_rl.storage.run_list import is_run, state_of

from .index import EpisodeIndex
from .overview import changed_s, overview, readable
from .query import missing

_FILE = "tokenizer.json"


class Texts:
    """The texts of one run's tokens; the tokenizer is loaded at its first use."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._tokenizer: Tokenizer | None = None
        self._turn = threading.Lock()

    def of(self, ids: Sequence[int], config: Mapping[str, Any]) -> list[str]:
        """Return a piece of text for each token; together they are the decoded row. If several
        tokens make one character, all but the last of them are empty.

        Raises:
            ConfigError: the tokenizer is not on this machine.
        """
        with self._turn:
            if self._tokenizer is None:
                self._tokenizer = _load(self._run, config)
        return pieces(self._tokenizer, ids)


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return a piece of text for each token; see `Texts.of`."""
    stream = DecodeStream(skip_special_tokens=False)
    found = [stream.step(tokenizer, int(token)) or "" for token in ids]
    # Add the rest if the last tokens begin a character that no token completes.
    whole = tokenizer.decode([int(token) for token in ids], skip_special_tokens=False)
    said = "".join(found)
    if found and whole != said and whole.startswith(said):
        found[-1] += whole[len(said) :]
    return found


def _load(run: Path, config: Mapping[str, Any]) -> Tokenizer:
    path = str(config.get("model", {}).get("path", ""))
    folders = [run / "export", run / "init" / "model", *_model_folders(path)]
    for folder in folders:
        if (folder / _FILE).is_file():
            try:
                return Tokenizer.from_file(str(folder / _FILE))
            except Exception as error:  # tokenizers raises plain Exceptions
                raise ConfigError(f"cannot read {folder / _FILE}: {error}") from error
    raise ConfigError(
        f"the tokenizer of model {path!r} is not on this machine: looked in {run / 'export'} and "
        "for the model; copy its tokenizer.json into the run's export/"
    )


def _model_folders(path: str) -> list[Path]:
    if path == "bundled":
        return [BUNDLED]
    if path in BUNDLED_MODELS:
        return [BUNDLED_MODELS[path]]
    folder = Path(path).expanduser()
    if not path or folder.is_dir():
        return [folder]
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(path, _FILE)
    except ValueError:  # neither an existing folder, nor a model id
        return []
    return [Path(cached).parent] if isinstance(cached, str) else []


_OVERLAP_BYTES = 256


class GrowingLines:
    """The objects of a growing file; a file that was truncated meanwhile (a restarted trainer does
    so) is read again from the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Mapping[str, Any]] = []
        self._seen, self._tail = 0, b""

    def read(self) -> Sequence[Mapping[str, Any]]:
        """Return all objects so far; none without a file. A last line that is being written is left
        out. Do not call this from two threads at once.

        Raises:
            ConfigError: a line is not a JSON object.
        """
        try:
            with self._path.open("rb") as file:
                start = max(0, self._seen - len(self._tail))
                file.seek(start)
                if file.read(len(self._tail)) != self._tail:
                    self._rows, self._seen, self._tail = [], 0, b""
                    file.seek(0)
                new = file.read()
        except FileNotFoundError:
            self._rows, self._seen, self._tail = [], 0, b""
            return []
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from error
        whole = new[: new.rfind(b"\n") + 1]
        found = [self._object(line) for line in whole.split(b"\n") if line.strip()]
        self._rows = [*self._rows, *found]
        self._seen += len(whole)
        self._tail = (self._tail + whole)[-_OVERLAP_BYTES:]
        return self._rows

    def _object(self, line: bytes) -> Mapping[str, Any]:
        try:
            found = parse_json(line)
        except ValueError as error:
            raise ConfigError(f"{self._path} has a line that is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{self._path} has a line that is no JSON object: {line[:80]!r}")
        return found


class InspectedRun:
    """The folder of one run. Methods read files: call them in threads."""

    def __init__(self, id: str, folder: Path) -> None:
        self.id, self.folder = id, folder
        self.index = EpisodeIndex(folder / "episodes.db")
        self.texts = Texts(folder)
        self._metrics = GrowingLines(folder / "metrics.jsonl")
        self._evaluations = GrowingLines(folder / LINES)
        self._turn = threading.Lock()
        self._config: tuple[tuple[int, ...], Mapping[str, Any]] = ((), {})

    def config_text(self) -> str:
        """Return the text of `config.toml`."""
        try:
            return (self.folder / MARK).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise missing(f"{self.folder / MARK} cannot be read: {error}") from error

    def config(self) -> Mapping[str, Any]:
        """Return the configuration; the file is parsed again only after it has changed."""
        try:
            stat = (self.folder / MARK).stat()
        except OSError as error:
            raise missing(f"{self.folder / MARK} cannot be read: {error}") from error
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known, config = self._config
        if known != version:
            try:
                config = parse_toml(self.config_text())
            except ValueError as error:
                raise ConfigError(f"{self.folder / MARK} is no TOML: {error}") from error
            self._config = version, config
        return config

    def config_answer(self) -> dict[str, Any]:
        """Return the text of `config.toml`, and its values by their dotted names."""
        return {"toml": self.config_text(), "values": flat(self.config())}

    def metrics(self, *, after: int = -1) -> dict[str, Any]:
        """Return the rows of `metrics.jsonl` with a larger step, and all evaluations."""
        with self._turn:
            rows, evaluations = self._metrics.read(), self._evaluations.read()
        late = [row for row in rows if not isinstance(at := row.get("step"), int) or at > after]
        return {"rows": late, "evaluations": evaluations}

    def pulse(self) -> dict[str, Any]:
        """Return the values that change during training; cheap to call."""
        with self._turn:
            steps = len(self._metrics.read())
        planned = int(self.config().get("steps", 0))
        return {
            "run": self.id,
            "steps": steps,
            "episodes": self._num_episodes(),
            "status": state_of(self.folder, steps, planned),
            "kind": kind_of_folder(self.folder),
            "failure": end.failure if (end := end_of(self.folder)) else "",
        }

    def summary(self) -> dict[str, Any]:
        """Return the run's entry in the list of runs."""
        return overview(self.id, self.folder, lambda: (self.config(), self.metrics(), self.pulse()))

    def _num_episodes(self) -> int:
        if not (self.folder / "episodes.db").exists():
            return 0
        with closing(EpisodeReader(self.folder / "episodes.db")) as log:
            return log.num_recorded


class Runs:
    """The runs in some places; runs may appear and vanish meanwhile."""

    def __init__(self, places: Sequence[Path]) -> None:
        """Check and store the places.

        Raises:
            ConfigError: a place does not exist, or lies inside a run.
        """
        for place in places:
            if not place.is_dir():
                raise ConfigError(f"no folder {place}: pass runs, or folders with runs in them")
            if (run := _run_around(place)) is not None:
                raise ConfigError(f"{place} lies inside a run: pass the run, {shown(run)}")
        self._places = [place.resolve() for place in places]
        self._runs: dict[Path, InspectedRun] = {}
        self._turn = threading.Lock()

    def all(self) -> list[InspectedRun]:
        """Return the current runs, the newest last. Reads folders: call it in a thread."""
        with self._turn:
            folders = dict.fromkeys(path for place in self._places for path in _inside(place))
            for folder in folders:
                if folder not in self._runs:
                    self._runs[folder] = InspectedRun(self._free_id(readable(folder.name)), folder)
            return [self._runs[folder] for folder in folders]

    def of(self, id: str) -> InspectedRun:
        """Return the run with this id.

        Raises:
            HttpError: there is no such run (404).
        """
        found = self.all()
        for run in found:
            if run.id == id:
                return run
        known = ", ".join(run.id for run in found[-5:]) or "none"
        raise missing(f"no run {id[:80]!r} here; there are: {known}")

    def _free_id(self, name: str) -> str:
        """Return an unused id; the ids of vanished folders stay reserved for them."""
        taken = {run.id for run in self._runs.values()}
        number, id = 2, name
        while id in taken:
            id, number = f"{name}~{number}", number + 1
        return id


def _run_around(place: Path) -> Path | None:
    """Return the run whose folder `place` lies in, if it is neither a run nor holds any."""
    if _inside(place):
        return None
    return next((folder for folder in place.resolve().parents if is_run(folder)), None)


def _inside(place: Path) -> list[Path]:
    if is_run(place):
        return [place]
    try:
        inside = [path for path in place.iterdir() if is_run(path)]
    except OSError:  # the folder has vanished
        return []
    return sorted((path.resolve() for path in inside), key=lambda p: changed_s(p / MARK) or 0.0)
