"""The notebooks of examples/notebooks, executed by nbclient; and a cell that is interrupted."""

import asyncio
import os
from pathlib import Path

import pytest

if "notebooks" not in os.environ.get("ARL_REQUIRE", ""):
    pytest.importorskip("nbclient", reason="make test-notebooks installs it")
    pytest.importorskip("ipykernel", reason="make test-notebooks installs it")

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples/notebooks"
LIMIT_S = 300


def client(notebook: nbformat.NotebookNode, **options) -> NotebookClient:
    return NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", **options)


def shown(cell: nbformat.NotebookNode, kind: str) -> str:
    """The outputs of a cell of one kind, such as text/html."""
    return "\n".join(output["data"].get(kind, "") for output in cell.outputs if "data" in output)


def executed(name: str, folder: Path) -> list[nbformat.NotebookNode]:
    """The cells with code of an executed notebook, whose runs are in `folder`."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    client(notebook).execute(cwd=str(folder))
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_each_notebook_is_tested_and_kept_without_outputs():
    names = {file.stem for file in FOLDER.glob("*.ipynb")}
    assert names == {"first_run", "own_environment_and_agent", "episodes_and_curves"}
    for name in names:
        cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
        assert all(not cell.get("outputs") for cell in cells)


@pytest.mark.slow
def test_the_first_run_shows_its_progress_its_result_and_a_curve(tmp_path):
    _, trained, plotted, held_out, tasks = executed("first_run", tmp_path)
    assert "<progress" in shown(trained, "text/html")
    assert "held-out reward" in shown(trained, "text/html")
    assert "TrainResult(runs/" in shown(trained, "text/plain")
    assert shown(plotted, "image/png")
    assert "EvalResult(" in shown(held_out, "text/plain")
    assert shown(tasks, "image/png")


@pytest.mark.slow
def test_classes_of_cells_are_trained_with_and_a_callback_stops_the_run(tmp_path):
    *_, last = executed("own_environment_and_agent", tmp_path)
    assert last.outputs[0]["data"]["text/plain"].endswith(", 2, 'stopped')")
    (config,) = tmp_path.glob("runs/*/config.toml")
    assert 'id = "__main__:Warmer"' in config.read_text()


@pytest.mark.slow
def test_episodes_are_a_table_and_metrics_are_curves(tmp_path):
    _, table, _, plotted, runs = executed("episodes_and_curves", tmp_path)
    assert "question" in shown(table, "text/html")
    assert shown(plotted, "image/png")
    assert "'finished', 2" in shown(runs, "text/plain")


LONG = """
from agentgym_rl import train
small = {"env": "math", "steps": 10000, "eval.num_tasks": 0, "rollout.groups_per_batch": 2}
await train(overrides=small)
"""


@pytest.mark.slow
def test_an_interrupted_cell_ends_with_one_line(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LONG)])
    running = client(notebook, allow_errors=True)

    async def interrupt() -> None:
        async with running.async_setup_kernel(cwd=str(tmp_path)):
            cell = asyncio.create_task(running.async_execute_cell(notebook.cells[0], 0))
            while not list(tmp_path.glob("runs/*/metrics.jsonl")):  # noqa: ASYNC110 - another's file
                await asyncio.sleep(0.2)
            await running.km.interrupt_kernel()
            await cell

    asyncio.run(interrupt())
    (error,) = [it for it in notebook.cells[0].outputs if it.output_type == "error"]
    (line,) = error.traceback
    assert line.startswith("Interrupted. Continue with: await train(resume='runs/math-react-")
    assert "interrupted, after" in shown(notebook.cells[0], "text/html")
