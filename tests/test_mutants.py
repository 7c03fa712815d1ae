"""The mutants of `make mutants`: changes that are planted, code that is left alone, the verdict."""

import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import load_script
from tests.kit.cases import cases

ROOT = Path(__file__).parents[1]
mutants = load_script("mutants")
CORE = mutants.Package("agentgym_rl/core", ("tests/core",))


def plant(root: Path, source: str, package: str = "core", name: str = "x.py") -> Path:
    file = root / "agentgym_rl" / package / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    return root


def changes(root: Path, source: str) -> list[str]:
    """The lines that the mutants of a module of this source have in the place of its own."""
    found = mutants.mutants_of(plant(root, source), "core")
    return [mutant.name.partition("  ->  ")[2] for mutant in found]


PLANTED = {
    "a < b": ["a <= b"],
    "a >= b": ["a > b"],
    "a == b != c": ["a != b != c", "a == b == c"],
    "a is not b": ["a is b"],
    "a not in b": ["a in b"],
    "(a) is (b)": ["(a) is not (b)"],
    "a + b": ["a - b"],
    "a ** b": ["a * b"],
    "a // b": ["a * b"],
    "a -= b": ["a += b"],
    "a and b or c": ["a and b and c", "a or b or c"],
    "x = not a": ["x = a"],
    "x = -a": ["x = a"],
    "x = not (a)": ["x = (a)"],
    "x = - (a)": ["x = (a)"],
    "while not (a := b): c": ["while (a := b): c"],
    "f(1, 2.0, True)": ["f(2, 2.0, True)", "f(1, 3.0, True)", "f(1, 2.0, False)"],
    "a if b else c": ["a if not (b) else c"],
    "[a for a in b if c]": ["[a for a in b if not (c)]"],
    "x = 'ü' + a < b": ["x = 'ü' + a <= b", "x = 'ü' - a < b"],
}


@cases("source, expected", PLANTED.items())
def test_each_kind_of_change_is_planted(tmp_path, source, expected):
    assert changes(tmp_path, source) == expected


def test_returned_values_and_conditions_are_changed_once(tmp_path):
    source = "def f(a):\n    if a.b:\n        return a\n    if not a:\n        return None\n"
    assert changes(tmp_path, source) == ["if not (a.b):", "return None", "if a:"]


LEFT_ALONE = """
def f(a: "1 + 1" = ..., *, b: x < 1) -> 1 + 1:
    '''1 + 1'''
    assert a < b
    log.info("%d", 1 + 1)
    self.warnings.warn("%d", 1 + 1)
    raise ValueError(a + 1)

class A(B, frozen=True):
    x: Literal[1] = f(repr=True)
    def __repr__(self):
        return self.a + 1

LIMIT_S = 1.0
FASTER, SLOWER = 1, 2
far = 1000
table = tensor([1.0, -1.0, 0.0, 2])
text = f"{1 + 1}" + ("a" if b else "c")
if TYPE_CHECKING:
    from a import b
zip(a, b, strict=True)
isinstance(a, int | str)
"""


def test_what_tests_need_not_pin_is_left_alone(tmp_path):
    assert changes(tmp_path, LEFT_ALONE) == []


def test_a_mutant_keeps_its_name_where_files_are_joined(tmp_path):
    one = "class A:\n    def f(self):\n        return self.a < 1\n"
    first = mutants.mutants_of(plant(tmp_path, one), "core")
    (tmp_path / "agentgym_rl/core/x.py").unlink()
    joined = mutants.mutants_of(plant(tmp_path, f"y = a + b\n{one}", name="part/joined.py"), "core")
    assert {mutant.name for mutant in first} < {mutant.name for mutant in joined}
    assert first[0].name == "core: A.f: return self.a < 1  ->  return None"


def test_equal_lines_of_a_function_are_told_apart(tmp_path):
    names = [m.name for m in mutants.mutants_of(plant(tmp_path, "a < b\na < b\n"), "core")]
    assert names == ["core: module: a < b  ->  a <= b", "core: module: a < b  ->  a <= b  #2"]


def test_a_sample_depends_on_the_seed_and_little_on_other_mutants(tmp_path):
    many = mutants.mutants_of(plant(tmp_path, "\n".join(f"a{i} < b" for i in range(100))), "core")
    chosen = mutants.sample(many, 10, seed=0)
    assert mutants.sample(many[::-1], 10, seed=0) == chosen
    assert mutants.sample(many, 10, seed=1) != chosen
    assert set(chosen) - set(many[:50]) <= set(mutants.sample(many[50:], 10, seed=0))


TESTS = "from agentgym_rl.core.x import least\n\ndef test_least():\n    assert least(1, 3) == 1\n"


@pytest.mark.slow
def test_a_mutant_is_killed_or_survives(tmp_path, monkeypatch, capsys):
    plant(tmp_path, "def least(a, b):\n    return a if a < b else b\n")
    (tmp_path / "agentgym_rl/__init__.py").touch()
    (tmp_path / "tests/core").mkdir(parents=True)
    (tmp_path / "tests/core/test_x.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow"]\n')
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setitem(mutants.PACKAGES, "core", CORE)
    verdicts = list(mutants.judge(mutants.mutants_of(tmp_path, "core"), jobs=2))
    killed = {found.mutant.text: found.killed_by for found in verdicts}
    test = "tests/core/test_x.py::test_least"
    assert killed == {"None": test, "not (a < b)": test, "<=": ""}
    (survivor,) = (found.mutant.name for found in verdicts if not found.killed_by)
    assert not mutants.report(verdicts, [])
    output = capsys.readouterr().out
    assert "core                2 of    3 killed" in output
    assert "of core, less than 90% were killed" in output
    assert mutants.report(verdicts, [survivor])


@pytest.mark.slow
def test_a_test_far_from_the_mutant_must_fail_twice(tmp_path, monkeypatch):
    monkeypatch.setitem(mutants.PACKAGES, "core", CORE)
    plant(tmp_path, "x = 1\n")
    (tmp_path / "agentgym_rl/__init__.py").touch()
    (tmp_path / "tests/core").mkdir(parents=True)
    (tmp_path / "tests/core/test_clock.py").write_text(
        "from pathlib import Path\n\ndef test_late():\n    seen = Path('seen')\n"
        "    is_first = not seen.exists()\n    seen.touch()\n    assert not is_first\n"
        "def test_x():\n    from agentgym_rl.core import x\n    assert x.x == 1\n"
    )
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow"]\n')
    (mutant,) = mutants.mutants_of(tmp_path, "core")
    found = mutants._tested(tmp_path, mutant, limit_s=60)
    assert found == "tests/core/test_clock.py::test_x"
    assert mutants._confirmed_failure(tmp_path, [], ["tests/core"], limit_s=60) == ""


def test_accepted_survivors_are_there_and_have_reasons():
    listed = mutants.listed_survivors()
    found = [m.name for package in mutants.PACKAGES for m in mutants.mutants_of(ROOT, package)]
    assert listed.keys() - set(found) == set()
    assert all(len(reason) > 10 for reason in listed.values())
