"""Compare the replies of `arl eval` at temperature 0 with those of transformers' `generate`:

    arl eval --config examples/gsm8k.toml ... --eval.temperature=0 --out KEPT
    python scripts/against_generate.py KEPT [--rows N] [--batch N] [--out FILE]

Prompts are rendered by transformers' `apply_chat_template` from the messages of each episode, and
replies are graded by the environment of KEPT. Two greedy decoders may differ where two tokens have
almost the same probability: for each reply that differs, the first other token is shown with the
difference of the two log-probs under transformers. Results are appended to FILE, by default
KEPT/generate.jsonl, one line a row; a repeated command continues. Exit code: 0 if all differences
are ties, 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym_rl.config import Config, load_config
from agentgym_rl.core import ConfigError, Task, Trajectory
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models import model_folder
from agentgym_rl.rollout import env_spec
from agentgym_rl.rollout.factory import services
from agentgym_rl.storage import EpisodeReader

TIE = 1e-3
"""The largest difference of two log-probs that counts as a tie: float32 kernels agree to 1e-4."""


class Generated:
    """A model and tokenizer of transformers, as a user would load them."""

    def __init__(self, folder: Path, *, max_tokens: int, stop_ids: Sequence[int]) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.stop_ids = list(stop_ids)
        self._max_tokens = max_tokens

    def prompt(self, episode: Trajectory) -> list[int]:
        """Return the tokens of the messages before the reply."""
        return self.tokenizer.apply_chat_template(
            list(episode.messages[:-1]),
            tools=list(episode.tools) or None,
            add_generation_prompt=True,
            return_dict=True,
        )["input_ids"]

    @torch.inference_mode()
    def replies(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        """Return the tokens of the greedy replies, up to the one that ends a turn."""
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        found = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=self._max_tokens,
            do_sample=False,
            eos_token_id=self.stop_ids,
            pad_token_id=self.stop_ids[0],
        )
        return [self._ended(row) for row in found[:, width:].tolist()]

    def _ended(self, ids: list[int]) -> list[int]:
        ends = [at for at, id in enumerate(ids) if id in self.stop_ids]
        return ids[: ends[0] + 1] if ends else ids

    @torch.inference_mode()
    def gap(self, context: list[int], one: int, other: int) -> float:
        """Return the difference of the log-probs of two tokens behind `context`."""
        logits = self.model(torch.tensor([context])).logits[0, -1]
        return abs(float(logits[one] - logits[other]))

    def text(self, ids: list[int]) -> str:
        """Return the text of a reply without the token that ends it."""
        return self.tokenizer.decode([id for id in ids if id not in self.stop_ids])


def compared(model: Generated, episode: Trajectory, prompt: list[int], theirs: list[int]) -> Any:
    """Return the row of an episode: whether the tokens are equal, and the first difference."""
    row = episode.rows[0]
    sampled = np.flatnonzero(row.turn_ids >= 0)
    ours = row.tokens[sampled].tolist()
    if row.tokens[: sampled[0]].tolist() != prompt:
        return {"task_id": episode.task_id, "equal": False, "why": "another prompt"}
    found: dict[str, Any] = {"task_id": episode.task_id, "equal": ours == theirs}
    if ours != theirs:
        at = next(
            (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
            None,
        )
        if at is None:
            return {**found, "why": f"{len(ours)} tokens, and theirs are {len(theirs)}"}
        words = [model.tokenizer.decode([ids[at]]) for ids in (ours, theirs)]
        gap = model.gap([*prompt, *ours[:at]], ours[at], theirs[at])
        found |= {"at": at, "ours": words[0], "theirs": words[1], "gap": gap}
    return found


async def graded(config: Config, tasks: Sequence[Task], texts: Sequence[str]) -> list[float]:
    """Return the reward of each text as the reply to its task."""
    spec = env_spec(config.env, config.rollout)
    rewards: list[float] = []
    async with services(spec, config.sandbox, config.verifier_options) as given:
        env = spec.make()
        try:
            for task, text in zip(tasks, texts, strict=True):
                await env.reset(seed=task.seed, options={"task": task, **given.options(env)})
                step = await env.step({"role": "assistant", "content": text})
                rewards.append(step.reward)
        finally:
            await env.close()
    return rewards


def episodes_of(reader: EpisodeReader, done: set[str]) -> Iterator[tuple[Trajectory, Task]]:
    """Yield the kept episodes that are not compared yet.

    Raises:
        ConfigError: an episode has several turns, or no tokens.
    """
    for name in reader.episode_ids(untrained=True):
        episode = reader.trajectory(name)
        if episode.task_id in done:
            continue
        if episode.num_turns != 1 or not episode.rows:
            raise ConfigError(
                f"{name} has {episode.num_turns} turns and {len(episode.rows)} rows of tokens: "
                "compare one reply of an own engine (--agent single_turn)"
            )
        yield episode, reader.task(episode.task_id)


def compare(kept: Path, out: Path, *, most: int, batch: int) -> None:
    """Append the rows that are missing in `out`, up to `most` in all.

    Raises:
        ConfigError: KEPT is no such evaluation.
    """
    config = load_config(kept / "config.toml")
    if config.eval.temperature != 0 or config.eval.samples_per_task != 1:
        raise ConfigError(f"{kept}: evaluate with --eval.temperature=0, each task once")
    done = {row["task_id"] for row in rows_of(out)}
    folder = model_folder(config.model, config.env.id)
    with contextlib.closing(EpisodeReader(kept / "episodes.db")) as reader:
        waiting = list(episodes_of(reader, done))[: max(0, most - len(done))]
    if not waiting:
        return
    stop_ids = ChatFormat.load(folder).stop_token_ids
    model = Generated(folder, max_tokens=config.rollout.max_tokens, stop_ids=stop_ids)
    prompted = sorted(((model.prompt(each[0]), *each) for each in waiting), key=lambda x: len(x[0]))
    begun = time.monotonic()
    for start in range(0, len(prompted), batch):
        prompts, episodes, tasks = zip(*prompted[start : start + batch], strict=True)
        replies = model.replies(prompts)
        texts = [model.text(ids) for ids in replies]
        rewards = asyncio.run(graded(config, tasks, texts))
        with out.open("a", encoding="utf-8") as file:
            for prompt, episode, ids, reward in zip(
                prompts, episodes, replies, rewards, strict=True
            ):
                row = compared(model, episode, prompt, ids)
                row |= {"reward_ours": episode.reward, "reward_theirs": reward, "tokens": len(ids)}
                file.write(json.dumps(row) + "\n")
        finished = start + len(prompts)
        left_s = (time.monotonic() - begun) / finished * (len(prompted) - finished)
        print(f"{len(done) + finished} rows, {left_s:.0f} s left", file=sys.stderr, flush=True)


def rows_of(out: Path) -> list[dict[str, Any]]:
    """Return the rows compared so far."""
    if not out.exists():
        return []
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def report(rows: Sequence[dict[str, Any]]) -> bool:
    """Print the comparison; return whether every difference is a tie."""
    different = [row for row in rows if not row["equal"]]
    for row in different:
        shown = row.get("why") or (
            f"token {row['at']}: {row['ours']!r}, theirs {row['theirs']!r}, log-probs differ by "
            f"{row['gap']:.1e}"
        )
        print(
            f"{row['task_id']}: {shown}; rewards {row['reward_ours']:g}, {row['reward_theirs']:g}"
        )
    ours, theirs = (sum(row[f"reward_{who}"] for row in rows) for who in ("ours", "theirs"))
    graded_alike = sum(row["reward_ours"] == row["reward_theirs"] for row in rows)
    print(
        f"{len(rows):,} rows: {len(rows) - len(different):,} equal replies, {graded_alike:,} equal "
        f"rewards; {ours:g} right, and {theirs:g} by generate"
    )
    return all(row.get("gap", 1.0) <= TIE for row in different)


def main() -> int:
    """Compare, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kept", type=Path, help="the folder of arl eval --out")
    parser.add_argument("--rows", type=int, default=1_000_000, help="at most this many (all)")
    parser.add_argument("--batch", type=int, default=1, help="rows generated at once (1)")
    parser.add_argument("--out", type=Path, help="default: KEPT/generate.jsonl")
    args = parser.parse_args()
    out = args.out or args.kept / "generate.jsonl"
    try:
        compare(args.kept, out, most=args.rows, batch=args.batch)
    except ConfigError as error:
        print(f"against_generate: {error}", file=sys.stderr)
        return 2
    return 0 if report(rows_of(out)) else 1


if __name__ == "__main__":
    sys.exit(main())
