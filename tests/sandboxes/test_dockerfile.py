"""The reader of Dockerfiles: what it makes of each instruction, and what it refuses by line."""

import pytest
from arl_sandboxes.dockerfile import Copy, Dockerfile, Folder, Plan, Run, digest, words

from agentgym_rl.core import ImageError
from agentgym_rl.gym import ImageRecipe
from tests.kit.cases import cases

CONTEXT = {
    "a.txt": b"A",
    "b.txt": b"B",
    "run.sh": b"#!/bin/sh\n",
    "src/m.py": b"",
    "src/t/u.py": b"",
}


def planned(text: str, **more: bytes) -> Plan:
    recipe = ImageRecipe("task", {"Dockerfile": text.encode(), **CONTEXT, **more})
    return Dockerfile(recipe).plan({"PATH": "/bin"})


def copied(line: str) -> Copy:
    step = planned(f"FROM debian\nWORKDIR /app\n{line}").steps[-1]
    assert isinstance(step, Copy)
    return step


@cases(
    "text, expected",
    [
        ("a b", ["a", "b"]),
        ("'a b' \"c d\"e", ["a b", "c de"]),
        ("$X-${X}y", ["1-1y"]),
        ("'$X' \"$X\" \\$X", ["$X", "1", "$X"]),
        ("${NO:-d} ${X:-d} ${E:-d} ${E-d}", ["d", "1", "d", ""]),
        ("${X:+s} a${E:+s}", ["s", "a"]),
        ('"a\\"b" a\\ b', ['a"b', "a b"]),
        ("$ a$", ["$", "a$"]),
        ('""', [""]),
    ],
)
def test_words_are_split_as_a_shell_does(text, expected):
    assert words(text, {"X": "1", "E": ""}) == expected


@cases("text", ["'a", '"a', "${X", "${X%y}", "${1}"])
def test_what_is_no_word_is_refused(text):
    with pytest.raises(ValueError, match="not"):
        words(text, {})


def test_lines_are_joined_and_comments_skipped():
    plan = planned(
        "# syntax=docker/dockerfile:1\nfrom debian\n\nrun a \\\n  # in between\n\n  b\n#c\n"
    )
    (step,) = plan.steps
    assert isinstance(step, Run)
    assert step.argv == ["/bin/sh", "-c", "a   b"]
    assert step.at.line == 4


def test_variables():
    text = 'ARG V=12\nFROM debian:$V\nARG V\nARG W=w\nENV A=$W B="x y"\nENV C old $A\nRUN true\n'
    file = Dockerfile(ImageRecipe("task", {"Dockerfile": text.encode()}))
    plan = file.plan({"PATH": "/bin"})
    assert file.base == "debian:12"
    assert plan.env == {"PATH": "/bin", "A": "w", "B": "x y", "C": "old w"}
    (run,) = plan.steps
    assert isinstance(run, Run)
    assert run.env == {**plan.env, "V": "12", "W": "w"}


def test_folders_and_shells():
    plan = planned('FROM debian\nWORKDIR a\nWORKDIR b/../c\nSHELL ["bash", "-c"]\nRUN x\nRUN ["y"]')
    assert [step.path for step in plan.steps if isinstance(step, Folder)] == ["/a", "/a/c"]
    assert [step.argv for step in plan.steps if isinstance(step, Run)] == [
        ["bash", "-c", "x"],
        ["y"],
    ]
    assert (plan.work_dir, plan.runs) == ("/a/c", True)


def test_what_describes_a_container_changes_nothing():
    plan = planned('FROM debian AS x\nCMD ["a"]\nLABEL a=b\nEXPOSE 1\nENTRYPOINT x\nUSER root')
    assert (plan.steps, plan.user, plan.work_dir) == ((), "root", "/")


@cases(
    "line, dest, files, is_file",
    [
        ("COPY a.txt .", "/app", {"a.txt"}, True),
        ("COPY a.txt x", "/app/x", {"a.txt"}, True),
        ("COPY a.txt x/", "/app/x", {"a.txt"}, False),
        ("COPY a.txt b.txt /d/", "/d", {"a.txt", "b.txt"}, False),
        ("COPY *.txt /d/", "/d", {"a.txt", "b.txt"}, False),
        ("COPY [ab].txt d/", "/app/d", {"a.txt", "b.txt"}, False),
        ("COPY src /d", "/d", {"m.py", "t/u.py"}, False),
        ("COPY src/ /d", "/d", {"m.py", "t/u.py"}, False),
        ("COPY src/* /d/", "/d", {"m.py", "u.py"}, False),
        ('COPY ["src/t", "/d e"]', "/d e", {"u.py"}, False),
        (
            "COPY . .",
            "/app",
            {"Dockerfile", "a.txt", "b.txt", "run.sh", "src/m.py", "src/t/u.py"},
            0,
        ),
        ("ADD --chown=1:1 --chmod=700 /a.txt /x", "/x", {"a.txt"}, True),
    ],
)
def test_copies(line, dest, files, is_file):
    step = copied(line)
    assert (step.dest, set(step.files), step.is_file) == (dest, files, bool(is_file))
    assert step.mode == (0o700 if "chmod" in line else None)


@cases(
    "line, why",
    [
        ("FROM other", "second FROM"),
        ("COPY ../x .", "out of the context"),
        ("COPY no.txt .", "no such file"),
        ("COPY *.txt x", "end with /"),
        ("COPY a.txt", "source and a target"),
        ("COPY --from=x a b", "--from"),
        ("COPY --chmod=u+x a.txt b", "octal"),
        ("ADD https://x/y .", "only files"),
        ("ADD a.tar.gz .", "archive"),
        ("RUN --mount=type=cache x", "options"),
        ("RUN cat <<EOF", "here-documents"),
        ("COPY <<EOF /x", "here-documents"),
        ("ONBUILD RUN x", "not read"),
        ("FETCH x", "not read"),
        ("ENV =x", "NAME=VALUE"),
        ("ENV A='x", "closed"),
        ("SHELL bash", "a list"),
        ("RUN", "something"),
    ],
)
def test_what_is_not_read_is_refused_by_line(line, why):
    with pytest.raises(ImageError, match=r"task: Dockerfile line 3: ") as caught:
        planned(f"FROM debian\n\n{line}\n")
    assert why in str(caught.value)


@cases(
    "files, why",
    [
        ({}, "no Dockerfile"),
        ({"Dockerfile": b""}, "no FROM"),
        ({"Dockerfile": b"RUN x"}, "before FROM"),
        ({"Dockerfile": b"FROM --platform=x y"}, "expected FROM"),
        ({"Dockerfile": b"# escape=`\nFROM x"}, "escape"),
        ({"Dockerfile": b"\xff"}, "UTF-8"),
        ({"Dockerfile": b"FROM x", ".dockerignore": b"a"}, ".dockerignore"),
    ],
)
def test_what_is_no_dockerfile(files, why):
    with pytest.raises(ImageError, match=why):
        Dockerfile(ImageRecipe("task", files))


def test_the_digest_is_of_the_contents():
    one = digest(ImageRecipe("a", {"x": b"1", "y": b"2"}))
    assert one == digest(ImageRecipe("b", {"y": b"2", "x": b"1"}))
    others = [{"x": b"12", "y": b""}, {"x": b"1"}, {"x": b"1", "y": b"3"}, {"xy": b"12"}]
    assert len({one, *(digest(ImageRecipe("a", files)) for files in others)}) == 5
    assert digest(ImageRecipe("a", published="x")) != digest(ImageRecipe("a"))
