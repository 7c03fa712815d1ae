"""Work folders on the machine's disk: emptied whatever is in them, swept when nobody uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from arl_sandboxes.local.inside import work_folders
from arl_sandboxes.local.inside.work_folders import Folder

from tests.exhaustive import EXHAUSTIVE
from tests.kit.cases import cases


@pytest.fixture
def folder(tmp_path):
    found = Folder(str(tmp_path), None)
    os.close(found.renew())
    yield found
    if os.path.exists(found.path):
        found.remove()
    for handle in found.handles():
        os.close(handle)


def deep(top: str, depth: int) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(top)
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    Path("last").write_text("x")
    os.fchdir(here)
    os.close(here)


def test_a_folder_is_its_owners_alone(folder, tmp_path):
    assert os.stat(folder.path).st_mode & 0o777 == 0o700
    assert os.stat(folder.box).st_mode & 0o777 == 0o700
    assert os.listdir(tmp_path) == [os.path.basename(folder.path)]
    assert os.path.basename(folder.path).startswith(work_folders.PREFIX)


def test_a_new_box_is_another_one(folder):
    Path(folder.box, "left").write_text("x")
    before = os.stat(folder.box).st_ino
    handle = folder.renew()
    assert os.fstat(handle).st_ino != before
    assert os.listdir(folder.box) == []
    os.close(handle)
    assert folder.tidy()
    assert os.listdir(f"{folder.path}/trash") == []


@pytest.mark.slow
def test_thousands_of_folders_deep(folder):
    """Deeper than a path or the number of handles allows; 10,000 with ARL_EXHAUSTIVE=1."""
    deep(folder.box, 10_000 if EXHAUSTIVE else 3_000)
    os.close(folder.renew())
    assert folder.tidy()
    assert os.listdir(f"{folder.path}/trash") == []


def test_links_are_removed_and_what_they_lead_to_is_not(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "answers").write_text("42")
    box = Path(folder.box)
    (box / "d").mkdir()
    for place in (box / "link", box / "d" / "link"):
        place.symlink_to(outside)
    (box / "answers").symlink_to(outside / "answers")
    os.link(outside / "answers", box / "hard")
    folder.remove()
    assert (outside / "answers").read_text() == "42"
    assert not os.path.exists(folder.path)


@cases("mode", [0, 0o100, 0o300, 0o444, 0o1000, 0o777])
def test_modes_do_not_matter(folder, mode):
    for name in ("a", "b"):
        Path(folder.box, name, "in").mkdir(parents=True)
        Path(folder.box, name, "in", "f").write_text("x")
        os.chmod(Path(folder.box, name, "in"), mode)
    os.chmod(folder.box, mode)
    os.close(folder.renew())
    assert folder.tidy()


def test_names_do_not_matter(folder):
    for name in (b"a\nb", b"-rf", b" ", b"\xff\xfe", b"*", b"...", b"a" * 255, b"box-1", b"trash"):
        path = os.fsencode(folder.box) + b"/" + name
        os.mkdir(path)
        os.mkdir(path + b"/box-1")
        os.symlink("/etc", path + b"/trash")
    os.close(folder.renew())
    assert folder.tidy()


def test_many_are_removed_bit_by_bit(folder):
    for number in range(50):
        Path(folder.box, f"f{number}").write_text("x")
        Path(folder.box, f"d{number}").mkdir()
    os.close(folder.renew())
    passes = 1
    while not folder.tidy(10):
        passes += 1
    assert 10 <= passes <= 30
    assert os.listdir(f"{folder.path}/trash") == []


def test_a_folder_in_use_is_no_leftover(folder, tmp_path):
    assert list(work_folders.leftovers(str(tmp_path))) == []
    work_folders.sweep(str(tmp_path))
    assert os.path.isdir(folder.box)


MAKE = """
import os, sys
sys.path.insert(0, sys.argv[1])
import work_folders
folder = work_folders.Folder(sys.argv[2], None)
os.close(folder.renew())
folder.show("/usr", "usr")
os.makedirs(folder.box + "/a/b")
os.close(folder.renew())
print(folder.path, flush=True)
os.kill(os.getpid(), 9)
"""


def left(tmp_path: Path) -> str:
    """A folder whose maker was killed."""
    command = [
        sys.executable,
        "-I",
        "-c",
        MAKE,
        str(Path(work_folders.__file__).parent),
        str(tmp_path),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()


def test_what_the_dead_have_left_is_swept(tmp_path):
    paths = [left(tmp_path), left(tmp_path)]
    assert sorted(work_folders.leftovers(str(tmp_path))) == sorted(paths)
    work_folders.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert os.path.isdir("/usr/bin")


def test_other_peoples_folders_are_let_alone(tmp_path):
    (tmp_path / "something").mkdir()
    (tmp_path / f"{work_folders.PREFIX}file").write_text("x")
    (tmp_path / f"{work_folders.PREFIX}link").symlink_to("/usr")
    everybody = tmp_path / f"{work_folders.PREFIX}everybody"
    everybody.mkdir()
    everybody.chmod(0o777)
    if os.getuid() == 0:
        (tmp_path / f"{work_folders.PREFIX}theirs").mkdir()
        os.chown(tmp_path / f"{work_folders.PREFIX}theirs", 12345, 12345)
    before = sorted(os.listdir(tmp_path))
    work_folders.sweep(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == before


def test_a_sweep_interrupted_goes_on_another_time(tmp_path):
    path = left(tmp_path)
    os.rmdir(f"{path}/box")  # as if its remover had been killed half-way
    os.unlink(f"{path}/packages/usr")
    os.rmdir(f"{path}/packages")
    work_folders.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == []
