"""The agent's files: hooks, changes against the image, and the reward file."""

from __future__ import annotations

import pytest
from arl_envs.harbor.changes import Changes, changes_of, patch_of
from arl_envs.harbor.hooks import Hooks, Search, Surroundings, path_without
from arl_envs.harbor.links import Entry, real_path
from arl_envs.harbor.mentions import Mentions
from arl_envs.harbor.rewards import Tampered, number_in, reward_of, rewards_of
from arl_envs.harbor.tree import _TREES, Tree, known_tree, listed_entries

from agentgym_rl.gym import ExecResult, Image
from agentgym_rl.gym.sandbox_records import Status
from tests.kit.cases import cases

IMAGE = ("app.py", "src/lib.py", "pkg/__init__.py", "pkg/a.py", "pyproject.toml", "tests/t.py")
LINKS = {"py": "/usr/bin/python3", "env/bin/python": "../../../usr/bin/python3"}
SEARCH = Search.of({"PATH": "/usr/bin:bin", "LD_LIBRARY_PATH": "/app/so"}, "/app")
AROUND = Surroundings(
    frozenset({"requests", "tests"}),
    namespaces=frozenset({"google"}),
    wanted=frozenset({"simplejson"}),
    libraries=frozenset({"Test/More.pm", "set.rb"}),
    places=frozenset({"on/path"}),
)
HOOKS = Hooks(IMAGE, links=LINKS, search=SEARCH, around=AROUND)


@cases(
    "path",
    [
        *("conftest.py", "tests/conftest.py", "sitecustomize.py", "deep/er/usercustomize.py"),
        *("x.pth", "pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini", "sub/pytest.ini"),
        *(".bashrc", ".profile", "home/.bash_profile", ".gitconfig", ".git", "sub/.git"),
        *(".git/hooks/pre-commit", ".git/config", ".git/info/attributes", ".gitattributes"),
        *("__pycache__/app.cpython-311.pyc", "pkg/__pycache__/a.pyc", "a.pyc"),
        *("json.py", "src/json.py", "unittest/__init__.py", "pytest.py", "socket.so"),
        *("json.cpython-311-x86_64-linux-gnu.so", "_pytest/__init__.py", "tests/random.py"),
        *(".config/git/config", ".local/bin/python3", "lib/site-packages/a.py", "bin/tool"),
        *("CONFTEST.PY", "jest.config.js", ".envrc", "pyvenv.cfg", "uv.toml", ".Rprofile"),
        *(".git/commondir", ".git/modules/m/config", ".git/worktrees/w/config", ".hg/hgrc"),
        *("HEAD", "packaging.py", "pygments/__init__.py", "attr.py", "requests.py"),
        *("GNUmakefile", "Directory.Build.props", ".mvn/extensions.xml", ".pnpmfile.cjs"),
        *("sitecustomize/__init__.py", "a/usercustomize.so", "sitecustomize.cpython-311.so"),
        *("on/path/json.py", "google/protobuf/__init__.py", "simplejson.py", "env/bin/new"),
        *("env/lib/python3.11/json/__init__.py", "py", "so/libm.so.6", "lib/Test/More.pm"),
        *("Test/More.pmc",),
        *("vite.config.mts", "playwright.config.ts", "karma.conf.js", "ava.config.cjs", "-rf"),
        *("eslint.config.js", ".pylintrc", "pylintrc", "init.d/a.gradle", "lib/set.rb", "a\nb"),
        *("profile_default/startup/a.py", "node_modules/.bin/jest", ".hidden/x", "APP.py"),
        *("package.json", "tsconfig.json", "tools/bin/python3", "x/.venv/lib/a.py"),
    ],
)
def test_files_that_load_themselves_are_hooks(path: str) -> None:
    assert HOOKS.is_hook(path)


@cases(
    "path",
    [
        *("app.py", "src/new.py", "README.md", "pkg/json.py", "pkg/types.py", "data/json.txt"),
        *("new/random.py", "json/data.json", ".gitignore", ".git/refs/heads/main", "Makefile"),
        *("my_conftest.py", "config.toml", "tests/test_new.py", "jsonx.py", "repo.git/HEAD"),
        *("tests/__init__.py", "pkg/requests.py", ".git/HEAD", "numpy.py", "google.txt"),
        *(".github/workflows/ci.yml", "on/path/mine.py", "scripts/go.sh", "so/notes.txt"),
        *("lib/Mine.pm", "config.yaml", "env.py", "setup.py", "makefile", "new/google/a.py"),
    ],
)
def test_other_files_are_the_agents(path: str) -> None:
    assert not HOOKS.is_hook(path)


def test_a_task_may_ask_for_a_hook() -> None:
    hooks = Hooks(IMAGE, keep=["pyproject.toml", "tests/*"])
    assert not hooks.is_hook("pyproject.toml")
    assert not hooks.is_hook("tests/conftest.py")
    assert hooks.is_hook("conftest.py")


def test_variables_name_folders_and_files_of_the_work_folder() -> None:
    env = {"PATH": "/usr/bin:/app/bin:/app::b:/app/x/../a/b", "PYTHONPATH": "src:", "BASH_ENV": "e"}
    found = Search.of(env | {"NODE_OPTIONS": "--require /app/r.js"}, "/app")
    assert found.bins == {"bin", "b", "a/b"}
    assert found.modules == {"src", "."}
    assert {"e", "r.js"} <= found.files


def test_the_solution_and_the_artifacts_open_what_is_doubtful_and_no_more() -> None:
    hooks = Hooks(IMAGE, needed=["Makefile.d/x", ".env", "conftest.py"], declared=["out"])
    assert not hooks.is_hook(".env")
    assert not hooks.is_hook("out/.hidden")
    assert hooks.is_hook("conftest.py")
    assert hooks.is_hook("out/conftest.py")


@cases("path", ["want.py", "sub/w", "tests", "kept.txt", "app/two", "moved"])
def test_what_tests_put_there_is_not_there_before(path: str) -> None:
    text = b"""cp /tests/a /app/want.py; ln -s /tests; [ -e kept.txt ] || cp -n /tests/k ./kept.txt
install -m 755 /tests/w sub/w && os.symlink("/tests/b", "two") ; shutil.move('/tests/c', 'moved')
"""
    mentions = Mentions.of({"test.sh": text}, "/app")
    assert Hooks(("app.py",), mentions=mentions).is_hook(path)
    assert not Hooks(("app.py", "sub/x"), mentions=mentions).is_hook("sub/x")


TEST_SH = b"""cd /app
. ./env.sh && make -s check
cd build/in && python3 -c 'import subprocess; subprocess.run("./x", cwd="on")'
mkdir -p t; cp /tests/check.py t/; PYTHONPATH=/app/new/lib python3 t/check.py
python3 -c 'import sys; sys.path.append("/tests"); import helper'
"""


@cases(
    "path",
    [
        *("env.sh", "check", "t/json.py", "new/lib/json.py", "helper.py", "Makefile.sh"),
        *("__init__.py", "t/__init__.py", "in/random.py", "on/json.py", "lib/cases.php"),
    ],
)
def test_the_texts_of_the_tests_say_what_would_be_executed(path: str) -> None:
    tests = {"test.sh": TEST_SH, "helper.py": b"", "lib/cases.php": b""}
    image = (*IMAGE, "Makefile")
    assert Hooks(image, mentions=Mentions.of(tests, "/app")).is_hook(path)
    assert not Hooks(IMAGE).is_hook(path) or path == "new/lib/json.py"


@cases("path", ["sure", "out.txt", "code", "pkg2/queue.py", "helper.py"])
def test_words_of_comments_and_of_other_commands_say_nothing(path: str) -> None:
    text = b"# make sure out.txt is there\ncmp out.txt x  # source code\npython3 pkg2/main.py\n"
    mentions = Mentions.of({"test.sh": text, "helper.py": b"import sys"}, "/app")
    assert not Hooks(IMAGE, mentions=mentions).is_hook(path)


def test_a_new_package_json_without_settings_of_tools_is_taken_over() -> None:
    assert HOOKS.why("package.json", b'{"name": "a", "type": "module"}') is None
    assert HOOKS.why("package.json", b'{"mocha": {"require": "./a"}}') is not None


def test_the_work_folder_is_no_folder_of_programs() -> None:
    path = {"PATH": "/app:/usr/bin:.::/app/:../app:/app/bin"}
    assert path_without(path, "/app") == "/usr/bin:/app/bin"
    assert path_without({}, "/app") == ""


def tree(files: dict[str, bytes], entries: dict[str, Entry] | None = None) -> Tree:
    found = {path: Entry(8, 0o644) for path in files} | (entries or {})
    return Tree(files, frozenset(), found)


WAYS = {
    "a": Entry(4, 0o755),
    "a/b": Entry(4, 0o755),
    "f": Entry(8, 0o644),
    "a/up": Entry(10, 0o777, "/app"),
    "a/down": Entry(10, 0o777, "b"),
    "loop": Entry(10, 0o777, "loop"),
    "out": Entry(10, 0o777, "/tests"),
    ".": Entry(4, 0o755),
}


@cases(
    "path, real",
    [
        *(("f", "f"), ("a/../f", "f"), ("a/up/f", "f"), ("a/up/a/./b", "a/b"), ("a/down", "a/b")),
        *(("a/down/../../f", "f"), ("a/up/../f", None), ("a/up/../app/f", None), ("..", None)),
        *(("loop", None), ("out", None), ("out/../app/f", None), ("f/..", None), ("f/", None)),
        *(("new", None), ("a/up", "."), ("a/" * 600 + "f", None), ("a/../" * 600 + "f", None)),
    ],
)
def test_links_are_followed_name_by_name_beneath_the_folder(path: str, real: str | None) -> None:
    assert real_path(path, WAYS, "/app") == real


BASE = tree(
    {"a": b"1", "d/b": b"2", "conftest.py": b"theirs", "gone": b"x"},
    {"d": Entry(4, 0o755), "empty": Entry(4, 0o755), "link": Entry(10, 0o777, "a")},
)


def compared(agent: Tree) -> Changes:
    hooks = Hooks(BASE.names, search=Search.of({"PATH": "/app/bin:/app/tools/bin"}, "/app"))
    names = ("given.txt", "run.py")
    return changes_of(agent, BASE, hooks, work_dir="/app", test_names=names)


def test_the_same_files_are_no_change() -> None:
    assert compared(BASE).empty


def test_new_changed_and_removed_files_are_taken_over_hooks_not() -> None:
    files = {"a": b"1", "d/b": b"new", "n": b"3", "conftest.py": b"mine", "d/conftest.py": b"x"}
    entries = {"d": Entry(4, 0o755), "link": Entry(10, 0o777, "a")}
    found = compared(tree(files, entries))
    assert found.written == {"d/b": b"new", "n": b"3"}
    assert sorted(found.dropped) == ["conftest.py", "d/conftest.py"]
    assert found.removed == ["gone"]
    assert found.gone == ["empty"]


def test_a_removed_hook_comes_back() -> None:
    files = {path: data for path, data in BASE.files.items() if path != "conftest.py"}
    entries = {path: entry for path, entry in BASE.entries.items() if path != "conftest.py"}
    assert compared(Tree(files, frozenset(), entries)).empty


def with_links(**links: str) -> Changes:
    entries = {path: Entry(10, 0o777, target) for path, target in links.items()}
    folders = {"evil": Entry(4, 0o755), "evil/bin": Entry(4, 0o755), "x": Entry(4, 0o755)}
    files = {**BASE.files, "evil/__init__.py": b"", "evil/bin/tool": b""}
    return compared(tree(files, {**BASE.entries, **folders, **entries}))


@cases("target", ["d/b", "/app/a", "d", "./d/../a", "//app//d/b"])
def test_links_to_the_agents_own_files_are_taken_over(target: str) -> None:
    assert with_links(to=target).links == [("to", target)]


@cases(
    "links",
    [
        *({"to": "/tests/x"}, {"to": "../etc"}, {"to": "x/../../tests/x"}, {"to": "nothing"}),
        *({"to": "up/../tests/x", "up": "/app"}, {"t": "up/../tests", "to": "t/x", "up": "/app"}),
        *(
            {"to": "to"},
            {"to": "."},
            {"to": "/app"},
            {"to": "/proc/self/cwd/a"},
            {"to": "../app/a"},
        ),
        *({"to": "json/__init__.py", "json": "evil"}, {"to": "x", "x/in": "../evil"}),
        *({"json": "evil"}, {"bin": "evil/bin"}, {"tools": "evil"}, {"given.txt": "a"}),
        *({"to": "d/given.txt"}, {"json.py": "a"}, {"sitecustomize": "evil"}, {".venv": "evil"}),
    ],
)
def test_links_that_stand_for_something_else_are_left_out(links: dict[str, str]) -> None:
    found = with_links(**links)
    own = next(iter(links))
    assert own in found.dropped, found
    assert own not in dict(found.links)


WRITES = b"""p = Path("want.txt")
p.write_text(secret); open("/app/second", "w"); os.system("sort -o $W" + ".txt")
"""


@cases("link, target", [("want.txt", "a"), ("to", "want.txt"), ("second", "a"), ("W.csv", "d/b")])
def test_a_link_to_a_file_that_tests_name_becomes_a_copy(link: str, target: str) -> None:
    files = {**BASE.files, "want.txt": b"own"} if target == "want.txt" else dict(BASE.files)
    agent = tree(files, {**BASE.entries, link: Entry(10, 0o777, target)})
    mentions = Mentions.of({"check.py": WRITES + b"# to"}, "/app")
    hooks = Hooks(BASE.names, mentions=mentions)
    found = changes_of(agent, BASE, hooks, work_dir="/app", mentions=mentions)
    assert found.written[link] == files[target]
    assert (found.links, [*found.dropped]) == ([], [link])
    needed = Hooks(BASE.names, mentions=mentions, needed=[link])
    found = changes_of(agent, BASE, needed, work_dir="/app", mentions=mentions)
    assert found.links == [(link, target)]


@cases("more, is_link", [("", True), ("; cp /tests/x to", False), ("; echo > d/b", False)])
def test_a_link_that_tests_look_at_stays_one(more: str, is_link: bool) -> None:
    agent = tree(dict(BASE.files), {**BASE.entries, "to": Entry(10, 0o777, "d/b")})
    text = f'[ "$(readlink to)" = d/b ]{more}'.encode()
    mentions = Mentions.of({"test.sh": text}, "/app")
    hooks = Hooks(BASE.names, mentions=mentions)
    found = changes_of(agent, BASE, hooks, work_dir="/app", mentions=mentions)
    assert (found.links == [("to", "d/b")]) == is_link
    assert ("to" in found.dropped) != is_link


def test_a_link_with_the_name_of_a_folder_of_the_tests_is_left_out() -> None:
    agent = tree(dict(BASE.files), {**BASE.entries, "sub": Entry(10, 0o777, "d")})
    found = changes_of(agent, BASE, Hooks(BASE.names), work_dir="/app", test_folders=["sub"])
    assert (found.links, [*found.dropped]) == ([], ["sub"])


def test_a_link_in_the_place_of_a_folder_of_programs_leaves_the_images() -> None:
    entries = {"tools": Entry(4, 0o755), "tools/bin": Entry(4, 0o755)}
    image = tree({**BASE.files, "tools/bin/tool": b"1"}, {**BASE.entries, **entries})
    evil = {"e": Entry(4, 0o755), "e/bin": Entry(4, 0o755), "tools": Entry(10, 0o777, "e")}
    agent = tree({**BASE.files, "e/bin/tool": b"2"}, {**BASE.entries, **evil})
    search = Search.of({"PATH": "/app/tools/bin"}, "/app")
    found = changes_of(agent, image, Hooks(image.names, search=search), work_dir="/app")
    assert list(found.dropped) == ["tools"]
    assert (found.links, found.removed, found.gone) == ([], [], [])


def test_what_tests_may_copy_into_the_folder_can_be_replaced() -> None:
    entries = {"o": Entry(4, 0o555), "o/given.txt": Entry(8, 0o444), "n.txt": Entry(8, 0o000)}
    files = {**BASE.files, "o/given.txt": b"1", "n.txt": b"2", "run.py/x": b"3"}
    found = compared(tree(files, {**BASE.entries, **entries}))
    assert dict(found.modes) | {"n.txt": 0o600, "o/given.txt": 0o644, "o": 0o755} == dict(
        found.modes
    )
    assert sorted(found.dropped) == ["n.txt", "o", "o/given.txt", "run.py", "run.py/x"]


def test_the_images_file_stays_in_a_folder_that_became_a_file() -> None:
    image = tree({"d/conftest.py": b"theirs", "d/x": b"1"}, {"d": Entry(4, 0o755)})
    found = changes_of(tree({"d": b"mine"}), image, Hooks(image.names), work_dir="/app")
    assert (found.written, found.removed) == ({}, ["d/x"])
    assert "d" in found.dropped


def test_modes_lose_setuid_and_come_last_for_folders() -> None:
    entries = {**BASE.entries, "a": Entry(8, 0o755), "d": Entry(4, 0o500), "d/b": Entry(8, 0o600)}
    hooks = Hooks(BASE.names, needed=["d"])
    found = changes_of(Tree(BASE.files, frozenset(), entries), BASE, hooks, work_dir="/app")
    assert found.modes == [("d/b", 0o600), ("a", 0o755), ("d", 0o500)]


def test_what_is_in_the_way_goes_first() -> None:
    files = {"a/x": b"1", "d": b"file", "link/y": b"2", "conftest.py": b"theirs"}
    found = compared(tree(files, {"a": Entry(4, 0o755), "link": Entry(4, 0o755)}))
    assert {"a", "d", "link", "d/b", "gone"} <= set(found.removed)
    assert found.written == {"a/x": b"1", "d": b"file", "link/y": b"2"}


def test_nothing_comes_below_a_hook_that_stays_a_file() -> None:
    below = {"conftest.py/x": b"1"}
    entries = {
        "conftest.py": Entry(4, 0o755),
        "conftest.py/e": Entry(4, 0o755),
        "conftest.py/l": Entry(10, 0o777, "../a"),
    }
    files = {path: data for path, data in BASE.files.items() if path != "conftest.py"}
    kept = {path: entry for path, entry in BASE.entries.items() if path != "conftest.py"}
    found = compared(tree({**files, **below}, {**kept, **entries}))
    assert found.empty
    assert sorted(found.dropped) == ["conftest.py/l", "conftest.py/x"]


def test_an_empty_folder_takes_the_place_of_a_link() -> None:
    found = compared(tree(dict(BASE.files), {**BASE.entries, "link": Entry(4, 0o755)}))
    assert (found.removed, found.folders) == (["link"], ["link"])


@cases(
    "said",
    [
        "[" * 100_000,
        '[["a", 8, 420]]',
        '[["\\ud800", 4, 420, ""], ["a\\u0000", 4, 420, ""], [1, 4, 420, ""], ["/a", 4, 420, ""]]',
        '[["a", 10, 420, ""], ["b", 10, 420, 5], ["c", 7, 420, ""], ["d", 10, 420, "\\ud800"]]',
        "{}",
        "",
    ],
)
def test_an_odd_list_of_files_names_nothing(said: str) -> None:
    result = ExecResult(Status.OK, 0, None, said.encode(), b"")
    assert listed_entries(result) == {}


def test_files_that_cannot_be_read_keep_the_images_version() -> None:
    agent = Tree({"d/b": b"2"}, frozenset({"a", "big"}), {})
    found = changes_of(agent, BASE, Hooks(BASE.names), work_dir="/app")
    assert "a" not in found.removed
    assert sorted(found.dropped) == ["a", "big"]


def test_the_patch_shows_text_and_names_the_rest() -> None:
    found = Changes(written={"a": b"2", "bin": b"\0\1"}, removed=["gone"])
    patch = patch_of(found, BASE)
    assert "-1" in patch
    assert "+2" in patch
    assert "bin: 0 bytes before, 2 after" in patch
    assert "--- a/gone" in patch


@cases(
    "text, rewards",
    [
        ('{"reward": 1}', {"reward": 1.0}),
        ('{"a": 0.5, "b": 1}', {"a": 0.5, "b": 1.0}),
        ("0.25", {"reward": 0.25}),
        ('{"reward": true}', {"reward": 1.0}),
    ],
)
def test_reward_files_are_read_as_harbor_reads_them(text: str, rewards: dict) -> None:
    assert rewards_of(text.encode(), None) == rewards


@cases("text, number", [("1", 1.0), (" 0.5\n", 0.5), ("+1.", 1.0), ("-.25", -0.25), ("1e-2", 0.01)])
def test_a_reward_text_is_a_decimal_number(text: str, number: float) -> None:
    assert number_in(text) == number


@cases("text", ["0_1", "١", "９", "nan", "inf", "1e999", "0x1", "1,0", "True", "1 0", "", "1\0"])
def test_other_forms_of_numbers_are_no_reward(text: str) -> None:
    with pytest.raises(ValueError, match=r"reward\.txt"):
        number_in(text)


@cases("text", ['{"a\\ud800": 1}', '{"a\\n": 1}', '{"a": 1e308, "b": 1e308}', "[" * 100_000])
def test_names_and_sizes_of_rewards_are_bounded(text: str) -> None:
    with pytest.raises(ValueError, match="reward"):
        rewards_of(text.encode(), None)


@cases("text", ["", "{}", "[1]", '{"a": "1"}', '{"a": null}', "NaN", "1e999", "{", "9" * 400])
def test_other_reward_files_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="reward"):
        rewards_of(text.encode(), None)


@cases("text", ['{"reward": 1}', '{"reward": 1, "nonce": "b"}', '{"reward": 1, "nonce": 1}', "1"])
def test_a_reward_without_the_nonce_is_tampered_with(text: str) -> None:
    with pytest.raises(Tampered):
        rewards_of(text.encode(), "a")


def test_the_nonce_is_no_metric() -> None:
    assert rewards_of(b'{"reward": 1, "nonce": "a", "fraction": 0.5}', "a") == {
        "reward": 1.0,
        "fraction": 0.5,
    }


def test_the_reward_is_the_one_of_that_name_or_the_mean() -> None:
    assert reward_of({"reward": 0.25, "other": 1.0}, (0.0, 1.0)) == 0.25
    assert reward_of({"a": 0.5, "b": 1.0}, (0.0, 1.0)) == 0.75


def test_a_folder_without_the_installed_modules_is_not_enough_for_a_task_that_needs_them() -> None:
    """Else what an agent writes over them would count, as soon as one of two memories is full."""
    image = Image("of test_transfer", "/app")
    assert known_tree(image, around=False) is None
    _TREES[image.key] = BASE
    assert known_tree(image, around=False) is BASE
    assert known_tree(image, around=True) is None
    _TREES[image.key] = found = Tree({}, frozenset(), {}, Surroundings(frozenset({"json"})))
    assert known_tree(image, around=True) is known_tree(image, around=False) is found
