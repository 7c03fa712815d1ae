"""An engine of a package that exists for these tests alone: the registry is all that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_rl.config import ENGINES, load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.core.extensions import forget_entry_points
from tests.e2e import forked
from tests.kit import extension
from tests.kit.cases import cases

PARROT = '''
"""An engine that answers every request with one text."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from tokenizers import Tokenizer

from agentgym_rl.config import OwnEngineConfig, RolloutConfig
from agentgym_rl.engines import HttpEngine
from agentgym_rl.engines.kind import OwnKind
from agentgym_rl.models.resolve import tokenizer_hash


class ParrotConfig(OwnEngineConfig):
    """An engine without a model."""

    type: Literal["parrot"] = "parrot"
    reply: str = "Hello"
    """The text of every reply."""

    def conflicts(self, config):
        yield from super().conflicts(config)
        if config.of(RolloutConfig).interrupt == "wait":
            yield "rollout.interrupt 'wait' with engine.type 'parrot': nothing waits; use keep"


class Parrot(OwnKind):
    """An engine without a model."""

    section = ParrotConfig
    title = "Parrot"

    def client(self, url, setup, *, incarnation):
        return HttpEngine(url, kind="parrot", incarnation=incarnation)

    def serve(self, launch):
        config = launch.config
        tokenizer = Tokenizer.from_file(str(launch.model_dir / "tokenizer.json"))
        ids = tokenizer.encode(config.engine.reply, add_special_tokens=False).ids
        server = ThreadingHTTPServer((launch.host, launch.port), Handler)
        server.daemon_threads = True
        server.ids, server.label = ids, launch.label
        server.about = {"version": "1", "tokenizer_hash": tokenizer_hash(launch.model_dir)}
        card = {"id": "parrot", "max_model_len": config.engine.max_model_len}
        server.models = {"data": [card]}
        server.serve_forever()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        answers = {
            "/version": server.about,
            "/v1/models": server.models,
            "/weight_info": {"weight_version": server.label},
            "/is_paused": {"is_paused": False},
            "/is_sleeping": {"is_sleeping": False},
        }
        if self.path == "/model_info":
            return self.answer({"detail": "no such route"}, status=404)
        self.answer(answers.get(self.path, {}))

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = json.loads(body) if body else {}
        label = asked.get("weight_version") or asked.get("new_version")
        if label:
            self.server.label = label
        if self.path != "/inference/v1/generate":
            return self.answer({"status": "ok"})
        ids = self.server.ids[: asked["sampling_params"].get("max_tokens") or None]
        span = {"version": self.server.label, "start": 0, "end": len(ids)}
        logprobs = {"content": [{"token_id": it, "logprob": -1.0} for it in ids]}
        choice = {"token_ids": ids, "logprobs": logprobs, "weight_versions": [span]}
        reply = {"choices": [{"index": 0, **choice, "finish_reason": "length"}]}
        if not asked.get("stream"):
            return self.answer(reply)
        self.answer(f"data: {json.dumps(reply)}\\n\\ndata: [DONE]\\n\\n", kind="text/event-stream")

    def answer(self, content, *, status=200, kind="application/json"):
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


KIND = Parrot()
'''


def install(folder: Path) -> Path:
    points = {"engines": {"parrot": "parrot:KIND", "broken": "missing_parrot:KIND"}}
    return extension.install(folder / "parrots", {"parrot": PARROT}, points)


@pytest.fixture
def parrots(tmp_path, monkeypatch) -> Path:
    folder = install(tmp_path)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "parrot", raising=False)
    forget_entry_points()
    return folder


def arl(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return forked.arl(*argv, env=env, folder=folder.parent)


def test_an_engine_of_a_package_has_its_keys(parrots, caplog):
    config = load_config(None, {"engine.type": "parrot", "engine.reply": "Aye"})
    assert config.own_engine.model_dump()["reply"] == "Aye"
    assert list(ENGINES.members)[-1] == "parrot"
    assert "missing_parrot" in caplog.text  # the broken one is left out


@cases(
    "overrides, said",
    [
        ({"engine.type": "parot"}, "did you mean parrot?"),
        ({"engine.type": "parrot", "engine.repyl": "Aye"}, "did you mean engine.reply?"),
        ({"engine.reply": "Aye"}, "engine.type 'parrot' has it"),
        ({"engine.type": "parrot", "engine.num_servers": 0}, "engine.num_servers: too small"),
        ({"engine.type": "parrot", "rollout.interrupt": "wait"}, "nothing waits; use keep"),
        ({"engine.type": "parrot", "weights.transport": "gloo"}, "the parrot engine takes 'shm'"),
        ({"engine.type": "broken"}, "missing_parrot"),
    ],
)
def test_its_keys_are_checked(parrots, overrides, said):
    with pytest.raises(ConfigError) as refused:
        load_config(None, overrides)
    assert said in str(refused.value)


@pytest.mark.slow
def test_it_is_listed_and_its_keys_have_a_help(tmp_path):
    folder = install(tmp_path)
    rows = json.loads(arl(folder, "list", "--json").stdout)["rows"]
    listed = {row["id"]: row for row in rows if row["kind"] == "engine"}
    assert listed.keys() == {"parrot", "broken"}
    assert listed["parrot"]["description"] == "An engine without a model."
    assert "missing_parrot" in listed["broken"]["error"]
    shown = arl(folder, "train", "--help", "engine.reply").stdout
    assert "The text of every reply." in shown


@pytest.mark.slow
def test_a_run_trains_on_its_tokens(parrots, tmp_path):
    run = tmp_path / "run"
    argv = ["--engine=parrot", "--engine.reply=forty two", "--steps=1", "--eval.num_tasks=0"]
    done = arl(parrots, "train", "--env=math", *argv, "--run", str(run), "--json")
    assert done.returncode == 0, done.stderr
    kept = load_config(run / "config.toml").engine
    assert kept == ENGINES["parrot"].section(reply="forty two")
    episodes = arl(parrots, "export", "--sft", str(run), "--out", str(tmp_path / "sft.jsonl"))
    assert episodes.returncode == 0, episodes.stderr
    rows = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert rows
    assert all(row["messages"][-1]["content"] == "forty two" for row in rows)
