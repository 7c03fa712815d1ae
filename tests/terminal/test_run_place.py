"""The warning about a run's folder on a file system of several hosts."""

import ctypes
from argparse import Namespace

import pytest
from arl_check import run_place


class Libc:
    """A C library whose `statfs` finds the same type of file system everywhere."""

    def __init__(self, kind: int) -> None:
        self.kind, self.paths = kind, []

    def statfs(self, path: bytes, found) -> int:
        self.paths.append(path)
        found[0] = self.kind
        return 0


def test_the_type_is_that_of_the_folder_which_is_there(tmp_path, monkeypatch):
    assert run_place.network_system(tmp_path / "runs" / "mine") == ""
    lustre = Libc(0x0BD00BD0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: lustre)
    assert run_place.network_system(tmp_path / "runs" / "mine") == "Lustre"
    assert lustre.paths == [bytes(tmp_path)]


@pytest.mark.parametrize(
    ("args", "warned"),
    [
        ({"command": "train", "run": "there/mine", "resume": None}, "there/mine is on NFS"),
        ({"command": "train", "run": None}, "runs is on NFS"),
        ({"command": "eval", "out": "results"}, "results is on NFS"),
        ({"command": "inspect", "run": "there/mine"}, ""),
        ({"command": "train", "run": "there/mine", "q": True}, ""),
    ],
)
def test_only_a_command_that_writes_a_log_warns(monkeypatch, capsys, args, warned):
    monkeypatch.setattr(run_place, "network_system", lambda folder: "NFS")
    run_place.check_folder(Namespace(**args))
    said = capsys.readouterr().err
    assert warned in said
    assert bool(warned) == ("--run FOLDER" in said)
