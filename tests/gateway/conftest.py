"""The gateway of tests/kit, and a path to what files of tests here share."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from agentgym_rl.models.resolve import BUNDLED
from tests.kit.stage import chat, spell, stage, thinker, words

__all__ = ["chat", "spell", "stage", "thinker", "words"]

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def folder_with(tmp_path):
    """Makes a model folder like the bundled one. `opening` is put before its chat template, or
    `template` in its place; `config` is added to tokenizer_config.json, which `settings` replace;
    `map` is special_tokens_map.json."""

    def made(*, opening="", template="", config=None, settings=None, map=None):
        folder = Path(tempfile.mkdtemp(dir=tmp_path)) / "model"
        shutil.copytree(BUNDLED, folder)
        file = folder / "chat_template.jinja"
        file.write_text(template or opening + file.read_text())
        file = folder / "tokenizer_config.json"
        known = json.loads(file.read_text()) if settings is None else settings
        file.write_text(json.dumps({**known, **(config or {})}))
        if map is not None:
            (folder / "special_tokens_map.json").write_text(json.dumps(map))
        return folder

    return made
