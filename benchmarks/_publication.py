"""The costs of a publication: bytes, seconds, and the memory of every process, by model, transport
and number of ranks: the part "publication" of `arl bench weights`.

Trainer ranks without an optimizer load a model, and publish two versions of it, whose weights all
differ. Their peak is measured over both publications, after the model was loaded; the times are
those of the second one. Over `shm`, a small model goes from one rank to an embedded engine, which
samples nothing; all else goes to a process that only stages it, as an engine does. Versions are in
shared memory, those of the large model in the system's temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ._kept import keep_row, read_rows, rows_file
from ._memory import begin_peak, memory

DEADLINE_S = 900
LARGE = "1.3B"
SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""The folder of versions, except large ones, which would need too much memory in addition to the
processes. Names in it must not begin with "arl-": runs remove such folders of dead ones, and empty
ones."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model in the dtype in which engines hold it, over a transport, from some ranks."""

    model: str
    """ "1.3B": a random Qwen3, whose masters are in bfloat16, too; other masters are in float32."""
    dtype: str
    transport: str
    ranks: int

    @property
    def is_large(self) -> bool:
        """Return whether the model is too large for an engine to be started."""
        return self.model == LARGE

    @property
    def serves(self) -> bool:
        """Return whether it goes to an engine."""
        return self.transport == "shm" and not self.is_large and self.ranks == 1


def cases(model: str, dtypes: Sequence[str]) -> list[Case]:
    """Return the cases of a model."""
    return [
        Case(model, dtype, transport, ranks)
        for dtype in dtypes
        for transport in ("shm", "gloo")
        for ranks in (1, 2)
    ]


def measured(folder: Path | None, *, large: bool) -> list[dict[str, Any]]:
    """Measure the cases of the real model in `folder`, if there is one, and, if requested, those of
    the `large` one; return a row for each. Rows that ARL_BENCH_ROWS keeps are not measured again.
    """
    from ._common import say

    found = cases("135M", ("float32", "bfloat16")) if folder else []
    found += cases(LARGE, ("bfloat16",)) if large else []
    file = rows_file()
    kept = {_key(row): row for row in read_rows(file)}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        made = Path(scratch) / LARGE
        for case in found:
            row = kept.get(_key(asdict(case)))
            if row is None:
                say(f"publication of {case.model} in {case.dtype}: {case.transport}, {case.ranks}")
                if case.is_large and not made.exists():
                    random_model(made)
                place = made if case.is_large else folder
                assert place is not None
                row = measure(case, place)
                keep_row(file, row)
            rows.append(row)
    return rows


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(field.name) for field in fields(Case))


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Measure one case with the model in `folder`; return its row."""
    with contextlib.ExitStack() as stack:
        place = None if case.is_large else SCRATCH
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=place))
        url, pid = "", 0
        if case.serves:
            # not above: its imports are more than a receiver's
            from ._common import engine_process, model_config

            overrides = [("engine.dtype", case.dtype), ("engine.max_model_len", 512)]
            url, pid = stack.enter_context(engine_process(model_config(folder, overrides)))
            begin_peak(pid)
        arguments = [str(folder), scratch, case.dtype, case.transport, str(case.ranks), url]
        if case.is_large:
            arguments.append("large")
        ranks = [_child(stack, "rank", str(rank), *arguments) for rank in range(case.ranks)]
        receiver = None if url else _child(stack, "receiver", *arguments)
        first, *others = [_result(child) for child in ranks]
        receives = memory(pid=pid) if pid else _result(receiver)["peak"]
    return {
        **asdict(case),
        "to": "embedded engine" if url else "a process that stages",
        "bytes": first["bytes"],
        "write_s": round(first["write_s"], 2),
        "send_s": round(first["send_s"], 2),
        "pause_ms": round(first["pause_s"] * 1e3) if url else None,
        "rank_0_before_gb": _gb(first["before"]),
        "rank_0_gb": _gb(first["peak"]),
        "other_rank_gb": _gb(max(it["peak"] for it in others)) if others else None,
        "receiver_gb": _gb(receives),
        "load": round(os.getloadavg()[0], 1),
    }


def _gb(size: int) -> float:
    return round(size / 1e9, 2)


def _child(stack: contextlib.ExitStack, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks._publication", "--child", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    stack.callback(child.wait)
    stack.callback(child.kill)
    return child


def _result(child: subprocess.Popen[str] | None) -> dict[str, Any]:
    assert child is not None
    out, _ = child.communicate(timeout=DEADLINE_S)
    if child.returncode:
        raise RuntimeError(f"{child.args} ended with {child.returncode}")
    return json.loads(out.splitlines()[-1])


# ------------------------------------------------------------------ the processes


def rank_process(rank: str, arguments: Sequence[str]) -> None:
    """Load the model as one rank; publish two versions; print their costs."""
    from agentgym_rl.config import load_config
    from agentgym_rl.runtime import give_back_memory
    from agentgym_rl.trainer import join_world

    folder, scratch, dtype, transport, size, url, *large = arguments
    torch.set_num_threads(1)
    with join_world(
        rank=int(rank), size=int(size), rendezvous=f"file://{scratch}/meet", timeout_s=DEADLINE_S
    ) as world:
        master = torch.bfloat16 if large else torch.float32
        policy = bare_policy(Path(folder), world, master)
        kind = "embedded" if url else "vllm"
        engine = load_config(overrides={"engine.type": kind, "engine.dtype": dtype}).own_engine
        out = make_way_out(policy, Path(scratch), engine, transport, url)
        change(policy, by=1.0)  # their files are read only now
        give_back_memory()
        world.barrier()
        begin_peak()
        before, found = memory("VmRSS"), {}
        for version in (1, 2):
            change(policy, by=1.01)
            found = out(version)
        print(json.dumps({"before": before, "peak": memory(), **found}))


@torch.no_grad()
def change(policy: Any, *, by: float) -> None:
    """Multiply all weights."""
    for parameter in policy.model.parameters():
        parameter.mul_(by)


def bare_policy(folder: Path, world: Any, dtype: torch.dtype) -> Any:
    """Return a sharded policy that can only be published: it was not tried for training."""
    from agentgym_rl.config import TrainerConfig
    from agentgym_rl.trainer import Policy
    from agentgym_rl.trainer.sharding import shard
    from agentgym_rl.weights import load_whole

    class Bare(Policy):
        def __init__(self) -> None:
            self.model, self.names = load_whole(folder, dtype=dtype)
            self.world, self.adapter, self._pieces = world, None, None
            shard(self.model, world, "float32", TrainerConfig())

    return Bare()


def make_way_out(policy: Any, scratch: Path, engine: Any, transport: str, url: str) -> Any:
    """Return a function that publishes a version of `policy`, and returns the costs."""
    from agentgym_rl.trainer.publication import VersionWriter
    from agentgym_rl.weights import fingerprint, kinds_of

    shared = scratch / "versions"
    shared.mkdir(exist_ok=True)
    files = VersionWriter(policy, shared, engine=engine, keep=2 if transport == "shm" else 1)
    group: list[Any] = []

    def out(version: int) -> dict[str, float]:
        start = time.monotonic()
        stored = files.write(version).stored
        written = time.monotonic()
        if stored is None:
            return {}
        if transport == "shm":
            pause_s = publish(stored, shared, version, url, scratch, stored.path)
        else:
            kinds = kinds_of(stored)
            announce(scratch, version, kinds, fingerprint(stored))
            group or group.append(meet(scratch, 0))
            group[0].send(stored, timeout_s=DEADLINE_S)
            pause_s = 0.0
        times = {"write_s": written - start, "send_s": time.monotonic() - written}
        return {"bytes": stored.total_size, "pause_s": pause_s, **times}

    return out


def publish(tensors: Any, shared: Path, version: int, url: str, scratch: Path, path: Path) -> float:
    """Make the engine serve the version, or the receiver stage it; return the pause."""
    if not url:
        (scratch / f"path-{version}.tmp").write_text(str(path))
        (scratch / f"path-{version}.tmp").rename(scratch / f"path-{version}")
        wait_for(scratch / f"staged-{version}")
        return 0.0
    from agentgym_rl.weights import Publisher, SharedFiles
    from tests.kit.publishing import publish_now

    transport = SharedFiles(shared)
    if tensors is None:
        transport.path = path
    else:
        transport.prepare(version, tensors)
    publisher = Publisher(
        transport=transport, interrupt="keep", timeout_s=DEADLINE_S, polls_staging=False
    )
    return publish_now(publisher, {"engine": url}, version).pause_s


def announce(scratch: Path, version: int, kinds: Any, fingerprint: str) -> None:
    """Send the receiver the description of the next version."""
    arguments = {
        "names": list(kinds),
        "dtypes": [str(kind.dtype).removeprefix("torch.") for kind in kinds.values()],
        "shapes": [list(kind.shape) for kind in kinds.values()],
        "fingerprint": fingerprint,
    }
    (scratch / f"path-{version}.tmp").write_text(json.dumps(arguments))
    (scratch / f"path-{version}.tmp").rename(scratch / f"path-{version}")


def meet(scratch: Path, rank: int) -> Any:
    """Join the broadcast group of rank 0 and the receiver."""
    from arl_gloo.broadcast import BroadcastGroup

    if rank == 0:
        from agentgym_rl.cluster import free_port

        port = free_port()
        (scratch / "port.tmp").write_text(str(port))
        (scratch / "port.tmp").rename(scratch / "port")
    port = int(wait_for(scratch / "port"))
    return BroadcastGroup(
        address="127.0.0.1", port=port, rank=rank, world_size=2, timeout_s=DEADLINE_S
    )


def wait_for(path: Path) -> str:
    """Wait for a file; return its text."""
    end = time.monotonic() + DEADLINE_S
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path} did not come within {DEADLINE_S} s")
        time.sleep(0.01)
    return path.read_text()


def receiver_process(arguments: Sequence[str]) -> None:
    """Stage two versions, as an engine does; print the peak of memory in addition to the
    imports."""
    _, name, _, transport, *_ = arguments
    scratch, group = Path(name), None
    torch.set_num_threads(1)
    staged: Any = None
    for version in (1, 2):
        text = wait_for(scratch / f"path-{version}")
        staged = None
        if transport == "shm":
            staged = read_staged(Path(text))
        else:
            group = group or meet(scratch, 1)
            it = json.loads(text)
            dtypes = [getattr(torch, dtype) for dtype in it["dtypes"]]
            staged = group.receive(it["names"], dtypes, it["shapes"], it["fingerprint"])
        (scratch / f"staged-{version}").touch()
    assert staged
    print(json.dumps({"peak": memory()}))


def read_staged(path: Path) -> Any:
    """Read and verify a version."""
    from agentgym_rl.weights import opened_version

    with opened_version(path) as tensors:
        return dict(tensors)


def large_model() -> Any:
    """Return a random Qwen3 of 1.3B parameters, on the device "meta"."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = Qwen3Config(
        vocab_size=4096,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=26,
        num_attention_heads=32,
        num_key_value_heads=16,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    shape.dtype = "bfloat16"
    shape.architectures = ["Qwen3ForCausalLM"]
    with torch.device("meta"):
        return Qwen3ForCausalLM(shape)


def random_model(folder: Path) -> None:
    """Save the large model in bfloat16, one tensor after the other."""
    from agentgym_rl.weights import KnownKinds, save_tensors
    from agentgym_rl.weights.files import Kind

    model = large_model()
    parameters = dict(model.named_parameters())

    class Random(KnownKinds):
        def kinds(self) -> dict[str, Kind]:
            return {n: Kind(torch.bfloat16, tuple(p.shape)) for n, p in parameters.items()}

    def read(name: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(len(name))
        return (torch.randn(parameters[name].shape, generator=generator) * 0.02).bfloat16()

    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    save_tensors(Random(parameters, read), folder / "model.safetensors")


if __name__ == "__main__":
    _, kind, *arguments = sys.argv[1:]
    rank_process(arguments[0], arguments[1:]) if kind == "rank" else receiver_process(arguments)
