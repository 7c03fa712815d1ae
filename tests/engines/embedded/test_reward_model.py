"""Reward models served by `arl engine --reward-model`: scores do not depend on the batch."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import transformers
from arl_embedded.reward_model import Batches, Classifier, RewardModelApp
from arl_embedded.section import EmbeddedEngineConfig
from arl_envs.judge import RewardModel
from transformers import BertConfig, LlamaConfig, Qwen3Config

from agentgym_rl.core import ConfigError, EnvError
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import HttpClient, serving

SIZE = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "vocab_size": 600},
}
CAUSAL = {**SIZE, "num_key_value_heads": 2, "max_position_embeddings": 256}
TOLERANCE = 1e-5
KINDS = {
    "qwen3": Qwen3Config(**CAUSAL, head_dim=8, pad_token_id=0, num_labels=1),
    "llama without padding": LlamaConfig(**CAUSAL, num_labels=1),
    "llama, padding ends texts": LlamaConfig(**CAUSAL, pad_token_id=2, num_labels=1),
    "bert": BertConfig(**SIZE, max_position_embeddings=256, num_labels=3),
}


def saved(folder, config, seed: int = 0):
    torch.manual_seed(seed)
    kind = transformers.AutoModelForSequenceClassification
    kind.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("models")
    return {name: saved(top / name, config) for name, config in KINDS.items()}


@pytest.fixture(scope="module")
def made(folders):
    return {name: Classifier(folder, EmbeddedEngineConfig()) for name, folder in folders.items()}


def texts(count: int = 12) -> list[list[int]]:
    """Rows of many lengths; some end with tokens that a model may take for padding."""
    draw = random.Random(1)
    rows = [[draw.randrange(3, 600) for _ in range(draw.randrange(1, 90))] for _ in range(count)]
    return [[*row, 2] if i % 3 == 0 else row for i, row in enumerate(rows)]


def alone(folder, row: list[int]) -> list[float]:
    """The logits that transformers gives for a row by itself."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(input_ids=torch.tensor([row])).logits[0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_score(made, folders, kind):
    rows = texts()
    together = made[kind].logits(rows)
    assert len({round(logits[0], 4) for logits in together}) > 6
    for row, logits in zip(rows, together, strict=True):
        assert logits == pytest.approx(alone(folders[kind], row), abs=TOLERANCE)


def test_a_batch_with_every_token_is_computed_row_by_row(made, folders):
    rows = [[*range(600)][i : i + 200] for i in (0, 200, 400)]
    kind = "llama without padding"
    for row, logits in zip(rows, made[kind].logits(rows), strict=True):
        assert logits == pytest.approx(alone(folders[kind], row), abs=TOLERANCE)


def test_requests_of_the_same_moment_share_batches(made):
    classifier = made["qwen3"]

    async def ask() -> tuple[list, list[int]]:
        batches = Batches(classifier, max_rows=8)
        async with asyncio.timeout(250), asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(batches.logits([row])) for row in texts(16)]
            computing = tasks.create_task(batches.run())
            await asyncio.wait(asked)
            computing.cancel()
        return [task.result()[0] for task in asked], batches.sizes

    found, sizes = asyncio.run(ask())
    assert sizes == [8, 8]
    for row, logits in zip(texts(16), found, strict=True):
        assert logits == pytest.approx(classifier.logits([row])[0], abs=TOLERANCE)


def test_a_batch_that_fails_fails_its_requests_alone(made, monkeypatch):
    classifier = made["qwen3"]
    right = classifier.logits

    def sometimes(rows):
        if len(rows[0]) == 7:
            raise RuntimeError("out of memory")
        return right(rows)

    monkeypatch.setattr(classifier, "logits", sometimes)

    async def ask():
        batches = Batches(classifier, max_rows=1)
        async with asyncio.timeout(250), asyncio.TaskGroup() as tasks:
            computing = tasks.create_task(batches.run())
            with pytest.raises(RuntimeError, match="out of memory"):
                await batches.logits([[3] * 7, [4] * 7])
            found = await batches.logits([[3] * 5])
            computing.cancel()
        return found

    assert len(asyncio.run(ask())[0]) == 1


# ---------------------------------------------------------------- the route
def asked(classifier, *bodies: dict) -> list[tuple[int, dict]]:
    async def run():
        batches = Batches(classifier, max_rows=8)
        app = RewardModelApp(classifier, batches, name="rm")
        async with (
            asyncio.timeout(250),
            serving(app, host="127.0.0.1", port=0) as url,
            HttpClient() as http,
            asyncio.TaskGroup() as tasks,
        ):
            computing = tasks.create_task(batches.run())
            replies = []
            for body in bodies:
                data = json.dumps(body).encode()
                reply = await http.call(url, "POST", "/classify", body=data, timeout_s=250)
                replies.append((reply[0], json.loads(reply[1])))
            computing.cancel()
        return replies

    return asyncio.run(run())


def test_the_route_answers_as_vllm_does(made):
    classifier = made["qwen3"]
    row = [5, 6, 7, 8]
    ((status, reply),) = asked(
        classifier, {"model": "rm", "input": [row, row[:2]], "use_activation": False}
    )
    assert (status, reply["object"], reply["model"]) == (200, "list", "rm")
    assert [one["index"] for one in reply["data"]] == [0, 1]
    first = reply["data"][0]
    assert (first["label"], first["num_classes"]) == ("LABEL_0", 1)
    assert first["probs"] == pytest.approx(classifier.logits([row])[0], abs=TOLERANCE)
    assert reply["usage"] == {"prompt_tokens": 6, "total_tokens": 6, "completion_tokens": 0}


def test_probabilities_are_the_default(made):
    ((_, one),) = asked(made["qwen3"], {"input": [5, 6, 7]})
    (logit,) = made["qwen3"].logits([[5, 6, 7]])[0]
    assert one["data"][0]["probs"] == pytest.approx([1 / (1 + 2.718281828459045**-logit)])
    ((_, three),) = asked(made["bert"], {"input": [5, 6, 7]})
    assert sum(three["data"][0]["probs"]) == pytest.approx(1.0)


def test_messages_are_rendered_by_the_chat_template(made, folders):
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["qwen3"])
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    raw = {"use_activation": False}
    (_, by_messages), (_, by_ids), (_, by_text) = asked(
        made["qwen3"],
        {"messages": messages, **raw},
        {"input": ids, **raw},
        {"input": text, "add_special_tokens": False, **raw},
    )
    assert by_messages["data"] == by_ids["data"] == by_text["data"]


REFUSED = [
    ({}, 400, "either input or messages"),
    ({"input": "a", "messages": []}, 400, "either input or messages"),
    ({"input": []}, 400, "not empty"),
    ({"input": [5, "a"]}, 400, "expected texts"),
    ({"input": [5] * 300}, 400, "takes 1 to 256"),
    ({"input": [700]}, 400, "token ids must be from 0 to 599"),
    ({"input": [5], "truncate_prompt_tokens": 3}, 400, "truncate_prompt_tokens"),
    ({"input": [5], "model": "other"}, 404, "allowed: 'rm'"),
    ({"messages": [{"role": "user"}, 3]}, 400, "not valid"),
]


def test_requests_that_cannot_be_answered_are_refused(made):
    replies = asked(made["qwen3"], *(body for body, _, _ in REFUSED))
    for (_, status, said), (found, reply) in zip(REFUSED, replies, strict=True):
        assert (found, said in reply["error"]["message"]) == (status, True), reply


def test_a_folder_without_a_head_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no sequence classifier: it lacks score\.weight"):
        Classifier(BUNDLED, EmbeddedEngineConfig())


@pytest.mark.slow
def test_the_command_serves_a_judge(folders):
    folder = folders["qwen3"]
    command = [sys.executable, "-m", "agentgym_rl", "engine", "--reward-model", str(folder)]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            url = line.removeprefix("reward model ready on ").strip()
            model = RewardModel(str(folder), base_url=url, timeout_s=250)

            async def several():
                async with asyncio.timeout(250), asyncio.TaskGroup() as tasks:
                    asked = [tasks.create_task(model.score("2 + 2?", "4" * n)) for n in range(9)]
                return [task.result()["reward"] for task in asked]

            rewards = asyncio.run(several())
            assert len(set(rewards)) > 5
            again = asyncio.run(model.score("2 + 2?", "4" * 3))["reward"]
            assert again == pytest.approx(rewards[3], abs=TOLERANCE)
            with pytest.raises(EnvError, match="is not served"):
                asyncio.run(RewardModel("other", base_url=url).score("q", "a"))
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0


def test_another_backend_is_refused(capsys):
    from agentgym_rl.cli import main as cli

    with pytest.raises(SystemExit) as end:
        cli.main(["engine", "--backend", "vllm", "--reward-model", "x"])
    assert end.value.code == 2
    assert "vllm serve MODEL --runner pooling" in capsys.readouterr().err
