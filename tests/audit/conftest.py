"""Small runs with real log-probs: the bundled model, in versions that differ."""

import asyncio
import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from arl_embedded.module_decoder import cache_argument
from transformers import AutoModelForCausalLM, DynamicCache, Llama4TextConfig

from agentgym_rl.cli import main as cli
from agentgym_rl.config import Config, dump_toml
from agentgym_rl.core import Group, Outcome, Row, StepReport, Task, Trajectory
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.storage import EpisodeLog
from agentgym_rl.weights import write_version

STEPS = 3


# ---------------------------------------------------------------- a policy that changes
class Policy:
    """A model, by default the bundled one, in versions 0 to 3, each a step from the one before."""

    def __init__(self, folder: Path = BUNDLED) -> None:
        self.folder = folder
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        rng = torch.Generator().manual_seed(5)
        self.states = [{k: p.detach().clone() for k, p in self.model.named_parameters()}]
        for _ in range(STEPS):
            last = self.states[-1]
            moved = {k: p + 0.03 * torch.randn(p.shape, generator=rng) for k, p in last.items()}
            self.states.append(moved)

    def load(self, version: int) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(self.states[version][name])

    @torch.no_grad()
    def sample(self, turns, temperature=1.0, *, old_kv=False, seed=0) -> Row:
        """A row; `turns` are the versions of each turn's tokens, with context before each.

        KV is that of each token's own version, unless `old_kv` keeps what was computed.
        """
        rng = np.random.default_rng(seed)
        tokens, columns, cache = [], [], DynamicCache()
        for turn, versions in enumerate(turns):
            tokens += rng.integers(5, 200, 6).tolist()
            columns += [(False, 0.0, -1, -1, 0.0, -1)] * 6
            for version in versions:
                self.load(version)
                cache = cache if old_kv else DynamicCache()
                fed = torch.tensor([tokens[cache.get_seq_length() :]])
                out = self.model(fed, **{cache_argument(self.model): cache})
                logprobs = torch.log_softmax(out.logits[0, -1] / temperature, -1)
                tokens.append(int(rng.choice(len(logprobs), p=_normal(logprobs.exp().numpy()))))
                row = (True, float(logprobs[tokens[-1]]), version, versions[0], temperature, turn)
                columns.append(row)
        return _row(tokens, columns)

    @torch.no_grad()
    def raw(self, row: Row) -> np.ndarray:
        """Log-probs of every token at temperature 1, under the version of its last one."""
        self.load(int(row.policy_versions[-1]))
        logits = self.model(torch.from_numpy(row.tokens.astype(np.int64))[None]).logits[0, :-1]
        found = torch.log_softmax(logits, -1).gather(1, torch.tensor(row.tokens[1:, None]).long())
        return np.concatenate([[0.0], found[:, 0].numpy()]).astype(np.float32)


def _normal(weights: np.ndarray) -> np.ndarray:
    return weights.astype(np.float64) / weights.sum(dtype=np.float64)


def _row(tokens, columns) -> Row:
    names = ("loss_mask", "behavior_logprobs", "policy_versions", "admitted_versions")
    names += ("temperatures", "turn_ids")
    types = (np.bool_, np.float32, np.int32, np.int32, np.float32, np.int32)
    arrays = {
        n: np.array(column, kind)
        for n, column, kind in zip(names, zip(*columns, strict=True), types, strict=True)
    }
    return Row(np.array(tokens, np.int32), times_s=np.zeros(len(tokens)), **arrays)


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.set_num_threads(1)
    return Policy()


@pytest.fixture
def chunked(tmp_path) -> Policy:
    """A model whose tokens attend to chunks of 12."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    sizes |= {"intermediate_size": 48, "intermediate_size_mlp": 48, "num_key_value_heads": 2}
    config = Llama4TextConfig(
        vocab_size=256,
        num_local_experts=2,
        attention_chunk_size=12,
        no_rope_layers=[1, 1],
        max_position_embeddings=8192,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        **sizes,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED / file, tmp_path / "model")
    return Policy(tmp_path / "model")


@pytest.fixture(scope="module")
def rows(policy) -> list[Row]:
    """Rows 1 and 2 span an update; rows 1 and 3 are sampled at temperature 0.7."""
    return [
        policy.sample([[0] * 8], seed=1),
        policy.sample([[0] * 4 + [1] * 6], 0.7, seed=2),
        policy.sample([[1] * 6, [1] * 3 + [2] * 5], seed=3),
        policy.sample([[2] * 8], 0.7, seed=4),
    ]


@pytest.fixture(scope="module")
def mixed(policy) -> Row:
    """Sampled by versions 1 and 2, by the latter on the KV of the former."""
    return policy.sample([[1] * 5 + [2] * 7], old_kv=True, seed=5)


# ---------------------------------------------------------------- runs
@dataclass
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def run(tmp_path, policy):
    """Write a run of the given rows, one group each, trained unless it is in `waiting`."""

    def make(rows, *, waiting=(), interrupt="recompute", dtype="float32", of=policy):
        config = Config.model_validate(
            {
                "steps": STEPS,
                "rollout": {"interrupt": interrupt},
                "engine": {"dtype": dtype},
                "model": {"path": str(of.folder)},
            }
        )
        (tmp_path / "config.toml").write_text(dump_toml(config))
        (tmp_path / "weights").mkdir()
        for version, state in enumerate(of.states):
            path = write_version(tmp_path / "weights", version, state)
            path.rename(tmp_path / "weights" / f"v-{version}")
        with contextlib.closing(EpisodeLog(tmp_path / "episodes.db")) as log:
            asyncio.run(_fill(log, rows, waiting))
        return tmp_path

    return make


async def _fill(log: EpisodeLog, rows, waiting) -> None:
    for index, row in enumerate(rows):
        name = f"g{index}"
        episode = Trajectory(f"{name}-0", name, f"t{index}", Outcome.COMPLETED, 1.0, [row])
        group = Group(name, f"t{index}", [episode])
        await log.add_group(Task(f"t{index}", 0), index, group)
        if index not in waiting:
            await log.lease([group], step=1)
    await log.publish(StepReport(0, 1, {}), {})


@pytest.fixture
def arl_audit(capsys):
    def arl_audit(*argv: object) -> Ended:
        with pytest.raises(SystemExit) as end:
            cli.main(["audit", *map(str, argv)])
        return Ended(int(end.value.code or 0), *capsys.readouterr())

    return arl_audit
