"""`arl export --pairs`, `--kto`, `--filtered`: what TRL's trainers read, and what is left out."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from arl_audit.sft import Wanted, export_sft

from agentgym_rl.cli import main as cli
from agentgym_rl.config import dump_toml, load_config
from agentgym_rl.core import ConfigError, Group, Outcome, Task, Trajectory
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.storage import EpisodeLog
from tests.kit.cases import cases
from tests.kit.groups import make_row

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def look(at: str) -> dict:
    function = {"name": "look", "arguments": json.dumps({"at": at})}
    return {
        **{"role": "assistant", "content": None},
        "tool_calls": [{"id": "call_0_0", "type": "function", "function": function}],
    }


def seen(what: str) -> dict:
    return {"role": "tool", "tool_call_id": "call_0_0", "content": what}


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def said(text: str) -> dict:
    return {"role": "assistant", "content": text}


def episode(name: str, reward: float, *messages: dict, **more) -> Trajectory:
    group = name.partition("-")[0]
    turns = sum(message["role"] == "assistant" for message in messages)
    given = {"num_turns": turns, "tools": [TOOL], "outcome": Outcome.COMPLETED} | more
    return Trajectory(
        name, group, f"t-{group}", reward=reward, rows=[make_row([0])], messages=messages, **given
    )


SKY = (user("Where?"), look("sky"), seen("blue"))
GROUPS = [
    [  # after the same look
        episode("g0-0", 0.2, *SKY, said("Sea.")),
        episode("g0-1", 1.0, *SKY, said("Sky.")),
        episode("g0-2", 0.0, *SKY, said("Nowhere."), user("Sure?")),
        episode("g0-3", 0.9, user("Where?"), said("Up.")),
    ],
    [episode("g1-0", 1.0, *SKY, said("Sky.")), episode("g1-1", 1.0, *SKY, said("Sky."))],
    [episode("g2-0", 1.0, user("A"), said("x")), episode("g2-1", 0.0, user("B"), said("y"))],
    [
        episode("g3-0", 1.0, user("Q"), said("x")),
        episode("g3-1", 0.0, user("Q"), said("y"), tools=[]),
    ],
    [  # an example in the prompt
        episode("g4-0", 0.6, user("1"), said("one"), user("2"), said("two"), num_turns=1),
        episode("g4-1", 0.5, user("1"), said("one"), user("2"), said("2"), num_turns=1),
    ],
    [
        episode("g5-0", 1.0, user("Q"), said("x")),
        episode("g5-1", 0.0, user("Q"), said("y"), outcome=Outcome.ENV_ERROR),
    ],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), GROUPS)


def write_run(folder: Path, groups: Sequence[Sequence[Trajectory]]) -> Path:
    async def write():
        with closing(EpisodeLog(folder / "episodes.db")) as log:
            for index, members in enumerate(groups):
                name = f"g{index}"
                task = Task(f"t-{name}", index)
                await log.add_group(task, index, Group(name, task.id, members, index=index))

    asyncio.run(write())
    (folder / "config.toml").write_text(dump_toml(load_config()))
    return folder


@pytest.fixture
def export(folder, tmp_path):
    def run(**wanted) -> tuple[dict, list[dict]]:
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        report = export_sft(folder, out, Wanted(**wanted))
        return report, [json.loads(line) for line in out.read_text().splitlines()]

    return run


def parts(line: dict, *names: str) -> list:
    return [[message["content"] for message in line[name]] for name in names]


def test_a_pair_is_the_best_and_the_worst_from_where_they_differ(export):
    report, lines = export(kind="pairs")
    assert [line["episode_id"] for line in lines] == ["g0-1", "g4-0"]
    first, second = lines
    assert parts(first, "prompt", "chosen", "rejected") == [
        ["Where?", None, "blue"],
        ["Sky."],
        ["Nowhere."],  # what follows the last reply is left out
    ]
    assert first["prompt"][1]["tool_calls"][0]["function"]["arguments"] == {"at": "sky"}
    assert first["tools"] == [TOOL]
    assert (first["reward"], first["rejected_reward"]) == (1.0, 0.0)
    assert first["rejected_episode_id"] == "g0-2"
    assert parts(second, "prompt", "chosen", "rejected") == [["1", "one", "2"], ["two"], ["2"]]
    assert report["lines"] == 2
    assert report["episodes"] == 4
    assert report["left_out"] == {
        "no pair: its group has enough pairs": 2,
        "no pair: rewards too close": 4,  # g1, and who is left of g2 and g3
        "no pair: other prompt or tools": 2,
        "env_error": 1,
        "no pair: alone in its group": 1,
    }


def test_more_pairs_of_a_group_have_other_episodes(export):
    _, lines = export(kind="pairs", most=3)
    of = [(line["episode_id"], line["rejected_episode_id"]) for line in lines[:2]]
    assert of == [("g0-1", "g0-2"), ("g0-3", "g0-0")]
    assert parts(lines[1], "prompt", "chosen", "rejected") == [
        ["Where?"],
        ["Up."],
        [None, "blue", "Sea."],
    ]


@cases(
    "wanted, expected",
    [
        ({"margin": 0.1}, ["g0-1"]),
        ({"margin": 0.0}, ["g0-1", "g4-0"]),
        ({"min_reward": 0.7}, ["g0-1"]),
    ],
)
def test_pairs_differ_by_more_than_the_margin_and_are_good(export, wanted, expected):
    _, lines = export(kind="pairs", **wanted)
    assert [line["episode_id"] for line in lines] == expected


def test_kto_labels_every_episode(export):
    report, lines = export(kind="kto", min_reward=0.5)
    assert len(lines) == 13
    labels = {line["episode_id"]: line["label"] for line in lines}
    assert labels["g0-1"] is labels["g4-1"] is True
    assert labels["g0-0"] is labels["g3-1"] is False
    assert report["labels"] == {"good": 9, "bad": 4}
    by_name = {line["episode_id"]: line for line in lines}
    assert parts(by_name["g0-1"], "prompt", "completion") == [["Where?"], [None, "blue", "Sky."]]
    assert parts(by_name["g4-0"], "prompt", "completion") == [["1", "one", "2"], ["two"]]
    assert report["left_out"] == {"env_error": 1}


def test_filtered_takes_the_best_of_each_group_once(export):
    report, lines = export(kind="filtered", min_reward=0.6, most=2)
    assert [line["episode_id"] for line in lines] == [
        *("g0-1", "g0-3", "g1-0", "g2-0", "g3-0", "g4-0", "g5-0"),
    ]
    assert report["left_out"] == {"reward": 5, "env_error": 1, "the same conversation": 1}
    _, lines = export(kind="filtered", min_reward=0.6)
    assert len(lines) == 6
    assert parts(lines[0], "messages") == [["Where?", None, "blue", "Sky."]]


def game(name: str, reward: float) -> Trajectory:
    """A game that the first of two seats wins, by more or less."""
    seats = [
        episode(f"{name}.{seat}", paid, user(seat), said(f"{name}"), seat=seat, player="policy")
        for seat, paid in (("x", reward), ("o", -reward))
    ]
    rows = [row for seat in seats for row in seat.rows]
    return replace(episode(name, 0.0, num_turns=2), seats=seats, rows=rows)


def test_the_seats_of_games_are_not_compared_with_each_other(tmp_path):
    run = write_run(tmp_path, [[game("g0-0", 1.0), game("g0-1", 0.5)]])
    export_sft(run, tmp_path / "best", Wanted(kind="filtered", min_reward=-9))
    best = [json.loads(line) for line in (tmp_path / "best").read_text().splitlines()]
    assert [line["episode_id"] for line in best] == ["g0-0.x", "g0-1.o"]
    report = export_sft(run, tmp_path / "pairs", Wanted(kind="pairs"))
    assert (report["lines"], report["episodes"], report["left_out"]) == (2, 4, {})


@cases(
    "wanted, said",
    [
        ({"kind": "kto", "min_reward": float("nan")}, "expected a finite number"),
        ({"kind": "pairs", "min_reward": float("inf")}, "expected a finite number"),
        ({"kind": "pairs", "margin": float("inf")}, "a difference of rewards from 0"),
        ({"kind": "kto"}, "--kto needs --min-reward"),
        ({"kind": "filtered"}, "--filtered needs --min-reward"),
        ({"kind": "pairs", "most": 0}, "expected a number from 1"),
        ({"kind": "pairs", "margin": -1.0}, "a difference of rewards from 0"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(wanted, said):
    with pytest.raises(ConfigError, match=said):
        Wanted(**wanted)


def test_no_pair_at_all_is_an_error_with_the_reasons(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"no episode matches.*'no pair: rewards too close'"):
        export_sft(folder, tmp_path / "x.jsonl", Wanted(kind="pairs", margin=5.0))
    assert not list(tmp_path.iterdir())


@cases(
    "flags, said",
    [
        (["--pairs", "--kto"], "give one of them"),
        (["--kto", "--most", "2", "--min-reward", "1"], "--most counts"),
        (["--filtered", "--margin", "2", "--min-reward", "1"], "--margin is of pairs"),
        (["--pairs", "--format", "tokens"], "--format tokens goes with --sft alone"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(folder, tmp_path, flags, said, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["export", *flags, str(folder), "--out", str(tmp_path / "x")])
    assert (end.value.code, said in capsys.readouterr().err) == (2, True)


def test_the_command_says_what_it_wrote(folder, tmp_path, capsys):
    for flags in (["--pairs"], ["--kto", "--min-reward", "-1"]):
        out = tmp_path / f"{flags[0]}.jsonl"
        with pytest.raises(SystemExit) as end:
            cli.main(["export", *flags, str(folder), "--out", str(out)])
        assert end.value.code == 0
    text, _ = capsys.readouterr()
    assert "2 lines of 4 episodes (4 train)" in text
    assert "4 for no pair: rewards too close" in text
    assert "labels: 13 good, 0 bad" in text
    assert "KTO learns from both kinds" in text


@pytest.mark.slow
def test_trl_reads_them(folder, tmp_path, monkeypatch):
    """TRL takes the columns for conversations, and its template renders prompts and completions."""
    data_utils = pytest.importorskip("trl.data_utils")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    for kind, columns in (
        ("pairs", {"prompt", "chosen", "rejected"}),
        ("kto", {"prompt", "completion", "label"}),
        ("filtered", {"messages"}),
    ):
        out = tmp_path / f"{kind}.jsonl"
        export_sft(folder, out, Wanted(kind=kind, min_reward=0.5))
        rows = load_dataset(
            "json", data_files=str(out), split="train", cache_dir=str(tmp_path / "c")
        )
        for row in rows:
            kept = {name: row[name] for name in columns}
            assert data_utils.is_conversational(kept)
            text = data_utils.apply_chat_template(kept, tokenizer, tools=row["tools"])
            assert all(
                isinstance(text[name], str) and text[name]
                for name in columns - {"label", "messages"}
            )
            if kind == "pairs":
                assert text["chosen"] != text["rejected"]
