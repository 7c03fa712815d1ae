"""The warm-up of a run: data to rows, rows to ranks, and a configuration with the resulting model.

Supervised data, in the format of `arl export --sft` and TRL, become the tokens that a rollout of
the conversations would have recorded. After the warm-up `config.toml` names the warmed-up model and
no `init`: all readers of the run (engines, ranks, `arl audit`, `arl replay`, `--resume`) find a
plain model there, and `init/warmup.json` records how it was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from agentgym_rl.cluster import LocalProcesses, ProcessSpec, free_port
from agentgym_rl.config import Config, GatewayConfig
from agentgym_rl.core import ConfigError, Row, TrainerError, parse_json
from agentgym_rl.core.chat import RENDERED
from agentgym_rl.core.row import IGNORED, pack_row
from agentgym_rl.gateway import ChatFormat, ParserFactory, readers_of
from agentgym_rl.models import model_name
from agentgym_rl.report import Progress
from agentgym_rl.run import Opened
from agentgym_rl.runtime import replacing
from agentgym_rl.runtime.atomic_file import remove
from agentgym_rl.storage import WARMED_UP, checksums, newest_checkpoint, read_manifest
from agentgym_rl.trainer import rank_environment, rank_imports

from .demonstrations import Notes, SkippedRow, check_row, conversation_of, with_text_arguments
from .held_out import HeldOut
from .keys import CHECKPOINTS, FOLDER, MODEL, ROWS, STEPS, InitConfig
from .written import TokenRow, note_unread_calls, rows_of

_log = logging.getLogger(__name__)


def token_rows(
    data: Path,
    chat: ChatFormat,
    *,
    max_tokens: int,
    on_progress: Callable[[int], None] = lambda _: None,
    held_out: HeldOut | None = None,
    parsers: ParserFactory | None = None,
) -> list[Row]:
    """Return the rows of a JSONL file, one or more a line; labelled tokens train. Differences
    between rows and learned tokens are counted, and logged once. `parsers`: those of the model's
    replies, to find calls in another notation.

    Raises:
        ConfigError: the file or a line of it cannot be read, would train something else than it
            holds, is a task of `held_out`, or exceeds `max_tokens` tokens.
    """
    rows, notes, seen = list[Row](), Notes(), set[bytes]()
    for number, line in _lines(data):
        notes.where = number
        try:
            if held_out is not None:
                held_out.check(line, notes)
            found = [
                _row(ids, said) for ids, said in _of_line(line, chat, notes, held_out, parsers)
            ]
            for row in found:
                if len(row) > max_tokens:
                    raise ValueError(
                        f"{len(row):,} tokens, allowed: {max_tokens:,} "
                        "(trainer.max_tokens_per_microbatch)"
                    )
                content = row.tokens.tobytes() + row.loss_mask.tobytes()
                digest = blake2b(content, digest_size=16).digest()
                if digest in seen:
                    notes.add("row like an earlier one, learned as often as it is there")
                seen.add(digest)
        except SkippedRow:
            notes.add("row of weight 0, left out")
            found = []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"init.data {data}, line {number}: {error}") from error
        rows += found
        on_progress(1)
    if not rows:
        raise ConfigError(": ".join([f"init.data {data} has no line to learn", *notes.said()]))
    if said := notes.said():
        _log.warning("init.data %s: %s", data, "; ".join(said))
    return rows


def packed(rows: list[Row]) -> bytes:
    """Return the content of the file of rows for the ranks; `trainer.read_rows` reads it."""
    return msgspec.msgpack.encode([pack_row(row) for row in rows])


def _lines(data: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with data.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, _object(text, f"init.data {data}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"init.data {data} cannot be read: {error}") from error


def _object(text: str, said: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{said} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{said} is no JSON object")
    return found


def _of_line(
    line: Mapping[str, Any],
    chat: ChatFormat,
    notes: Notes,
    held_out: HeldOut | None,
    parsers: ParserFactory | None,
) -> Iterator[TokenRow]:
    if "input_ids" in line:
        check_row(line)
        ids, said = _labelled(line, chat)
        if held_out is not None:
            held_out.note_texts([{"role": "user", "content": chat.text(ids)}], notes)
        yield ids, said
        return
    said = conversation_of(line, notes)
    if chat.holds_rendered(said.messages):
        raise ValueError(RENDERED)
    if held_out is not None:
        held_out.note_texts(said.messages, notes)
    if parsers is not None:
        note_unread_calls(said, parsers, notes)
    try:
        chat.check_tools(said.tools)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    try:
        yield from rows_of(chat, said.messages, said.tools, learns=said.learns, notes=notes)
    except ValueError:
        spelled = with_text_arguments(said.messages)
        if spelled == said.messages:
            raise
        # some templates join arguments to other texts, as APIs send them
        yield from rows_of(chat, spelled, said.tools, learns=said.learns, notes=notes)


def _labelled(line: Mapping[str, Any], chat: ChatFormat) -> TokenRow:
    ids, labels, seen = line["input_ids"], line.get("labels"), line.get("attention_mask")
    if labels is None:
        raise ValueError("input_ids without labels: the ids to learn, and -100 elsewhere")
    for name, other in (("labels", labels), ("attention_mask", seen)):
        if other is not None and len(ids) != len(other):
            raise ValueError(f"{len(ids)} input_ids and {len(other)} {name}")
    if seen is not None and not all(seen):
        raise ValueError("attention_mask has zeros: leave the padding out of the row")
    for token, label in zip(ids, labels, strict=True):
        if not chat.knows(token):
            raise ValueError(f"token {token} is not in the model's vocabulary")
        if label not in (token, IGNORED):
            raise ValueError(
                f"label {label} of the token {token}: expected the same id, or -100 (not learned); "
                "labels are not shifted"
            )
    return list(ids), [label != IGNORED for label in labels]


def _row(ids: list[int], said: list[bool]) -> Row:
    """Return a row as if a policy had sampled it at temperature 1. The first token never trains: it
    has no context."""
    mask = np.asarray(said, np.bool_)
    mask[:1] = False
    if not mask.any():
        raise ValueError("no token to learn")
    tokens = np.asarray(ids, np.int32)
    nowhere = np.full(len(ids), -1, np.int32)
    return Row(
        tokens=tokens,
        loss_mask=mask,
        behavior_logprobs=np.zeros(len(ids), np.float32),
        policy_versions=nowhere,
        admitted_versions=nowhere,
        temperatures=mask.astype(np.float32),
        turn_ids=nowhere,
        times_s=np.zeros(len(ids)),
    )


_POLL_S = 0.2
_SHOW_S = 5.0


async def warmed_up(opened: Opened, progress: Progress) -> Config:
    """Warm the model up in RUN/init, if the run is to (`init.method`); return the configuration of
    a run that begins with it. A warm-up that was interrupted goes on from its newest checkpoint.

    Raises:
        ConfigError: the data cannot be read, would train something else, has tasks that the run
            holds out, or fits no micro-batch.
        ProcessDied: a rank failed.
    """
    config, run_dir, folder = opened.config, opened.run_dir, opened.run_dir / FOLDER
    if config.of(InitConfig).method != "sft":
        return config
    init = config.of(InitConfig)
    progress.phase(f"warming up: reading {init.data}")
    held_out = None
    if opened.evaluates:
        held_out = await asyncio.to_thread(HeldOut.of, config.env, config.rollout, config.eval)
    rows = await asyncio.to_thread(
        _prepare,
        Path(init.data),
        folder,
        opened.model_dir,
        config.gateway,
        max_tokens=config.trainer.longest_row,
        held_out=held_out,
    )
    checkpoint, done = await asyncio.to_thread(_continued, folder)
    since = f", from step {done} on" if done else ""
    progress.phase(f"warming up: {len(rows):,} rows, {init.epochs} epochs{since}")
    async with (
        LocalProcesses(
            run_dir / "logs", stop_timeout_s=config.cluster.stop_timeout_s, forks=opened.forks
        ) as ranks,
        asyncio.TaskGroup() as tasks,
    ):
        rendezvous = f"tcp://127.0.0.1:{free_port()}"
        for rank in range(config.trainer.num_ranks):
            spec = ProcessSpec(
                name=f"warm-up-{rank}",
                argv=[
                    *(sys.executable, "-m", "agentgym_rl", "warm-up"),
                    *("--config", str(opened.config_file)),
                    *("--run", str(run_dir)),
                    *("--rank", str(rank)),
                    *("--rendezvous", rendezvous),
                    *(("--resume", str(checkpoint)) if checkpoint else ()),
                ],
                env=rank_environment(config.trainer),
                finite=True,
                imports=rank_imports(config.trainer),
            )
            await ranks.start(spec)
        watch = tasks.create_task(ranks.watch(), name="watch warm-up")
        limit_s = config.trainer.batch_timeout_s
        await _follow(watch, folder / STEPS, progress, limit_s=limit_s, done=done)
    losses = [parse_json(step)["loss"] for step in _steps(folder / STEPS)]
    progress.phase(f"warmed up: loss {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps")
    name = model_name(config.model, config.env.id)
    await asyncio.to_thread(_record, init, name, run_dir, rows)
    model = config.model.model_copy(update={"path": str(folder / MODEL), "revision": None})
    return config.model_copy(update={"model": model, "init": InitConfig()})


def _prepare(
    data: Path,
    folder: Path,
    model_dir: Path,
    gateway: GatewayConfig,
    *,
    max_tokens: int,
    held_out: HeldOut | None,
) -> list[Row]:
    """Return the rows, after writing them to `folder` for the ranks. What a warm-up on other rows
    has left there is removed."""
    chat = ChatFormat.load(model_dir, gateway)
    parsers, _ = readers_of(chat, gateway)
    rows = token_rows(data, chat, max_tokens=max_tokens, held_out=held_out, parsers=parsers)
    written = packed(rows)
    if (folder / ROWS).exists() and (folder / ROWS).read_bytes() == written:
        return rows
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with replacing(folder / ROWS) as part:
        part.write_bytes(written)
    return rows


def _continued(folder: Path) -> tuple[Path | None, int]:
    """Return the newest checkpoint of an interrupted warm-up and its number of steps, after cutting
    the file of steps to it; None and 0: the warm-up begins from the start."""
    try:
        checkpoint = newest_checkpoint(folder / CHECKPOINTS)
    except TrainerError as error:
        _log.warning("the warm-up begins again: %s", error)
        checkpoint = None
    done = read_manifest(checkpoint).step if checkpoint else 0
    lines = _steps(folder / STEPS)[:done]
    (folder / STEPS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return checkpoint, done


def _record(init: InitConfig, model: str, run_dir: Path, rows: Sequence[Row]) -> None:
    """Record how the model was made from `model`. Delete the rows, since the data is kept, and the
    checkpoints."""
    folder = run_dir / FOLDER
    (folder / ROWS).unlink()
    remove(folder / CHECKPOINTS)
    data = Path(init.data).resolve()
    about = {
        "model": model,
        **init.model_dump(),
        "data": str(data),
        "data_hash": blake2b(data.read_bytes(), digest_size=16).hexdigest(),
        "rows": len(rows),
        "tokens": sum(row.num_trained for row in rows),
        "checksums": checksums(sorted((folder / MODEL).iterdir())),
    }
    text = json.dumps(about, indent=2) + "\n"
    (run_dir / WARMED_UP).write_text(text, encoding="utf-8")


async def _follow(
    ranks: asyncio.Task[None],
    steps_file: Path,
    progress: Progress,
    *,
    limit_s: float,
    done: int = 0,
) -> None:
    """Show the progress of the steps after the first `done`, with the time left, until the ranks
    have ended.

    Raises:
        TimeoutError: neither a step nor the end came within `limit_s`.
    """
    loop = asyncio.get_running_loop()
    seen, told, last, shown = done, done, loop.time(), loop.time()
    first: tuple[int, float] | None = None
    while not ranks.done():
        await asyncio.wait([ranks], timeout=_POLL_S)
        steps, now = _steps(steps_file), loop.time()
        if len(steps) > seen:
            seen, last = len(steps), now
            first = first or (seen, now)
        if now - last > limit_s:
            raise TimeoutError(
                f"the warm-up made no step in {limit_s:g} s (trainer.batch_timeout_s)"
            )
        if first and seen > told and now - shown > _SHOW_S:
            told, shown, step = seen, now, parse_json(steps[-1])
            done_text = f"{step['step'] + 1} of {step['steps']} steps"
            left = _left(first, (seen, last), int(step["steps"]))
            progress.phase(f"warming up: {done_text}, loss {step['loss']:.3f}{left}")


def _left(first: tuple[int, float], last: tuple[int, float], total: int) -> str:
    """Return the time that the steps after the `last` one take at the pace since the `first`, each
    a number of steps and a time: ", eta 90 s"; "" until there are two."""
    (since, began_s), (done, now_s) = first, last
    if done <= since:
        return ""
    return f", eta {(total - done) * (now_s - began_s) / (done - since):.0f} s"


def _steps(path: Path) -> list[str]:
    """Return the complete lines, each a JSON object."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    return []
