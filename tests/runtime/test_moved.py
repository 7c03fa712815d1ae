"""The import paths from before the package had folders: they work, and name the new ones."""

import pickle
import re
import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import agentgym_rl
from agentgym_rl.runtime.moved import MOVED, _Moved
from tests.kit.cases import cases

SOME = {
    "agent.Agent": "agentgym_rl.Agent",
    "check.check_env": "agentgym_rl.check_env",
    "data.Rows": "agentgym_rl.gym.data.Rows",
    "data.rows.Rows": "agentgym_rl.gym.data.rows.Rows",
    "env.Env": "agentgym_rl.Env",
    "env.text_message": "agentgym_rl.core.chat.text_message",
    "errors.EnvError": "agentgym_rl.EnvError",
    "errors.StorageError": "agentgym_rl.core.errors.StorageError",
    "log.setup": "agentgym_rl.runtime.log.setup",
    "model.resolve_model": "agentgym_rl.models.resolve.resolve_model",
    "registry.make": "agentgym_rl.make",
    "sandbox.Limits": "agentgym_rl.gym.sandbox.Limits",
    "services.Services": "agentgym_rl.gym.services.Services",
    "specs.EnvSpec": "agentgym_rl.EnvSpec",
    "step_clock.OffTheClock": "agentgym_rl.gym.step_clock.OffTheClock",
    "sync_env.SyncEnv": "agentgym_rl.SyncEnv",
    "sync_gym.env.SyncGym": "agentgym_rl.gym.gymnasium.SyncGym",
    "task.Task": "agentgym_rl.Task",
    "tool_env.tool": "agentgym_rl.tool",
    "trajectory.Trajectory": "agentgym_rl.Trajectory",
    "verifier.VerifierHandle": "agentgym_rl.Verifier",
    "wrappers.Record": "agentgym_rl.gym.wrappers.Record",
    "wrappers.timeout.Timeout": "agentgym_rl.gym.wrappers.timeout.Timeout",
    "wrappers.turn_limit.TurnLimit": "agentgym_rl.gym.wrappers.wrapper.TurnLimit",
}


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@cases("old, new", SOME.items(), ids=SOME)
def test_an_old_path_gives_the_same_object_and_names_the_new_path(old, new):
    module, _, name = f"agentgym_rl.{old}".rpartition(".")
    names: dict = {}
    with pytest.warns(DeprecationWarning, match=f"{re.escape(f'{module}.{name}')} is now {new};"):
        exec(f"from {module} import {name}", names)
    assert names[name] is found(new)


@cases("old", MOVED)
def test_every_old_module_leads_to_modules_that_exist(old):
    for new in MOVED[old].split():
        assert import_module(f"agentgym_rl.{new}") is not None


def test_a_module_warns_where_its_names_are_used():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        import agentgym_rl.errors
        import agentgym_rl.task as old_task

        assert not caught
        for _ in range(3):
            assert agentgym_rl.errors.InfraError is agentgym_rl.InfraError
        assert old_task.Task is agentgym_rl.Task
    assert [warning.filename for warning in caught] == [__file__] * 2, "once for each place"


def test_names_of_today_are_not_warned_about():
    """`wrappers` and `data` are public now; `import … as` gives the module itself."""
    import agentgym_rl.wrappers as wrappers

    from agentgym_rl import data

    assert wrappers is import_module("agentgym_rl.gym.wrappers")
    assert data is import_module("agentgym_rl.gym.data")


def test_old_pickles_can_be_read():
    task = agentgym_rl.Task(id="t", seed=1)
    old = pickle.dumps(task, protocol=0).replace(b"agentgym_rl.core.task", b"agentgym_rl.task")
    with pytest.warns(DeprecationWarning, match=r"agentgym_rl\.task\.Task is now"):
        assert pickle.loads(old) == task


def test_a_wrong_name_is_an_import_error():
    with pytest.raises(ImportError, match=r"'Envy' from 'agentgym_rl\.env'"):
        from agentgym_rl.env import Envy  # noqa: F401
    with pytest.raises(AttributeError, match=r"'agentgym_rl\.gym\.env', once agentgym_rl\.env"):
        _ = import_module("agentgym_rl.env").Envy
    with pytest.raises(ModuleNotFoundError, match=r"agentgym_rl\.env\.deeper"):
        import_module("agentgym_rl.env.deeper")
    with pytest.raises(ModuleNotFoundError, match=r"agentgym_rl\.never"):
        import_module("agentgym_rl.never")


def test_those_who_look_through_all_modules_see_nothing():
    for name in MOVED:
        module = sys.modules[f"agentgym_rl.{name}"]
        assert isinstance(module, _Moved)
        assert not hasattr(module, "__file__")
        assert not hasattr(module, "__path__")


def test_the_old_paths_import_nothing():
    code = (
        "import agentgym_rl, sys\n"
        "real = [n for n, m in sys.modules.items() if getattr(m, '__file__', None)]\n"
        "print(*sorted(n for n in real if n.startswith('agentgym_rl')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "agentgym_rl",
        "agentgym_rl.runtime",
        "agentgym_rl.runtime.moved",
    ]
