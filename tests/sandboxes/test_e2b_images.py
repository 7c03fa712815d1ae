"""The images of the e2b backend: which are built at E2B, how often, and what failures become.

What programs see in them is in `tests/contracts`, over the same fake.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("e2b", reason="the e2b SDK is not installed")
sys.path.insert(0, str(Path(__file__).parent))  # for the parts of the fake

from arl_check.report import Outcome
from arl_check.run import check_env
from e2b_fake import fails, options, play, until
from e2b_vm import why_not

from agentgym_rl.config import SandboxConfig
from agentgym_rl.core import ImageError, SandboxError
from agentgym_rl.gym import ImageRecipe
from tests.exhaustive import EXHAUSTIVE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "works"),
]
PLAIN = "FROM python:3.11-slim\nWORKDIR /app\nCOPY a.txt .\n"
BUILT = PLAIN + "RUN cp a.txt b.txt\nWORKDIR /app/sub\n"


def recipe(text: str, **more: bytes) -> ImageRecipe:
    return ImageRecipe("task", {"Dockerfile": text.encode(), "a.txt": b"A", **more})


async def told(backend, text: str, *argv: str, **more) -> str:
    """What a program says in a new sandbox of a recipe."""
    image = await backend.prepare(recipe(text), **more)
    async with await backend.create(image=image) as sandbox:
        result = await sandbox.exec(argv)
        return result.stdout_text + result.stderr_text


# ---------------------------------------------------------------------- without a build
def test_a_recipe_without_programs_needs_no_template(server):
    assert play(server, lambda backend: told(backend, PLAIN, "cat", "a.txt")) == "A"
    assert not server.requests.keys() & {"alias", "template", "build"}


def test_a_published_image_that_the_template_stands_for_needs_none(server):
    async def scenario(backend):
        image = await backend.prepare(ImageRecipe("task", published="docker.io/library/python:3"))
        async with await backend.create(image=image) as sandbox:
            return image.work_dir, (await sandbox.exec(["pwd"])).stdout

    assert play(server, scenario) == ("/", b"/\n")
    assert not server.templates.num_built


def test_a_template_of_the_account_stands_for_a_base_that_is_named(server):
    server.templates.request({"name": "mine"})
    server.templates.find("mine").files = b""
    text = PLAIN.replace("python:3.11-slim", "own/base:1")

    async def scenario(backend):
        said = await told(backend, text, "cat", "a.txt")
        return said, await told(backend, f"{text}RUN echo B > b.txt\n", "cat", "b.txt")

    assert play(server, scenario, bases={"own/base:1": "mine"}) == ("A", "B\n")
    assert server.templates.num_built == 1


def test_a_warm_machine_takes_the_files_of_an_image(server):
    async def scenario(backend):
        await until(lambda: len(backend._warm) == 1)
        (ready,) = server.boxes
        image = await backend.prepare(recipe(PLAIN))
        async with await backend.create(image=image) as sandbox:
            return sandbox.id == f"e2b-{ready}", (await sandbox.exec(["cat", "a.txt"])).stdout

    assert play(server, scenario, warm=1) == (True, b"A")


def test_images_that_were_not_used_for_long_are_prepared_again(server, monkeypatch):
    monkeypatch.setattr("arl_sandboxes.e2b.images.NUM_KEPT", 2)

    async def scenario(backend):
        made = [await backend.prepare(recipe(f"{PLAIN}ENV N={n}\n")) for n in range(3)]
        gone = await fails(backend.create(image=made[0]), SandboxError)
        again = await backend.prepare(recipe(f"{PLAIN}ENV N=0\n"))
        async with await backend.create(image=made[2]) as sandbox:
            return gone, again == made[0], (await sandbox.exec(["sh", "-c", "echo $N"])).stdout

    gone, same, said = play(server, scenario)
    assert "not prepared" in gone
    assert (same, said) == (True, b"2\n")


def test_a_reset_takes_no_other_machine_and_ends_what_ran(server):
    async def scenario(backend):
        image = await backend.prepare(recipe(PLAIN))
        async with await backend.create(image=image) as sandbox:
            shell = await sandbox.open_session("shell")
            await shell.run("echo B > a.txt; sleep 600 & true")
            await sandbox.reset()
            said = await fails(shell.run("true"))
            left = [line for box in server.boxes.values() for line in box.vm.processes()]
            return (
                said,
                any("sleep\x00600" in line for line in left),
                await sandbox.read_file("a.txt"),
            )

    said, sleeps, data = play(server, scenario)
    assert "was reset" in said
    assert (sleeps, data) == (False, b"A")
    assert server.requests["create"] == 1


def test_files_that_cannot_be_added_are_no_image(server):
    """The fake's /usr cannot be written."""

    async def scenario(backend):
        image = await backend.prepare(recipe("FROM debian:12\nCOPY a.txt /usr/lib/\n"))
        said = await fails(backend.create(image=image), ImageError)
        async with await backend.create() as sandbox:  # there is one place: it was given back
            return said, await sandbox.run_python("print(1)")

    said, result = play(server, scenario, sandboxes=1)
    assert "usr/lib/a.txt" in said
    assert result.ok


@pytest.mark.parametrize(
    ("user", "ids"),
    [("user", "1000 1000"), ("1000", "1000 0"), ("7:8", "7 8"), ("user:root", "1000 0")],
)
def test_programs_run_as_the_images_user(server, user, ids):
    text = f"FROM debian:12\nRUN echo root:x:0: > /etc/group\nUSER {user}\n"
    argv = ("sh", "-c", "echo $(id -u) $(id -g); grep CapEff /proc/self/status; touch /etc/x")
    said = play(server, lambda backend: told(backend, text, *argv))
    assert said.startswith(f"{ids}\nCapEff:\t0000000000000000\n")
    assert "Permission denied" in said


def test_an_unknown_user_is_no_image(server):
    said = play(
        server, lambda b: fails(told(b, "FROM debian:12\nUSER nobody-here\n", "true"), ImageError)
    )
    assert "nobody-here" in said


def test_a_sandbox_without_an_image_forwards_nothing_and_says_what_to_do(server):
    async def scenario(backend):
        async with await backend.create() as sandbox, sandbox.forward(8000, "127.0.0.1:9"):
            pass

    with pytest.raises(SandboxError, match="create it from an image"):
        play(server, scenario)


@pytest.mark.skipif(not EXHAUSTIVE, reason="a minute; tests/security/test_harbor.py plays some")
def test_the_coding_gym_pays_its_solutions_and_nothing_else(server):
    """What `arl check harbor:bugs --sandbox e2b` judges."""
    reach = SandboxConfig(id="e2b", options=options(server))
    checked = check_env(
        "harbor-v0", episodes=1, only=("gold", "no-op"), sandbox=reach, source="bugs"
    )
    report = asyncio.run(asyncio.wait_for(checked, 200))
    found = {result.id: result.outcome for result in report.results}
    assert (found["gold"], found["no-op"]) == (Outcome.PASSED, Outcome.PASSED)
    assert not server.templates.num_built


# ---------------------------------------------------------------------- builds
def test_an_account_builds_a_template_once(server):
    argv = ("sh", "-c", "pwd; cat ../a.txt ../b.txt; id -u")
    for _ in range(2):  # another backend finds it
        assert play(server, lambda backend: told(backend, BUILT, *argv)) == "/app/sub\nAA0\n"
    assert server.templates.num_built == 1
    assert server.requests["upload"] == 2  # before the program, and after it


def test_the_next_build_uploads_only_what_is_new(server):
    async def scenario(backend):
        await backend.prepare(recipe(BUILT))
        before = server.requests["upload"]
        await backend.prepare(recipe(BUILT + "ENV A=1\nRUN true\n"))
        return server.requests["upload"] - before

    assert play(server, scenario) == 0


def test_programs_of_a_build_get_variables_folder_and_user(server):
    text = (
        "FROM debian:12\nARG N=1\nENV V='a b'\nWORKDIR /w\n"
        "RUN echo \"$N $V $PWD $(id -u)\" > said\n"
        "RUN chmod 777 .\nUSER user\nRUN [\"sh\", \"-c\", \"id -u >> said2\"]\n"
    )  # fmt: skip
    said = play(server, lambda backend: told(backend, text, "cat", "said", "said2"))
    assert said == "1 a b /w 0\n1000\n"


def test_a_failed_build_says_why_and_is_not_tried_again(server):
    text = f"{PLAIN}RUN for i in $(seq 300); do echo line $i; done; echo oh no >&2; exit 3\n"

    async def scenario(backend):
        said = await fails(backend.prepare(recipe(text)), ImageError)
        return said, await fails(backend.prepare(recipe(text)), ImageError)

    said, again = play(server, scenario)
    assert said == again
    assert said.startswith("task: the build at E2B failed: exit status 3")
    assert "oh no" in said
    assert server.templates.num_built == 1


def test_a_build_that_takes_too_long_is_ended(server):
    async def scenario(backend):
        slow = backend.prepare(recipe(f"{PLAIN}RUN sleep 8\n"), timeout_s=0.5)
        return await fails(slow, ImageError)

    assert "longer than it may" in play(server, scenario)


def test_a_template_whose_build_never_ended_is_built_again(server):
    async def scenario(backend):
        image = await backend.prepare(recipe(BUILT))
        server.templates.find(image.place).files = None  # as after a crash of the first build
        backend._images.forget(image)
        return await told(backend, BUILT, "cat", "../b.txt")

    assert play(server, scenario) == "A"
    assert server.templates.num_built == 2


@pytest.mark.parametrize("operation", ["alias", "template", "link", "upload", "build", "status"])
def test_a_failure_of_e2b_is_no_failed_build(server, operation):
    async def scenario(backend):
        server.faults[operation] = [500]
        error = await fails(backend.prepare(recipe(BUILT)), SandboxError)
        return error, await told(backend, BUILT, "cat", "../b.txt")

    error, said = play(server, scenario, retries=0)
    assert "500" in error
    assert said == "A"


def test_an_image_without_python_is_no_image(server):
    async def scenario(backend):
        return await fails(backend.prepare(recipe(f"{PLAIN}RUN true\n")), ImageError)

    said = play(server, scenario, python="/nowhere/python3")
    assert "an image needs /nowhere/python3" in said
