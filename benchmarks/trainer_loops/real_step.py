"""One trainer with a real model, step by step: ours, or TRL's GRPOTrainer on the same rows.

A child process of `benchmarks/_real_trainer.py`. It writes one line of JSON when the model is
loaded, and then one for each command on its standard input, so that two children can take turns:
"step" trains one batch, "flat" one whose rewards are all equal, "publish" writes a version,
"checkpoint" a checkpoint, and "logprobs" prints those of the batch. Every line has the CPU seconds
of the process, and the peak of its memory above what it held before it loaded the model.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

GROUP_SIZE = 8


class Sample(NamedTuple):
    """A row: a prompt that its group shares, and a reply."""

    prompt: list[int]
    reply: list[int]
    reward: float


def batch(args: argparse.Namespace, vocab: int, *, flat: bool = False) -> list[Sample]:
    """Return rows of random tokens, as long as word problems and their solutions."""
    draw = np.random.default_rng(0)
    samples: list[Sample] = []
    for _ in range(args.groups):
        size = int(draw.integers(90, 130))
        prompt = draw.integers(20, vocab, size).tolist()
        for member in range(GROUP_SIZE):
            if args.prompts == "own":
                prompt = draw.integers(20, vocab, size).tolist()
            length = int(np.clip(draw.lognormal(4.1, 0.5), 16, 160))
            reply = draw.integers(20, vocab, length).tolist()
            samples.append(Sample(prompt, reply, 0.0 if flat else float(member % 2)))
    return samples


class Meter:
    """A meter of the CPU seconds and peak memory of this process since the last reading."""

    def __init__(self) -> None:
        self._base = _status("VmRSS")
        self.restart()

    def restart(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # begins a new VmHWM
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def read(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu_s": time.process_time() - self._cpu,
            "wall_s": time.monotonic() - self._wall,
            "peak_bytes": _status("VmHWM") - self._base,
            "system_s": used.ru_stime,
        }


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc/self/status")


def _say(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def _words() -> Iterator[str]:
    for line in sys.stdin:
        yield line.strip()


def ours(args: argparse.Namespace) -> None:
    from agentgym_rl.config import load_config
    from agentgym_rl.trainer import join_world, make_stepper

    config = load_config(
        None,
        {
            "model.path": args.model,
            "engine.dtype": args.dtype,
            "engine.max_model_len": 1024,
            "trainer.learning_rate": args.rate,
            "trainer.num_minibatches": args.minibatches,
            "steps": 1000,
        },
    )
    meter = Meter()
    with join_world() as world, tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        stepper = make_stepper(config, world, Path(args.model))
        size = sum(p.nbytes for p in stepper.policy.model.parameters())
        _say({"weights_bytes": size, **meter.read()})
        words = OurCommands(stepper, args, Path(scratch))
        for number, word in enumerate(_words()):
            meter.restart()
            found = words.do(word, number)
            _say({**meter.read(), **found})


class OurCommands:
    """The commands of our trainer."""

    def __init__(self, stepper: Any, args: argparse.Namespace, scratch: Path) -> None:
        self._stepper, self._args, self._scratch = stepper, args, scratch

    def do(self, word: str, number: int) -> dict[str, Any]:
        match word:
            case "step" | "flat":
                return self._train(number, flat=word == "flat")
            case "publish":
                return self._publish(number)
            case "checkpoint":
                return self._checkpoint(number)
            case "logprobs":
                return self._logprobs(number)
        raise ValueError(word)

    def _shard(self, number: int, *, flat: bool) -> Any:
        from agentgym_rl.core import NOT_SAMPLED, BatchRow, BatchShard, Row

        samples = batch(self._args, self._stepper.policy.vocab_size, flat=flat)
        items: list[BatchRow] = []
        for episode, (prompt, reply, _) in enumerate(samples):
            sampled = np.repeat([False, True], [len(prompt), len(reply)])
            version = np.where(sampled, number, NOT_SAMPLED).astype(np.int32)
            row = Row(
                tokens=np.asarray(prompt + reply, np.int32),
                loss_mask=sampled,
                behavior_logprobs=np.where(sampled, -11.0, 0).astype(np.float32),
                policy_versions=version,
                admitted_versions=version,
                temperatures=sampled.astype(np.float32),
                turn_ids=np.where(sampled, 0, -1).astype(np.int32),
                times_s=np.zeros(len(sampled)),
            )
            items.append(BatchRow(row, episode))
        parts = self._args.minibatches
        return BatchShard(
            step=number,
            rewards=[sample.reward for sample in samples],
            group_ids=[f"g{i // GROUP_SIZE}" for i in range(len(samples))],
            num_trained_tokens=sum(len(sample.reply) for sample in samples),
            num_episodes=len(samples),
            minibatches=[items[part::parts] for part in range(parts)],
            lengths=[len(sample.reply) for sample in samples],
        )

    def _train(self, number: int, *, flat: bool) -> dict[str, Any]:
        from agentgym_rl.trainer import Phases

        policy, shard, phases = self._stepper.policy, self._shard(number, flat=flat), Phases()
        flops, computed = policy.flops, policy.computed_tokens
        metrics = self._stepper.train_shard(shard, phases)
        return {
            "row_tokens": sum(len(item.row) for part in shard.minibatches for item in part),
            "computed_tokens": policy.computed_tokens - computed,
            "microbatch_tokens": policy.microbatch_tokens,
            "gflop": (policy.flops - flops) / 1e9,
            "grad_norm": metrics["grad_norm"],
        }

    def _logprobs(self, number: int) -> dict[str, Any]:
        from agentgym_rl.trainer import ShardTokens, frozen_pass

        policy, shard = self._stepper.policy, self._shard(number, flat=False)
        tokens = ShardTokens.from_shard(shard, vocab_size=policy.vocab_size)
        return {"logprobs": frozen_pass(policy, policy.logprobs, tokens).tolist()}

    def _publish(self, number: int) -> dict[str, Any]:
        from agentgym_rl.weights import write_version
        from agentgym_rl.weights.files import prune

        folder = self._scratch / "weights"
        folder.mkdir(exist_ok=True)
        write_version(folder, number, self._stepper.policy.exported())
        prune(folder, 2)
        return {}

    def _checkpoint(self, number: int) -> dict[str, Any]:
        from agentgym_rl.storage import Retention
        from agentgym_rl.trainer.checkpoint import Checkpoints

        checkpoints = Checkpoints(
            self._scratch / "checkpoints",
            self._stepper.policy,
            self._stepper.optimizer,
            config_hash="",
            retention=Retention(keep=1),
        )
        checkpoints.begin(number)
        checkpoints.reported({})
        checkpoints.finish()
        checkpoints.close()
        return {}


def trl(args: argparse.Namespace) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    meter, words = Meter(), _words()
    parts, rows = args.minibatches, args.groups * GROUP_SIZE
    accumulation = max(1, rows // GROUP_SIZE // parts)

    class Turns(TrainerCallback):
        """A callback that makes every optimizer step wait for the command of its batch."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step % parts:
                return
            if next(words, "") != "step":
                control.should_training_stop = True
                raise SystemExit(0)
            meter.restart()

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step % parts == 0:
                _say(meter.read())

    class Given(GRPOTrainer):
        """TRL's trainer on rows that are given to it, rather than sampled by it."""

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            found = _padded(batch(asked, self.model.config.vocab_size))
            if parts > 1:  # as TRL does where an old policy is not the present one
                ids = torch.cat([found["prompt_ids"], found["completion_ids"]], 1)
                mask = torch.cat([found["prompt_mask"], found["completion_mask"]], 1)
                with torch.no_grad():
                    old = self._get_per_token_logps_and_entropies(
                        *(self.model, ids, mask, found["completion_ids"].shape[1], GROUP_SIZE)
                    )[0]
                found["old_per_token_logps"] = old
            return found

    asked = args
    trainer = Given(
        model=args.model,
        reward_funcs=lambda completions, **others: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(dir=args.scratch),
            max_steps=1000 * parts,
            per_device_train_batch_size=GROUP_SIZE if parts == 1 else rows // parts,
            gradient_accumulation_steps=accumulation if parts == 1 else 1,
            steps_per_generation=accumulation if parts == 1 else parts,
            num_generations=GROUP_SIZE,
            learning_rate=args.rate,
            beta=0.0,
            weight_decay=0.0,
            gradient_checkpointing=False,
            bf16=args.dtype == "bfloat16",
            use_cpu=True,
            logging_steps=1000,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_list([{"prompt": "x"}] * rows),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        callbacks=[Turns()],
    )
    _say({"weights_bytes": sum(p.nbytes for p in trainer.model.parameters()), **meter.read()})
    trainer.train()


def _padded(samples: list[Sample]) -> dict[str, Any]:
    """Return the rows as TRL has them: prompts padded on the left, replies on the right."""
    prompts, replies = ([torch.tensor(s[i]) for s in samples] for i in (0, 1))
    pad = torch.nn.utils.rnn.pad_sequence
    rewards = torch.tensor([s.reward for s in samples]).view(-1, GROUP_SIZE)
    spread = rewards.std(1, keepdim=True) + 1e-4
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread).flatten()
    left = pad([p.flip(0) for p in prompts], batch_first=True).flip(1)
    left_mask = pad([torch.ones_like(p) for p in prompts], batch_first=True).flip(1)
    mask = pad([torch.ones_like(r) for r in replies], batch_first=True)
    return {
        "prompt_ids": left,
        "prompt_mask": left_mask,
        "completion_ids": pad(replies, batch_first=True),
        "completion_mask": mask,
        "advantages": advantages,
        "num_items_in_batch": mask.sum(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=("ours", "trl"), required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--prompts", choices=("shared", "own"), default="shared")
    parser.add_argument("--minibatches", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rate", type=float, default=1e-6)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    {"ours": ours, "trl": trl}[args.system](args)


if __name__ == "__main__":
    main()
