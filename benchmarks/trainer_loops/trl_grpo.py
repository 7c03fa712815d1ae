"""TRL's GRPOTrainer on the math environment; run by an interpreter that has trl and agentgym-rl.

The same model, training tasks, calculator and rewards as `arl train --env math --agent react`, the
same batches (8 tasks, 8 episodes each, in 4 optimizer steps), learning rate and clipping. Prints
one JSON object; "seconds" is the time inside `GRPOTrainer.train`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from arl_envs.math.calculator import EvaluationError, one_operation
from arl_envs.math.env import MathEnv
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

from agentgym_rl.core import Task

GROUPS, GROUP_SIZE, MINIBATCHES = 8, 8, 4


def calculator(expression: str) -> str:
    """Work out an expression.

    Args:
        expression: What to work out.
    """
    try:
        return one_operation(expression)
    except EvaluationError as error:
        return f"error: {error}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    started = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.response_template = qwen3_template  # TRL does not recognize ours by its text
    # TRL describes tools in another form, which the model has never seen.
    tokenizer.chat_template = f"{{%- set tools = {_tools()} -%}}" + tokenizer.chat_template
    trainer = GRPOTrainer(
        model=args.model,
        reward_funcs=_reward,
        args=_config(args),
        train_dataset=_tasks(args.seed, args.batches * GROUPS),
        processing_class=tokenizer,
        tools=[calculator],
    )
    begun = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - begun
    trainer.save_model(args.out)
    _as_it_was(Path(args.model), Path(args.out))
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]

    found = {"seconds": seconds, "start_s": begun - started, "rewards": rewards}
    sys.__stdout__.write(json.dumps(found) + "\n")


def _config(args: argparse.Namespace) -> GRPOConfig:
    return GRPOConfig(
        output_dir=f"{args.out}-state",
        max_steps=args.batches * MINIBATCHES,
        per_device_train_batch_size=GROUPS * GROUP_SIZE // MINIBATCHES,
        steps_per_generation=MINIBATCHES,
        gradient_accumulation_steps=1,
        num_generations=GROUP_SIZE,
        num_iterations=1,
        max_completion_length=128,  # of an episode, including tool results
        generation_kwargs={"max_new_tokens": 48},  # of a turn
        max_tool_calling_iterations=3,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=3e-4,
        lr_scheduler_type="polynomial",  # linear, to a tenth
        lr_scheduler_kwargs={"power": 1.0, "lr_end": 3e-5},
        adam_beta1=0.9,
        adam_beta2=0.99,
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=args.seed,
    )


def _tools() -> str:
    return json.dumps(list(MathEnv().tools))


def _tasks(seed: int, count: int) -> Dataset:
    """Return the prompts, and the tasks as text: the rows of a data set need the same fields."""
    source = MathEnv.task_source("train", seed=seed)
    tasks = [source[i] for i in range(count)]
    return Dataset.from_list(
        [
            {
                "prompt": asyncio.run(_asked(task)),
                "task": json.dumps({"id": task.id, "seed": task.seed, "data": dict(task.data)}),
            }
            for task in tasks
        ]
    )


async def _asked(task: Task) -> list[dict[str, Any]]:
    messages, _ = await MathEnv().reset(options={"task": task})
    return [dict(message) for message in messages]


def _reward(prompts: Any, completions: Any, task: Any, **others: Any) -> list[float]:
    return asyncio.run(_rewards(completions, task))


async def _rewards(completions: Any, tasks: list[str]) -> list[float]:
    return [
        await _paid(messages[-1], text) for messages, text in zip(completions, tasks, strict=True)
    ]


async def _paid(last: dict[str, Any], task: str) -> float:
    """Return the environment's reward for the last message of an episode; a call is not an
    answer."""
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    env = MathEnv()
    await env.reset(options={"task": Task(**json.loads(task))})
    return (await env.step(last)).reward


def _as_it_was(model: Path, out: Path) -> None:
    """Restore the model's own chat template, with which it is evaluated."""
    for name in ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json"):
        (out / name).write_bytes((model / name).read_bytes())


if __name__ == "__main__":
    main()
