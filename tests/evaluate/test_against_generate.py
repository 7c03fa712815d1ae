"""`scripts/against_generate.py`: greedy replies of `arl eval` beside those of transformers."""

import json

import pytest

from agentgym_rl.core import ConfigError
from scripts import against_generate
from tests.e2e.forked import arl


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """An evaluation at temperature 0, on rows of GSM8K's form."""
    folder = tmp_path_factory.mktemp("greedy")
    solved = {"question": "Six times seven?", "answer": "<<6*7=42>>42\n#### 42"}
    rows = [solved | {"question": f"{number}: {solved['question']}"} for number in range(6)]
    file = folder / "test.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = arl(
        *("eval", "--env", "math", "--agent=single_turn", "--eval.temperature=0"),
        *(f"--env.options.eval_data={file}", "--eval.num_tasks=6", "--rollout.max_tokens=24"),
        *("--out", folder / "kept"),
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder / "kept"


@pytest.mark.slow
def test_greedy_replies_are_those_of_generate(kept, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    against_generate.compare(kept, out, most=4, batch=3)
    against_generate.compare(kept, out, most=10, batch=1)  # continues
    rows = against_generate.rows_of(out)
    assert len({row["task_id"] for row in rows}) == len(rows) == 6
    assert against_generate.report(rows), capsys.readouterr().out
    assert "6 rows: 6 equal replies, 6 equal rewards" in capsys.readouterr().out


@pytest.mark.slow
def test_another_reply_is_shown_and_is_no_tie(kept, tmp_path, capsys, monkeypatch):
    right = against_generate.Generated.replies

    def wrong(self, prompts):
        return [[*ids[:1], ids[0], *ids[2:]] for ids in right(self, prompts)]

    monkeypatch.setattr(against_generate.Generated, "replies", wrong)
    out = tmp_path / "rows.jsonl"
    against_generate.compare(kept, out, most=2, batch=2)
    rows = against_generate.rows_of(out)
    assert not against_generate.report(rows)
    assert "token 1: " in capsys.readouterr().out


@pytest.mark.slow
def test_sampled_replies_are_refused(kept, tmp_path):
    (tmp_path / "config.toml").write_text("[eval]\ntemperature = 0.5\n")
    with pytest.raises(ConfigError, match="each task once"):
        against_generate.compare(tmp_path, tmp_path / "rows.jsonl", most=2, batch=2)
