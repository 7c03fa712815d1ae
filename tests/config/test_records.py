"""What a run's file lacks: every key that is newer than a format says what it was then."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from agentgym_rl.config import Config
from agentgym_rl.config.records import FORMAT, THEN, brought_up
from agentgym_rl.core import section_types
from tests.kit.cases import cases

KNOWN = Path(__file__).with_name(f"keys_of_format_{FORMAT}.txt")


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kinds = section_types(field)
        for kind in kinds:
            yield from keys_of(kind, f"{prefix}{name}.")
        if not kinds:
            yield prefix + name


def test_a_key_newer_than_the_format_has_its_earlier_value():
    """Runs that are not finished lack it: without a value of then, an upgrade would change them."""
    newer = set(keys_of(Config)) - set(KNOWN.read_text().split())
    assert newer <= THEN.keys(), f"add to THEN in agentgym_rl/config/records.py: {newer}"


def test_a_value_of_then_is_of_a_key_of_today():
    assert THEN.keys() <= set(keys_of(Config))


@cases("format, keeps", [(None, True), (0, True), (1, True), (2, False)])
@cases("name", ["reward", "reward:own:score", "reward-v0", "reward-v0:own:score"])
def test_runs_of_earlier_formats_keep_rows_with_blank_answers(tmp_path, format, keeps, name):
    own = {"id": name, "options": {"data": "rows.jsonl"}}
    mixed = {"id": "mix", "options": {"envs": [own, {"id": "math", "options": {}}]}}
    for env in (own, mixed):
        record = {"env": env} | ({} if format is None else {"format": format})
        values = brought_up(Config, record, tmp_path / "config.toml")
        options = values["env"]["options"]
        read = options["envs"][0]["options"] if env is mixed else options
        assert read.get("blank_answers", False) is keeps
    assert "blank_answers" not in str(
        brought_up(Config, {"env": {"id": "math", "options": {}}}, tmp_path)
    )
