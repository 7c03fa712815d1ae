"""One of two ranks fails while the other waits for it for ever, as in a collective of NCCL."""

import json
import re

import pytest

pytestmark = pytest.mark.slow


def two_ranks(folder, how: str, *, lives: int) -> list[str]:
    options = f'{{how = "{how}", folder = "{folder}", step = 1, lives = {lives}}}'
    return [
        *(
            "--steps=2",
            "--trainer.num_ranks=2",
            "--eval.num_tasks=0",
            "--trainer.learning_rate=0.001",
        ),
        *("--trainer.optimizer=faulty_optimizer:Faulty", f"--trainer.optimizer_options={options}"),
    ]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("error", r"trainer-1: train: KeyError\('plan'\)"),
        ("file", r"trainer-1: train: \[Errno 2\] No such file or directory: '/gone/part-3'"),
        ("killed", "trainer-1 was killed by SIGKILL"),
        ("memory", r"trainer-1: train: batch \d does not fit in the memory of trainer-1"),
    ],
)
def test_ranks_are_started_again_after_the_failure_of_one(start, tmp_path, how, said):
    run = start(*two_ranks(tmp_path, how, lives=1))
    code, out, err = run.wait()
    assert code == 0, err
    assert json.loads(out)["trainer_restarts"] == 1
    assert re.search(f"the trainer is lost: {said}", err)
    half = "micro-batches get half of trainer.max_tokens_per_microbatch from now on"
    assert (half in err) == (how == "memory")


def test_a_batch_that_fits_in_no_memory_is_split_once(start, tmp_path):
    run = start(*two_ranks(tmp_path, "memory", lives=9))
    code, _, err = run.wait()
    assert code == 1
    assert len(list(tmp_path.glob("life-*"))) == 2
    last = next(line for line in err.splitlines() if line.startswith("arl: "))
    assert re.match(r"arl: batch \d does not fit in the memory of trainer-1", last)
    for key in ("max_tokens_per_microbatch", "activation_checkpointing", "cpu_offload"):
        assert f"trainer.{key}" in last
    assert "lora.rank" in last


def test_ranks_that_always_fail_end_the_run_with_the_first_cause(start, tmp_path):
    run = start(*two_ranks(tmp_path, "error", lives=9), "--trainer.max_restarts=1")
    code, _, err = run.wait()
    assert code == 1
    assert "started again 1 times (trainer.max_restarts) within 10 batches" in err
    assert "The last loss: trainer-1: train: KeyError('plan')" in err
    assert len(list(tmp_path.glob("life-*"))) == 2
