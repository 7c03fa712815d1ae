"""The model that a run began with: where it is, and that it is that one."""

import json
import shutil

import pytest

from agentgym_rl.config import Config, ModelConfig, dump_record, load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.models import BUNDLED_MODELS, model_digests, model_of_run
from agentgym_rl.models.resolve import BUNDLED


@pytest.fixture
def run(tmp_path):
    """A run of a model in a folder, which has gone since."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(BUNDLED, tmp_path / "mine")
    (run / "model.json").write_text(json.dumps(model_digests(tmp_path / "mine")))
    (tmp_path / "mine").rename(tmp_path / "moved")
    return run


def test_a_model_that_is_gone_is_named_with_its_digests(run, tmp_path):
    model = ModelConfig(path=str(tmp_path / "mine"))
    with pytest.raises(ConfigError) as gone:
        model_of_run(model, "math", run, flag="--base")
    digest = model_digests(BUNDLED)["weights"][:12]
    assert f"is gone: no folder {tmp_path / 'mine'}" in str(gone.value)
    assert f"weights {digest}" in str(gone.value)
    assert "name its place: --base FOLDER" in str(gone.value)
    (run / "model.json").write_text("{")
    with pytest.raises(ConfigError, match="not recorded"):
        model_of_run(model, "math", run)


def test_a_named_model_must_be_that_model(run, tmp_path):
    model = ModelConfig(path=str(tmp_path / "mine"))
    assert model_of_run(model, "math", run, given=str(tmp_path / "moved")) == tmp_path / "moved"
    with pytest.raises(ConfigError, match=r"has other .*weights than the model that .*run began"):
        model_of_run(model, "math", run, given="bundled/tools")


def test_a_bundled_model_is_found_by_its_name(run):
    model = ModelConfig(path="bundled/tools")
    assert model_of_run(model, "math", run) == BUNDLED_MODELS["bundled/tools"]


def test_a_copied_run_has_its_own_model_though_the_first_one_is_still_there(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "elsewhere" / "copy"
    shutil.copytree(BUNDLED, first / "init" / "model")
    config = Config.model_validate({"model": {"path": str(first / "init" / "model")}})
    (first / "config.toml").write_text(dump_record(config, first))
    shutil.copytree(first, copy)
    assert load_config(copy / "config.toml").model.path == str(copy / "init" / "model")
    assert load_config(first / "config.toml").model.path == str(first / "init" / "model")
