"""The warm-up of a run: data to rows, rows to ranks, and a configuration that begins with that.

After it `config.toml` names the warmed-up model and no `init`: whatever reads the run (engines,
ranks, `arl audit`, `arl replay`, `--resume`) finds a plain model there, and `init/warmup.json` what
it was made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from agentgym_rl.cluster.forking import Forks
from agentgym_rl.cluster.local import LocalProcesses
from agentgym_rl.cluster.spec import ProcessSpec, free_port
from agentgym_rl.config import Config, InitConfig
from agentgym_rl.core.trajectory import Row
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.models.resolve import model_folder, model_name
from agentgym_rl.report.progress import Progress
from agentgym_rl.storage.checkpoint_manifest import checksums
from agentgym_rl.storage.run_folder import WARMED_UP
from agentgym_rl.trainer.launch import rank_environment, rank_imports

from .data import token_rows, write_rows

FOLDER = "init"
ROWS, STEPS, MODEL = f"{FOLDER}/rows.msgpack", f"{FOLDER}/steps.jsonl", f"{FOLDER}/model"
"""In the run's folder."""
_POLL_S = 0.2
_SHOW_S = 2.0


async def warmed_up(
    config: Config,
    run_dir: Path,
    config_file: Path,
    progress: Progress,
    *,
    forks: Forks | None = None,
) -> Config:
    """Warm the model up in `run_dir`/init; the configuration of the run that begins with it.

    Raises:
        ConfigError: the data cannot be read or fits no micro-batch.
        ProcessDied: a rank failed.
    """
    init, model_dir = config.init, model_folder(config)
    progress.phase(f"warming up: reading {init.data}")
    rows = await asyncio.to_thread(_prepare, config, run_dir, model_dir)
    progress.phase(f"warming up: {len(rows):,} rows, {init.epochs} epochs")
    async with (
        LocalProcesses(
            run_dir / "logs", stop_timeout_s=config.cluster.stop_timeout_s, forks=forks
        ) as ranks,
        asyncio.TaskGroup() as tasks,
    ):
        for spec in _ranks(config, config_file, run_dir):
            await ranks.start(spec)
        watch = tasks.create_task(ranks.watch(), name="watch warm-up")
        await _follow(watch, run_dir / STEPS, progress, limit_s=config.trainer.batch_timeout_s)
    losses = [json.loads(step)["loss"] for step in _steps(run_dir / STEPS)]
    progress.phase(f"warmed up: loss {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps")
    await asyncio.to_thread(_record, config, run_dir, rows)
    model = config.model.model_copy(update={"path": str(run_dir / MODEL), "revision": None})
    return config.model_copy(update={"model": model, "init": InitConfig()})


def _prepare(config: Config, run_dir: Path, model_dir: Path) -> list[Row]:
    """The rows, which the ranks find in the run's folder."""
    rows = token_rows(
        Path(config.init.data),
        ChatFormat.load(model_dir),
        max_tokens=config.trainer.max_tokens_per_microbatch,
    )
    folder = run_dir / FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was given up before its first batch
    folder.mkdir()
    write_rows(rows, run_dir / ROWS)
    return rows


def _record(config: Config, run_dir: Path, rows: Sequence[Row]) -> None:
    """What the model was made of; `rows` are not kept, since the data is."""
    (run_dir / ROWS).unlink()
    data = Path(config.init.data).resolve()
    about = {
        "model": model_name(config),
        **config.init.model_dump(),
        "data": str(data),
        "data_hash": blake2b(data.read_bytes(), digest_size=16).hexdigest(),
        "rows": len(rows),
        "tokens": sum(row.num_trained for row in rows),
        "checksums": checksums(sorted((run_dir / MODEL).iterdir())),
    }
    text = json.dumps(about, indent=2) + "\n"
    (run_dir / WARMED_UP).write_text(text, encoding="utf-8")


async def _follow(
    ranks: asyncio.Task[None], steps_file: Path, progress: Progress, *, limit_s: float
) -> None:
    """Show the steps as they come, until the ranks have ended.

    Raises:
        TimeoutError: no step, nor the end, came within `limit_s`.
    """
    loop = asyncio.get_running_loop()
    seen, last, shown = 0, loop.time(), loop.time()
    while not ranks.done():
        await asyncio.wait([ranks], timeout=_POLL_S)
        steps, now = _steps(steps_file), loop.time()
        if len(steps) > seen:
            seen, last = len(steps), now
        if now - last > limit_s:
            raise TimeoutError(
                f"the warm-up made no step in {limit_s:g} s (trainer.batch_timeout_s)"
            )
        if steps and now - shown > _SHOW_S:
            shown, step = now, json.loads(steps[-1])
            done = f"{step['step'] + 1} of {step['steps']} steps"
            progress.phase(f"warming up: {done}, loss {step['loss']:.3f}")


def _ranks(config: Config, config_file: Path, run_dir: Path) -> Iterator[ProcessSpec]:
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    for rank in range(config.trainer.num_ranks):
        yield ProcessSpec(
            name=f"warm-up-{rank}",
            argv=[
                *(sys.executable, "-m", "agentgym_rl", "warm-up"),
                *("--config", str(config_file)),
                *("--run", str(run_dir)),
                *("--rank", str(rank)),
                *("--rendezvous", rendezvous),
            ],
            env=rank_environment(config),
            finite=True,
            imports=rank_imports(config),
        )


def _steps(path: Path) -> list[str]:
    """The lines that are written whole, as JSON."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    return []
