"""The remedy for each refusal of the hub, by a hub that answers as the real one does."""

import errno
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from arl_data.hub import _advice
from huggingface_hub import HfApi, constants, errors

from agentgym_rl.core import ConfigError
from agentgym_rl.models import resolve_model
from tests.kit.cases import cases

ID = "owner/Model-1B"
ANSWERS = {
    "gated": (403, "X-Error-Code", "GatedRepo"),
    "missing": (404, "X-Error-Code", "RepoNotFound"),
    "revision": (404, "X-Error-Code", "RevisionNotFound"),
    "refused": (401, "X-Error-Message", "Invalid credentials in Authorization header"),
}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, name, value = ANSWERS[self.server.answer]  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[HTTPServer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def refusal(hub: HTTPServer, answer: str, *, revision: str | None = None) -> str:
    hub.answer = answer  # type: ignore[attr-defined]
    with pytest.raises(ConfigError) as caught:
        resolve_model(ID, revision=revision)
    return str(caught.value)


@cases(
    "answer, token, said",
    [
        ("gated", "", "accept its licence at {url} (some owners grant access by hand), and there"),
        ("gated", "", "there is no token here: run `hf auth login`, or set HF_TOKEN"),
        ("gated", "hf_x", "the account of the token from HF_TOKEN has no access to it yet"),
        ("missing", "", "has no model owner/Model-1B, or it is private and there is no token here"),
        ("missing", "hf_x", "or it is private and the token from HF_TOKEN has no access: check"),
        ("refused", "hf_x", "refuses the token from HF_TOKEN: make another at "),
    ],
)
def test_each_refusal_has_its_remedy(hub, monkeypatch, answer, token, said):
    monkeypatch.setenv("HF_TOKEN", token)
    found = refusal(hub, answer)
    assert said.format(url=f"{constants.ENDPOINT}/{ID}") in found
    assert "without network" not in found
    assert "hf_x" not in found


def test_a_revision_that_is_not_there_is_named(hub):
    assert "has no revision 'v9': leave out model.revision" in refusal(
        hub, "revision", revision="v9"
    )


def test_an_id_that_looks_like_a_known_model_is_compared(hub, tmp_path):
    (tmp_path / "cache" / "models--Owner--Model-1B-Base").mkdir(parents=True)
    (tmp_path / "model-1b").mkdir()
    (tmp_path / "model-1b" / "config.json").write_text("{}")
    found = refusal(hub, "missing")
    assert "Did you mean Owner/Model-1B-Base or model-1b?" in found
    assert "Did you mean" not in refusal(hub, "gated")
    with pytest.raises(ConfigError, match=r"Did you mean bundled/tools"):
        resolve_model("./bundled/tool")


def test_a_hub_that_does_not_answer_is_the_network(hub):
    hub.shutdown()
    hub.server_close()
    assert f"On a machine without network: run `hf download {ID}`" in refusal(hub, "gated")


@cases(
    "answer, said",
    [
        ("gated", "the data set owner/Model-1B of the Hugging Face hub is gated: accept its"),
        ("missing", "the Hugging Face hub has no data set owner/Model-1B, or it is private"),
        ("revision", "has no revision 'v9': leave out env.options.rows.revision"),
    ],
)
def test_data_sets_have_the_same_remedies(hub, answer, said):
    hub.answer = answer
    with pytest.raises(errors.HfHubHTTPError) as caught:
        HfApi(endpoint=constants.ENDPOINT).dataset_info(ID, revision="v9")
    wrapped = FileNotFoundError("Dataset cannot be accessed.")
    wrapped.__cause__ = caught.value
    found = _advice(ID, None, "v9", wrapped)
    assert said in found
    assert f"{constants.ENDPOINT}/datasets/{ID}" in found
    assert "without network" not in found


def test_an_error_of_the_data_set_itself_is_not_the_hubs():
    found = _advice(ID, "x", None, ValueError("BuilderConfig 'x' not found"))
    assert found.endswith("cannot be loaded: ValueError: BuilderConfig 'x' not found")


def test_a_full_disk_is_not_the_network(hub, monkeypatch):
    def full(*args: object, **options: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    found = refusal(hub, "gated")
    assert "No space left on device" in found
    assert "set HF_HOME" in found
    assert not Path("cache").exists()
