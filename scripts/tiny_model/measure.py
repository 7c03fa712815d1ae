"""The measurement of a model folder on its family's held-out tasks: reward and format.

python scripts/tiny_model/measure.py --model DIR --family math --tasks 1024
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from families import FAMILIES
from family import PAD, TURN_END, Family
from tokenizer import render, token_id
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from agentgym_rl import make_sandbox
from agentgym_rl.core import Message, Task
from agentgym_rl.gym import Env, SandboxBackend, registry

CONTEXT = 512
"""The default context of `arl train`; a conversation that outgrows it is over."""
_ILLEGIBLE = ("unparseable", "no_code")
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(slots=True)
class Episode:
    """An episode: the exact tokens so far, and its end."""

    env: Env
    messages: list[Message]
    ids: list[int]
    reward: float = 0.0
    is_well_formed: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """The means over episodes."""

    reward: float
    well_formed: float
    """The share of episodes whose last turn was complete and readable by the environment, right or
    wrong."""
    turns: float
    tool_calls: float


def measure(
    network: Any,
    tokenizer: PreTrainedTokenizerFast,
    family: Family,
    *,
    num_tasks: int,
    temperature: float,
    seed: int = 0,
    batch_size: int = 256,
) -> Score:
    """Play `num_tasks` held-out tasks of the family; temperature 0 is greedy.

    Deterministic by `seed`, which picks both the tasks and the sampled tokens.
    """
    torch.manual_seed(seed)
    tasks = registry.spec(family.env).task_source("eval", seed=seed, **family.options)

    async def play() -> Score:
        player = _Player(network, tokenizer, family, temperature)
        totals = [0.0, 0.0, 0.0, 0.0]
        async with contextlib.AsyncExitStack() as stack:
            if family.needs_sandboxes:
                player.sandboxes = await stack.enter_async_context(make_sandbox("local"))
            for start in range(0, num_tasks, batch_size):
                batch = [tasks[i] for i in range(start, min(start + batch_size, num_tasks))]
                for i, value in enumerate(await player.play(batch)):
                    totals[i] += value
        return Score(*(total / num_tasks for total in totals))

    return asyncio.run(play())


@dataclass(slots=True)
class _Player:
    network: Any
    tokenizer: PreTrainedTokenizerFast
    family: Family
    temperature: float
    sandboxes: SandboxBackend | None = None

    async def play(self, tasks: list[Task]) -> tuple[float, int, int, int]:
        """Return the sums of rewards, well-formed ends, turns and tool calls over episodes."""
        episodes = [await self._begin(task) for task in tasks]
        turns = calls = 0
        while live := [e for e in episodes if not e.is_over]:
            replies = _sample(
                self.network,
                self.tokenizer,
                [e.ids for e in live],
                self.temperature,
                most=self.family.max_tokens,
            )
            turns += len(live)
            for episode, reply in zip(live, replies, strict=True):
                calls += await self._advance(episode, reply)
        well_formed = sum(e.is_well_formed for e in episodes)
        return sum(e.reward for e in episodes), well_formed, turns, calls

    async def _begin(self, task: Task) -> Episode:
        env = registry.spec(self.family.env).make(**self.family.options)
        options: dict[str, Any] = {"task": task}
        if self.sandboxes is not None:
            options["sandboxes"] = self.sandboxes
        messages, _ = await env.reset(seed=task.seed, options=options)
        text = render(self.tokenizer, messages, env.tools, generate=True)
        return Episode(env, list(messages), self.tokenizer.encode(text, add_special_tokens=False))

    async def _advance(self, episode: Episode, reply: list[int]) -> int:
        """Pass a sampled turn to the environment and append its result; count tool calls.

        The reply's tokens are kept as sampled; only the text after them is encoded.
        """
        said = str(self.tokenizer.decode(reply))
        ended = said.endswith(TURN_END)
        said = said.removesuffix(TURN_END)
        action = _parsed(said)
        step = await episode.env.step(action)
        episode.reward += step.reward
        illegible = step.info.get("invalid_action") or step.info.get("verifier") in _ILLEGIBLE
        episode.is_over = step.terminated or step.truncated
        episode.is_well_formed = ended and not illegible
        tools = episode.env.tools
        before = render(self.tokenizer, episode.messages, tools, generate=True) + said
        episode.messages += [{"role": "assistant", "content": said}, *step.observation]
        suffix = render(self.tokenizer, episode.messages, tools, generate=True)[len(before) :]
        suffix = suffix.removeprefix(TURN_END) if ended else suffix
        episode.ids += reply + self.tokenizer.encode(suffix, add_special_tokens=False)
        episode.is_over |= len(episode.ids) >= CONTEXT
        return len(action.get("tool_calls", ()))


def _parsed(text: str) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    for i, body in enumerate(_CALL.findall(text)):
        try:
            call = json.loads(body)
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        except (ValueError, KeyError, TypeError):
            function = {"name": "", "arguments": body}
        calls.append({"id": f"call_{i}", "type": "function", "function": function})
    return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


@torch.inference_mode()
def _sample(
    network: Any,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    temperature: float,
    *,
    most: int,
) -> list[list[int]]:
    """Return a reply to each prompt, of at most `most` tokens including its end-of-turn token."""
    pad, end = token_id(tokenizer, PAD), token_id(tokenizer, TURN_END)
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    how: dict[str, Any] = {"do_sample": False, "temperature": None}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    out = network.generate(input_ids=ids, attention_mask=mask, max_new_tokens=most, **how)
    replies = [row[width:] for row in out.tolist()]
    return [reply[: reply.index(end) + 1] if end in reply else reply for reply in replies]


def measure_folder(folder: Path, family: Family, *, num_tasks: int, seed: int = 0) -> Iterator[str]:
    """Return a line of figures, sampled and greedy, for a model folder, computed in float32."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, temperature in (("sampled T=1", 1.0), ("greedy", 0.0)):
        score = measure(
            network, tokenizer, family, num_tasks=num_tasks, temperature=temperature, seed=seed
        )
        yield (
            f"{name:<12} reward {score.reward:.3f}  format {score.well_formed:.3f}  "
            f"turns {score.turns:.1f}  tool calls {score.tool_calls:.2f}  (n={num_tasks})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--family", choices=FAMILIES, default="math")
    parser.add_argument("--tasks", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for line in measure_folder(
        options.model, FAMILIES[options.family], num_tasks=options.tasks, seed=options.seed
    ):
        print(line, flush=True)


if __name__ == "__main__":
    main()
