"""Iterating over tasks, and going on where it stopped: by itself, and by the real torchdata."""

import json

import pytest
from arl_data.formats import files_of

from agentgym_rl.core import ConfigError
from agentgym_rl.gym.data import Epochs, Rows, TaskLoader, row_tasks
from tests.kit.cases import cases

from .rows_kit import asked, choose, write


def ids(loader, count: int) -> list[str]:
    return [next(loader).id for _ in range(count)]


def test_it_goes_on_exactly(tmp_path):
    tasks = Epochs(asked(tmp_path, 10), seed=4)
    loader = TaskLoader(tasks)
    ids(loader, 13)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = ids(loader, 17)
    again = TaskLoader(tasks)
    again.load_state_dict(state)
    assert ids(again, 17) == rest


def test_a_finite_source_ends(tmp_path):
    tasks = asked(tmp_path, 3)
    assert [task.id for task in TaskLoader(tasks)] == [tasks[i].id for i in range(3)]


def test_the_state_of_other_tasks_is_refused(tmp_path):
    loader = TaskLoader(asked(tmp_path, 3))
    other = TaskLoader(asked(tmp_path, 4))
    with pytest.raises(ConfigError, match="of other tasks"):
        other.load_state_dict(loader.state_dict())
    with pytest.raises(ConfigError, match="expected an index"):
        loader.load_state_dict({"index": -1})


OTHERS = {
    "data": {"answer": 2},
    "weight": {"weight": 2},
    "id": {"id": "x"},
    "seed": {"seed": 1},
    "split": {"split": "eval"},
    "fraction": {"eval_fraction": 0.4},
    "epochs": {"epochs": {"seed": 0}},
    "epochs of another seed": {"epochs": {"seed": 1}},
    "epochs as they are": {"epochs": {"shuffle": False}},
}


def source(tmp_path, *, split="train", seed=0, eval_fraction=0.5, epochs=None, **fields):
    rows = [{"ask": f"What is {i}?", "answer": 1, "weight": 1} | fields for i in range(20)]
    path = write(tmp_path / "rows.jsonl", *rows)
    tasks = row_tasks(split, Rows(path=path, eval_fraction=eval_fraction), choose, seed=seed)
    return tasks if epochs is None else Epochs(tasks, **epochs)


@cases("other", OTHERS)
def test_whatever_makes_other_tasks_is_refused(tmp_path, other):
    states = {name: TaskLoader(source(tmp_path, **it)).state_dict() for name, it in OTHERS.items()}
    loader = TaskLoader(source(tmp_path, **OTHERS[other]))
    loader.load_state_dict(states.pop(other))
    for state in [TaskLoader(source(tmp_path)).state_dict(), *states.values()]:
        with pytest.raises(ConfigError, match="of other tasks"):
            loader.load_state_dict(state)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # between torch and torchdata
def test_torchdata_s_loader_takes_a_source_as_its_data_set(tmp_path, num_workers):
    from torchdata.stateful_dataloader import StatefulDataLoader

    options = {"batch_size": 3, "shuffle": True, "collate_fn": list, "num_workers": num_workers}
    loader = StatefulDataLoader(asked(tmp_path, 20), **options)
    batches = iter(loader)
    seen = [task.id for _ in range(3) for task in next(batches)]
    state = loader.state_dict()
    rest = [task.id for batch in batches for task in batch]
    assert len({*seen, *rest}) == 20
    again = StatefulDataLoader(asked(tmp_path, 20), **options)
    again.load_state_dict(state)
    assert [task.id for batch in again for task in batch] == rest


@pytest.mark.slow
def test_torchdata_s_nodes_take_a_loader(tmp_path):
    from torchdata.nodes import Batcher, IterableWrapper, Loader

    def made() -> Loader:
        return Loader(Batcher(IterableWrapper(TaskLoader(asked(tmp_path, 20))), 4))

    loader = made()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [[task.id for task in batch] for batch in batches]
    assert len(rest) == 4
    again = made()
    again.load_state_dict(state)
    assert [[task.id for task in batch] for batch in again] == rest


def test_the_state_is_one_integer_and_a_digest(tmp_path):
    loader = TaskLoader(asked(tmp_path, 5))
    ids(loader, 2)
    content = loader.state_dict()["content"]
    assert loader.state_dict() == {"index": 2, "content": content}
    other_order = asked(tmp_path, 5, weight_field="")
    assert other_order.describe()["content"] == content


def test_the_id_of_a_data_set_in_place_of_a_file_gets_its_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("openai/gsm8k", str(tmp_path / "openai/gsm8k")):
        with pytest.raises(ConfigError, match=r"--env\.options\.rows\.dataset=openai/gsm8k$"):
            files_of(path)
    with pytest.raises(ConfigError, match=r"fits any$"):
        files_of("data/rows.csv")
