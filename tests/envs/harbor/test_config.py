"""task.toml: every field of Harbor's schema is read, refused or harmless; bad values are named."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arl_envs.harbor import config as parts
from arl_envs.harbor.config import HARMLESS, REFUSED, TaskConfig, read_config, resolved
from pydantic import BaseModel

from agentgym_rl import ConfigError
from tests.kit.cases import cases

from .describe import schema_of

SCHEMA: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("schema.json").read_text())


def fields_of_harbor(name: str = "TaskConfig", path: str = "") -> Iterator[str]:
    """The dotted paths of Harbor's fields; those below a refused or harmless one are left out."""
    for field, about in SCHEMA[name].items():
        here = f"{path}{field}"
        yield here
        if here in REFUSED or here in HARMLESS:
            continue
        words = about["type"].replace("|", " ").replace("[", " ").replace("]", " ").split()
        for word in words:
            inner = word.strip("\"',")
            if SCHEMA.get(inner):
                yield from fields_of_harbor(inner, f"{here}.")


def fields_read(model: type[BaseModel] = TaskConfig, path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{path}{name}"
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from fields_read(inner, f"{path}{name}.")


def test_each_field_of_harbor_is_read_or_refused_or_harmless() -> None:
    ours = {*fields_read(), *REFUSED, *HARMLESS, *parts._LEGACY}
    assert set(fields_of_harbor()) - ours == set()
    assert not (REFUSED.keys() & HARMLESS.keys())
    assert not ({*fields_read()} & {*REFUSED, *HARMLESS})


def test_each_of_our_fields_is_one_of_harbor() -> None:
    known = {*fields_of_harbor(), "version", *parts._LEGACY}
    assert {*fields_read(), *REFUSED, *HARMLESS} - known == set()


@cases(
    "section, field",
    [
        ("EnvironmentConfig", "build_timeout_sec"),
        ("VerifierConfig", "timeout_sec"),
        *(("HealthcheckConfig", f"{n}_sec") for n in ("interval", "timeout", "start_interval")),
        ("HealthcheckConfig", "retries"),
    ],
)
def test_defaults_are_those_of_harbor(section: str, field: str) -> None:
    model = {
        "EnvironmentConfig": parts.EnvironmentPart,
        "VerifierConfig": parts.VerifierPart,
        "HealthcheckConfig": parts.Healthcheck,
    }[section]
    assert model.model_fields[field].default == float(SCHEMA[section][field]["default"])


def test_the_description_reads_classes_with_bases_and_fields() -> None:
    text = "class B(M):\n  a: int = 1\nclass TaskConfig(B):\n  b: str = Field(default='x')\n"
    assert schema_of(text)["TaskConfig"] == {
        "a": {"type": "int", "default": "1"},
        "b": {"type": "str", "default": "'x'"},
    }


def deep(num_levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(num_levels):
        found = {"x": found}
    return found


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "gpu": ({"environment": {"gpus": 1}}, "environment.gpus: sandboxes have no accelerator"),
    "tpu": ({"environment": {"tpu": {"type": "v4", "topology": "2x2"}}}, "environment.tpu"),
    "mcp": ({"environment": {"mcp_servers": [{"name": "a"}]}}, "environment.mcp_servers"),
    "steps": ({"steps": [{"name": "a"}]}, "steps: tasks of several steps"),
    "collect": ({"verifier": {"collect": [{"command": "x"}]}}, "verifier.collect"),
    "image": ({"verifier": {"environment": {"gpus": 1}}}, "verifier.environment.gpus"),
    "modes": ({"verifier": {"environment_mode": "shared", "environment": {}}}, "contradicts"),
    "tests' health": (
        {"verifier": {"environment": {"healthcheck": {"command": "x"}}}},
        "verifier.environment.healthcheck: only the agent's",
    ),
    "tests' size": ({"verifier": {"environment": {"memory": "x"}}}, "verifier.environment.memory"),
    "service": ({"artifacts": [{"source": "/a", "service": "db"}]}, "artifacts.service"),
    "windows": ({"environment": {"os": "Windows"}}, "only linux"),
    "user": ({"agent": {"user": "bob"}}, "agent.user: got 'bob'"),
    "network": ({"environment": {"network_mode": "allowlist"}}, "offline=true"),
    "agent's network": ({"agent": {"network_mode": "public"}}, "agent.network_mode: 'public'"),
    "tests' network": (
        {"verifier": {"environment": {"network_mode": "allowlist"}}},
        "verifier.environment.network_mode",
    ),
    "hosts": ({"verifier": {"network_mode": "allowlist"}}, "verifier.network_mode"),
    "old network": ({"environment": {"allow_internet": 1}}, "environment.allow_internet: got 1"),
    "host variable": ({"environment": {"env": {"A": "${TOKEN}"}}}, "variable of the host"),
    "unknown": ({"verifer": {}}, "verifer: Harbor's format has no such key"),
    "unknown below": ({"agent": {"timeout": 3}}, "agent.timeout: Harbor's format has no such"),
    "type": ({"verifier": {"timeout_sec": "long"}}, "verifier.timeout_sec: got 'long'"),
    "range": ({"environment": {"memory_mb": -1}}, "environment.memory_mb: got -1"),
    "size": ({"environment": {"memory": "2 bananas"}}, "environment.memory: got '2 bananas'"),
    "sizes": ({"environment": {"memory": "2G", "memory_mb": 1}}, "contradict each other"),
    "relative": ({"environment": {"workdir": "app"}}, "expected an absolute path"),
    "root": ({"environment": {"workdir": "/"}}, "is no work folder"),
    "artifact": ({"artifacts": ["/a/../b"]}, "without '..'"),
    "keep": ({"metadata": {"arl_keep": "x"}}, "arl_keep: expected a list"),
    "reward range": ({"metadata": {"arl_reward_range": [1, 0]}}, "arl_reward_range: got [1, 0]"),
    "half a range": ({"metadata": {"arl_reward_range": [0]}}, "arl_reward_range: got [0]"),
    "truth": ({"metadata": {"arl_reward_range": [False, True]}}, "arl_reward_range: got"),
    "no bound": ({"metadata": {"arl_reward_range": [0, float("inf")]}}, "arl_reward_range: got"),
    "no number": ({"metadata": {"arl_reward_range": [float("nan"), 1]}}, "arl_reward_range: got"),
    "own key": ({"metadata": {"arl_reward": [0, 1]}}, "arl_reward: no such key; allowed: "),
    "generated": ({"metadata": {"arl_generated": 1}}, "arl_generated: expected true or false"),
    "nonce": ({"metadata": {"arl_nonce": "yes"}}, "arl_nonce: expected true or false"),
    "section": ({"agent": 3}, "agent: got 3"),
    "endless": ({"agent": {"timeout_sec": math.inf}}, "agent.timeout_sec: got inf"),
    "endless tests": ({"verifier": {"timeout_sec": 1e300}}, "verifier.timeout_sec: got 1e+300"),
    "endless size": ({"environment": {"memory": "infG"}}, "environment.memory: got 'infG'"),
    "huge size": ({"environment": {"storage_mb": 10**30}}, "environment.storage_mb: got 1000"),
    "one artifact": ({"artifacts": "/a"}, "artifacts: got '/a'"),
    "artifact table": ({"artifacts": {"source": "/a"}}, "artifacts: got"),
    "artifact number": ({"artifacts": 5}, "artifacts: got 5"),
    "empty artifact": ({"artifacts": [""]}, "without '..'"),
    "machine's artifact": ({"artifacts": ["/proc/self"]}, "is no folder of files"),
    "variable": ({"environment": {"env": {"A-B": "1"}}}, "got 'A-B'"),
    "command in variable": ({"solution": {"env": {"A;id": "1"}}}, "got 'A;id'"),
    "NUL": ({"verifier": {"env": {"A": "a\0b"}}}, "a NUL character is not allowed"),
    "line end in folder": ({"environment": {"workdir": "/a\nRUN id"}}, "line ends"),
    "variable in folder": ({"environment": {"workdir": "/$HOME"}}, "without '..', '$'"),
    "two images": ({"environment": {"docker_image": "a\nRUN id"}}, "the name of one image"),
    "deep": ({"metadata": deep(2000)}, "nested too deeply"),
}


@cases("raw, said", REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_honoured_is_refused_by_name(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(raw, name="shop")
    assert str(error.value).startswith("task shop: task.toml: ")
    assert said in str(error.value)


def test_empty_values_of_refused_fields_are_fine() -> None:
    raw = {
        "steps": [],
        "environment": {"gpus": 0, "mcp_servers": [], "skills_dir": ""},
        "verifier": {"collect": []},
    }
    assert read_config(raw, name="x") == read_config({}, name="x")


def test_harmless_fields_have_no_effect_and_old_names_are_understood() -> None:
    raw = {
        "version": "1.0",
        "source": "a paper",
        "task": {"name": "org/x", "version": "2", "authors": [{"name": "A"}], "keywords": ["k"]},
        "metadata": {"anything": {"goes": 1}},
        "environment": {"cpus": 2, "memory": "2G", "storage": "512M", "allow_internet": False},
        "artifacts": ["/data", {"source": "x", "destination": "y"}],
    }
    read = read_config(raw, name="x")
    assert (read.environment.memory_mb, read.environment.storage_mb) == (2048, 512)
    assert [each.source for each in read.artifacts] == ["/data", "x"]
    assert raw["environment"]["memory"] == "2G"  # the task's own table is left alone


def test_a_network_is_done_without_on_request() -> None:
    raw = {"environment": {"network_mode": "allowlist", "allowed_hosts": ["a.org"]}}
    assert read_config(raw, name="x", offline=True).environment.network_mode == "allowlist"
    for public in ({"network_mode": "public"}, {"allow_internet": True}):  # Harbor's default
        assert read_config({"environment": public}, name="x").environment.network_mode == "public"


def test_variables_have_defaults_but_not_those_of_the_host() -> None:
    assert resolved({"A": "x${B:-y}z", "C": "${D:-}", "E": "$F"}) == {
        "A": "xyz",
        "C": "",
        "E": "$F",
    }
    with pytest.raises(ValueError, match="variable of the host"):
        resolved({"A": "${HOME}"})
