"""Where a model is: bundled, a folder here, or a hub id, and which of them was meant."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects

from agentgym_rl.config import Config, EnvConfig, ModelConfig, load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.models import (
    BUNDLED_MODELS,
    check_tokenizer,
    local_folder,
    model_folder,
    other_folders,
    resolve,
    resolve_model,
    resolve_paths,
)
from agentgym_rl.models.resolve import BUNDLED
from tests.kit.cases import cases


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A model folder, its parent being the current folder and the home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models" / "own").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "models" / "own" / name).write_text("{}")
    return tmp_path / "models" / "own"


@pytest.fixture
def offline(monkeypatch):
    """No network and no cache, as far as the hub's client is concerned."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/nowhere")


def refusal(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_model(path)
    return str(caught.value)


@cases(
    "env, name",
    [
        ("math", "bundled/math"),
        ("math-v0", "bundled/math"),
        ("tools", "bundled/tools"),
        ("tools-v0", "bundled/tools"),
        ("gymnasium:FrozenLake-v1", "bundled/frozenlake"),
        ("gymnasium-v0:FrozenLake-v1", "bundled/frozenlake"),
        ("code", "bundled/code"),
        ("harbor:bugs", "bundled/bugs"),
        ("tictactoe-v0", "bundled/tictactoe"),
        ("gymnasium:Taxi-v3", "bundled/math"),
        ("my_module:Tools", "bundled/math"),
    ],
)
def test_bundled_is_the_model_of_the_environment(env, name):
    config = Config(env=EnvConfig(id=env))
    resolved = resolve_paths(config)
    assert resolved.model.path == name
    assert (
        model_folder(config.model, config.env.id)
        == model_folder(resolved.model, resolved.env.id)
        == BUNDLED_MODELS[name]
    )


def test_a_named_model_stays_whatever_the_environment():
    config = Config(env=EnvConfig(id="tools"), model=ModelConfig(path="bundled/math"))
    assert resolve_paths(config) == config
    assert model_folder(config.model, config.env.id) == BUNDLED


def test_bundled_alone_is_no_folder():
    assert ", ".join(BUNDLED_MODELS) in refusal("bundled")


@cases("path", ["models/own", "./models/own/", "~/models/own", "models/../models/own"])
def test_a_folder_is_absolute(folder, path):
    assert resolve_model(path) == folder


def test_weights_for_other_programs_are_not_downloaded(folder, monkeypatch):
    """Many repositories hold the weights several times."""
    files = ["config.json", "model.safetensors", "onnx/model_fp16.onnx", "original/params.json"]
    taken = []

    def download(path, *, revision, allow_patterns, ignore_patterns):
        assert allow_patterns is None
        taken.extend(filter_repo_objects(files, ignore_patterns=ignore_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_model("owner/name") == folder
    assert taken == files[:2]


def test_a_folder_without_a_model_is_named(folder):
    (folder / "tokenizer.json").unlink()
    assert "models/own is no model folder: tokenizer.json is missing" in refusal("models/own")
    assert "config.json is no model folder" in refusal("models/own/config.json")


@cases(
    "path",
    ["runs/x/export", "./own", "../own", "/no/such", "~/own", "~nobody/x", "models/own2/", " "],
)
def test_a_missing_folder_is_no_hub_id(folder, path):
    message = refusal(path)
    assert "no folder" in message
    assert "`owner/name`" in message


@pytest.mark.parametrize("id", ["runs/export", "gpt2", "Qwen/Qwen3-0.6B"])
def test_what_may_be_a_hub_id_is_said_to_be_no_folder_either(folder, offline, id):
    message = refusal(id)
    assert f"no folder {id!r} here (in {Path.cwd()})" in message
    assert f"hf download {id}" in message


def test_a_folder_here_is_found_without_asking_the_hub(folder, offline):
    names = ("bundled/tools", "models/own", "~/models/own", "owner/name")
    found = [local_folder(ModelConfig(path=name), "math") for name in names]
    assert found == [BUNDLED_MODELS["bundled/tools"], folder, folder, None]


def test_asking_the_hub_is_not_silent(folder, offline, caplog):
    caplog.set_level("INFO", logger=resolve.__name__)
    refusal("runs/export")
    assert "asking the Hugging Face hub" in caplog.text


def test_an_environment_without_a_model_of_its_own_is_warned_of(caplog):
    faults = []
    for env, path, warned in (
        ("math", "bundled", False),
        ("math-v0", "bundled", False),
        ("tools", "bundled", False),
        ("gymnasium:FrozenLake-v1", "bundled", False),
        ("gymnasium:CartPole-v1", "bundled", True),
        ("reward", "bundled", True),
        ("own:Env", "bundled", True),
        ("own:Env", "bundled/math", False),
    ):
        caplog.clear()
        config = Config(env=EnvConfig(id=env), model=ModelConfig(path=path))
        resolved = resolve_paths(resolve_paths(config))
        said = [record.getMessage() for record in caplog.records]
        if len(said) != warned or any(
            word not in text for text in said for word in (env, resolved.model.path, "--model")
        ):
            faults.append((env, path, said))
    assert not faults


@cases(
    "path, resolved",
    [
        ("bundled", "bundled/math"),
        ("bundled/tools", "bundled/tools"),
        ("models/own", "HERE/models/own"),
        ("~/models", "HERE/models"),
        ("models/gone", "models/gone"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    ],
)
def test_a_run_remembers_where_its_model_was(folder, path, resolved):
    config = Config(steps=3, model=ModelConfig(path=path, revision="main"))
    want = ModelConfig(path=resolved.replace("HERE", str(Path.cwd())), revision="main")
    assert resolve_paths(config) == Config(steps=3, model=want)


def _edited(folder: Path, name: str, **keys) -> None:
    found = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**found, **keys}))


def _in_the_config(folder: Path) -> None:
    """The same template, in tokenizer_config.json, with other line ends."""
    file = folder / "chat_template.jinja"
    text = file.read_text().replace("\n", "\r\n") + "\n"
    _edited(folder, "tokenizer_config.json", chat_template=[{"name": "default", "template": text}])
    file.unlink()


TEACHERS = {
    "the same": (lambda d: None, []),
    "in the config": (_in_the_config, []),
    "another template": (
        lambda d: (d / "chat_template.jinja").write_text("{{ messages }}"),
        ["has another chat template than the policy; line 1 is '{{ messages }}' there"],
    ),
    "no template": (
        lambda d: (d / "chat_template.jinja").unlink(),
        ["has no chat template, and the policy has one"],
    ),
    "other ends": (
        lambda d: _edited(d, "generation_config.json", eos_token_id=[0, 3]),
        ["ends a reply with '", "(3), and the policy with '"],
    ),
    "no end": (
        lambda d: [
            _edited(d, "generation_config.json", eos_token_id=None),
            _edited(d, "config.json", eos_token_id=None),
            _edited(d, "tokenizer_config.json", eos_token=None),
        ],
        ["ends a reply with nothing, and the policy with '"],
    ),
}


@cases("change, said", TEACHERS.values(), ids=TEACHERS)
def test_a_teacher_that_is_prompted_otherwise_is_named(tmp_path, caplog, change, said):
    caplog.clear()
    teacher = Path(tempfile.mkdtemp(dir=tmp_path)) / "teacher"
    shutil.copytree(BUNDLED, teacher)
    change(teacher)
    check_tokenizer(teacher, BUNDLED, who="the teacher")
    assert len(caplog.records) == bool(said)
    assert all(words in caplog.text for words in said)


def test_a_teacher_with_a_damaged_file_is_refused(tmp_path):
    shutil.copytree(BUNDLED, tmp_path / "teacher")
    (tmp_path / "teacher" / "tokenizer_config.json").write_text("[" * 200_000)
    with pytest.raises(ConfigError, match=r"cannot read .*tokenizer_config\.json"):
        check_tokenizer(tmp_path / "teacher", BUNDLED, who="the teacher")


def test_the_folders_beside_the_policy_are_those_of_the_reference_and_of_teachers():
    """Not servers, and not the model that the run begins with, which is the policy's own."""
    keys = {"algo.teacher.models": ["bundled/agents", "http://there"], "algo.kl.coef": 0.1}
    for reference, more in (("initial", {}), ("bundled/math", {BUNDLED: "the reference model"})):
        algo = load_config(None, {**keys, "algo.kl.reference": reference}).algo
        assert other_folders(algo) == {BUNDLED_MODELS["bundled/agents"]: "the teacher", **more}
        (ref, _) = algo.other_models
        assert (ref.role, ref.model, ref.moved_by) == (
            "reference",
            "" if reference == "initial" else reference,
            "",
        )


def check(algo) -> None:
    for folder, title in other_folders(algo).items():
        check_tokenizer(folder, BUNDLED, who=title)


def test_a_folder_whose_files_are_broken_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    algo = load_config(None, {"algo.teacher.models": str(tmp_path)}).algo
    for text, said in {
        "{}": r"tokenizer\.json is no tokenizer: EOF",
        "{": r"config\.json is no JSON",
        "[]": r"config\.json is a list, no model's keys",
    }.items():
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=said):
            check(algo)


def test_a_teacher_alone_leaves_the_reference_unset():
    models = '[{ model = "http://127.0.0.1:1" }, { model = "bundled/math" }]'
    config = load_config(overrides={"algo.teacher.models": models})
    assert resolve_paths(config).algo.kl.reference == ""


@cases(
    "name, said",
    [
        ("model.gguf", "is no model folder: it is a file; expected one as `hf"),
        ("model", "is no model folder: config.json is missing; expected one"),
    ],
)
def test_what_is_no_model_folder_says_what_one_is(tmp_path, name, said):
    (tmp_path / "model").mkdir()
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ConfigError, match=said):
        resolve_model(str(tmp_path / name))


def test_a_misspelt_bundled_model_does_not_ask_the_hub(caplog):
    with caplog.at_level("INFO"), pytest.raises(ConfigError, match=r"Did you mean bundled/math"):
        resolve_model("bundled/maths")
    assert "hub" not in caplog.text
