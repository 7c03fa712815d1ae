"""Names: register, make, spec; versions; near matches; module:attr; plugins, broken ones too."""

import importlib
import sys
from datetime import date
from pathlib import Path
from textwrap import dedent

import pytest

import agentgym_rl
from agentgym_rl.core import ConfigError, SandboxError
from agentgym_rl.gym import Agent, Env, EnvSpec, Spec, Step, registry
from tests.kit.cases import cases


class Echo(Env):
    def __init__(self, *, level: int = 1) -> None:
        self.level = level

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "hi"}], {}

    async def step(self, action):
        return Step([], 1.0, True, False, {})


class Idle(Agent):
    async def run(self, env, client, *, model, task):
        await env.reset()


PLUGIN = """
    from agentgym_rl.gym.agent import Agent
    from agentgym_rl.gym.env import Env, Step
    from agentgym_rl.gym.specs import EnvSpec, Spec

    class Echo(Env):
        def __init__(self, *, level=1):
            self.level = level
        async def reset(self, *, seed=None, options=None):
            return [], {}
        async def step(self, action):
            return Step([], 1.0, True, False, {})

    class Idle(Agent):
        async def run(self, env, client, *, model, task): ...

    SPEC = EnvSpec(id="hard-v0", entry_point="good_plugin:Echo", kwargs={"level": 9})
    AGENT_SPEC = Spec(id="idle-v0", kind="agent", entry_point="good_plugin:Idle")
"""

POINTS = """
    [agentgym_rl.envs]
    theirs/echo-v0 = good_plugin:Echo
    theirs/hard-v0 = good_plugin:SPEC
    missing-v0 = no_such_module_anywhere:SPEC
    raises-v0 = bad_plugin:SPEC
    exits-v0 = exiting_plugin:SPEC
    agent-v0 = good_plugin:Idle
    swapped-v0 = good_plugin:AGENT_SPEC
    attr-v0 = good_plugin:nothing
    [agentgym_rl.agents]
    theirs/idle-v0 = good_plugin:Idle
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Another package, as pip would install it: modules and a dist-info folder on sys.path."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(dedent(POINTS))
    (tmp_path / "good_plugin.py").write_text(dedent(PLUGIN))
    (tmp_path / "bad_plugin.py").write_text("raise RuntimeError('boom at import')")
    (tmp_path / "exiting_plugin.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("good_plugin", None)


def row(id: str, kind: registry.Kind = "env") -> registry.Listed:
    return next(row for row in registry.listing(kind) if row.id == id)


def register(id: str, **kwargs) -> EnvSpec:
    return registry.register(id, f"{__name__}:Echo", **kwargs)


def test_register_and_make():
    register("mine/echo-v0", kwargs={"level": 2})
    assert agentgym_rl.make("mine/echo-v0").level == 2
    assert agentgym_rl.make("mine/echo-v0", level=3).level == 3
    assert agentgym_rl.spec("mine/echo-v0").kwargs == {"level": 2}


def test_a_taken_id_is_an_error_unless_forced():
    register("echo-v0")
    with pytest.raises(ConfigError, match="registered already"):
        register("echo-v0")
    assert register("echo-v0", kwargs={"level": 5}, force=True).kwargs == {"level": 5}


def test_an_env_and_an_agent_may_share_an_id():
    register("echo-v0")
    registry.register("echo-v0", f"{__name__}:Idle", kind="agent")
    assert isinstance(registry.make_agent("echo"), Idle)
    assert isinstance(registry.make("echo").unwrapped, Echo)


@cases("id", ["", "9lives", "a b", "a/b/c", "x:y", "-v1"])
def test_a_malformed_id_is_an_error(id):
    with pytest.raises(ConfigError, match="bad id"):
        register(id)


@cases("id", ["echo", "echo-v0", "my/echo-v12", "two-words-v1", "a.b_c"])
def test_wellformed_ids(id):
    assert register(id).id == id


def test_without_a_version_the_latest_is_meant():
    for version in (2, 10, 9):
        register(f"echo-v{version}", kwargs={"level": version})
    register("echo-more-v99")
    assert registry.spec("echo").id == "echo-v10"
    assert registry.spec("echo-v2").id == "echo-v2"


def test_an_unversioned_id_comes_before_its_versions():
    register("echo")
    register("echo-v3")
    assert registry.spec("echo").id == "echo"


def test_an_unknown_id_names_the_near_match():
    register("arithmetic-v0")
    with pytest.raises(ConfigError, match=r"did you mean .*arithmetic-v0"):
        registry.spec("arithmetik")
    with pytest.raises(ConfigError, match=r"known: .*arithmetic-v0"):
        registry.spec("zzzzzzzzzz")


def test_module_attr_needs_no_registration():
    assert isinstance(registry.make(f"{__name__}:Echo").unwrapped, Echo)
    assert registry.make(f"{__name__}:Echo", level=4).level == 4


def test_module_attr_may_be_a_spec(plugins):
    assert registry.make("good_plugin:SPEC").level == 9
    with pytest.raises(ConfigError, match="is an env, not an agent"):
        registry.make_agent("good_plugin:SPEC")


@cases(
    "id",
    [
        *("no_such_module_anywhere:X", "json:nothing", "json:", ":X", ".rel:X"),
        *("bad_plugin:X", "exiting_plugin:X"),
    ],
)
def test_what_cannot_be_imported_is_a_config_error(plugins, id):
    with pytest.raises(ConfigError, match="cannot import"):
        registry.spec(id)


@cases("id", ["json:dumps", "json:JSONDecoder", f"{__name__}:Idle"])
def test_what_is_no_env_is_a_config_error(id):
    with pytest.raises(ConfigError, match=r"expected a subclass of agentgym_rl\.Env"):
        registry.make(id)


def test_a_wrong_option_is_a_config_error():
    register("echo-v0")
    with pytest.raises(ConfigError, match=r"echo-v0.*lvl") as caught:
        registry.make("echo", lvl=2)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(ConfigError, match="data: its tasks are its own, not rows of files"):
        registry.make("echo", data="rows.jsonl")


def test_an_option_behind_a_colon_is_shown_as_its_flag():
    register("echo-v0")
    with pytest.raises(
        ConfigError, match=r"^env 'echo' takes options as --env echo --env\.options"
    ):
        registry.spec("echo:level=2")


class Touchy(Echo):
    def __init__(self, *, level: int, mode: str = "a") -> None:
        errors = {"a": ValueError("no level 7"), "b": SandboxError("no docker"), "c": SystemExit(0)}
        raise errors[mode]

    @classmethod
    def task_source(cls, split, *, seed, level, mode="a"):
        raise KeyError("absent.json")


class Unfinished(Env):
    async def reset(self, *, seed=None, options=None):
        return [], {}


@cases(
    "name, options, said",
    [
        (
            "Touchy",
            {"level": 7},
            r"'level': 7.*ValueError: no level 7 \(.*test_registry.py, line \d+, in __init__\)",
        ),
        ("Touchy", {"level": 7, "mode": "z"}, "KeyError: 'z'"),
        ("Touchy", {"level": 7, "mode": "c"}, "SystemExit: 0"),
        ("Touchy", {}, r"'level'; it takes level, mode='a', set as --env.options.NAME=VALUE"),
        ("Unfinished", {}, "abstract.*; it takes no options"),
    ],
)
def test_an_env_that_cannot_be_made_is_a_config_error(name, options, said):
    with pytest.raises(ConfigError, match=said) as caught:
        registry.make(f"{__name__}:{name}", **options)
    assert caught.value.__cause__ is not None


@cases(
    "options, said",
    [
        ({}, "TypeError.*'level'; it takes level, mode='a'"),
        ({"level": 7}, "KeyError: 'absent.json'"),
    ],
)
def test_tasks_that_cannot_be_given_are_a_config_error(options, said):
    with pytest.raises(ConfigError, match=f"Touchy cannot give its tasks.*{said}"):
        registry.spec(f"{__name__}:Touchy").task_source("train", seed=1, **options)


def test_an_error_that_says_whose_fault_it_is_passes():
    with pytest.raises(SandboxError, match="no docker"):
        registry.make(f"{__name__}:Touchy", level=7, mode="b")


def test_a_spec_is_json():
    made = register("echo-v0", kwargs={"level": 2}, description="says it again")
    assert EnvSpec.from_json(made.to_json()) == made


NOT_JSON = {
    "inf": float("inf"),
    "nan": float("nan"),
    "set": {1},
    "bytes": b"x",
    "path": Path("a"),
    "date": date(2020, 1, 1),
    "key": {1: "a"},
    "half_a_pair": "\ud800",
}


@cases("value", NOT_JSON.values(), ids=NOT_JSON)
def test_what_json_has_no_word_for_is_refused_not_changed(value):
    for spec in (
        register("echo-v0", kwargs={"level": [value]}, force=True),
        register("echo-v0", wrappers=[{"entry_point": "m:W", "kwargs": {"by": value}}], force=True),
    ):
        with pytest.raises(ConfigError, match="the spec of echo-v0 is no JSON: "):
            spec.to_json()


def test_the_place_of_what_is_no_json_is_named():
    with pytest.raises(ConfigError, match=r"spec.kwargs.level.deep\[1\] is a set"):
        register("echo-v0", kwargs={"level": {"deep": [0, {1}]}}).to_json()


def test_infinite_limits_are_refused_as_well():
    with pytest.raises(ConfigError, match=r"spec\.step_timeout_s is inf"):
        register("echo-v0", step_timeout_s=float("inf")).to_json()


@cases(
    "limits", [{"max_turns": 0}, {"max_turn": 3}, {"wrappers": [{}]}], ids=["range", "key", "none"]
)
def test_limits_that_are_none_cannot_be_registered(limits):
    with pytest.raises(
        ConfigError, match=f"(?s)'echo-v0' cannot be registered.*{next(iter(limits))}"
    ):
        register("echo-v0", **limits)


class Choosy(Echo):
    def __init__(self, *, level: int = 1, feedback: str = "mine", wrappers: int = 0) -> None:
        super().__init__(level=level)


@cases("use", ["make", "task_source"])
def test_a_parameter_called_like_an_option_of_make_is_refused(use):
    spec = registry.spec(f"{__name__}:Choosy")
    with pytest.raises(ConfigError, match="Choosy has the parameter wrappers, feedback, which it"):
        spec.make() if use == "make" else spec.task_source("train", seed=0)


class Greedy(Echo):
    """Changes what it is given."""

    def __init__(self, *, level: dict) -> None:
        level["words"].append("more")
        self.level = level

    @classmethod
    def task_source(cls, split, *, seed, level):
        level["words"].append("more")
        return super().task_source(split, seed=seed)


def test_every_instance_has_options_of_its_own():
    words = ["one"]
    spec = registry.spec(f"{__name__}:Greedy").with_options(level={"words": words})
    make = spec.maker()
    made = [make(), make(), spec.make(), Spec.make(spec)]
    spec.task_source("train", seed=0)
    assert [env.level for env in made] == [{"words": ["one", "more"]}] * 4
    assert (spec.kwargs, words) == ({"level": {"words": ["one"]}}, ["one"])


def test_a_spec_gives_the_tasks_of_its_environment():
    made = register("echo-v0")
    assert made.task_source("eval", seed=1)[0].split == "eval"


def test_plugins_are_found(plugins):
    assert registry.make("theirs/echo").level == 1
    assert registry.make("theirs/hard-v0").level == 9
    assert isinstance(registry.make_agent("theirs/idle"), Agent)


@cases(
    "id, said",
    [
        ("missing-v0", "no_such_module_anywhere"),
        ("raises-v0", "boom at import"),
        ("exits-v0", "SystemExit"),
        ("agent-v0", "expected a subclass of agentgym_rl.Env"),
        ("swapped-v0", "is an agent, not an env"),
        ("attr-v0", "nothing"),
    ],
)
def test_a_broken_plugin_is_a_row_with_its_traceback(plugins, id, said):
    assert row(id).spec is None
    assert said in row(id).error
    with pytest.raises(ConfigError, match="is broken"):
        registry.spec(id)
    assert row("theirs/echo-v0").spec is not None


def test_a_registered_id_hides_a_plugin_of_that_name(plugins):
    register("raises-v0")
    assert row("raises-v0").spec is not None


def test_plugins_are_not_read_at_import(plugins):
    assert "good_plugin" not in sys.modules


def test_a_plugin_is_imported_for_its_own_id_alone(plugins):
    register("mine-v0")
    assert registry.spec("mine-v0").id == registry.spec("mine").id == "mine-v0"
    with pytest.raises(ConfigError, match="no env is called"):
        registry.spec("nobody")
    assert "good_plugin" not in sys.modules
    assert registry.spec("theirs/hard").id == "hard-v0"
    assert "good_plugin" in sys.modules


def test_the_latest_may_be_registered_or_a_plugin(plugins):
    register("theirs/echo-v1")
    assert registry.spec("theirs/echo").id == "theirs/echo-v1"
    assert registry.spec("theirs/echo-v0").entry_point == "good_plugin:Echo"


def test_a_plugin_installed_meanwhile_is_found(plugins, tmp_path):
    with pytest.raises(ConfigError, match="no env is called"):
        registry.spec("late-v0")
    info = tmp_path / "late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agentgym_rl.envs]\nlate-v0 = good_plugin:SPEC\n")
    importlib.invalidate_caches()
    assert registry.spec("late-v0").kwargs == {"level": 9}
