"""Shell completion: what bash makes of the script, for words as it splits them; what fish and zsh
complete of a line that is typed."""

import contextlib
import os
import pty
import re
import shutil
import subprocess

import pytest
from arl_terminal.completion import COMMAND, completed

from agentgym_rl.cli.config_keys import key_help
from agentgym_rl.cli.parse import parse
from tests.kit.cases import cases

TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _arl
printf '%s\\n' "${COMPREPLY[@]}"
"""

ZSHRC = """
autoload -U compinit && compinit -u -D
source "$ZDOTDIR/arl.zsh"
ready() { print -n READY }
shown() { print -r -- "$BUFFER" >> "$ZDOTDIR/shown" }
zle -N zle-line-init ready
zle -N shown
bindkey '^G' shown
"""
TYPED = [
    ("arl tr", "arl train"),
    ("arl train --see", "arl train --seed"),
    ("arl train --env mat", "arl train --env math"),
    ("arl train --env=mat", "arl train --env=math"),
    ("arl train --preset dr", "arl train --preset dr-grpo"),
    ("arl train --rollout.group_s", "arl train --rollout.group_size"),
    ("arl list --rollout.group_s", "arl list --rollout.group_s"),
    ("arl completion z", "arl completion zsh"),
    ("arl train --config ru", "arl train --config run.toml"),
]


def script(shell: str, capsys) -> str:
    assert COMMAND.run(parse(["completion", shell])) == 0
    return capsys.readouterr().out


@cases(
    "words, found",
    [
        (["arl", "tr"], ["train"]),
        (["arl", "train", "--see"], ["--seed"]),
        (["arl", "train", "--env", "mat"], ["math"]),
        (["arl", "train", "--env", "=", "mat"], ["math"]),
        (["arl", "train", "--env=mat"], ["--env=math"]),
        (["arl", "train", "--preset", "dr"], ["dr-grpo"]),
        (["arl", "train", "--rollout.group_s"], ["--rollout.group_size="]),
        (["arl", "list", "--rollout.group_s"], [""]),
        (["arl", "completion", "z"], ["zsh"]),
        (["arl", "warm"], [""]),
        (["arl", "train", "--config", "ru"], ["run.toml"]),
        (["arl", "inspect", "ru"], ["run.toml"]),
    ],
)
def test_bash_completes(tmp_path, capsys, words, found):
    if (bash := shutil.which("bash")) is None:
        pytest.skip("no bash here")
    (tmp_path / "arl.bash").write_text(script("bash", capsys))
    (tmp_path / "run.toml").touch()
    done = subprocess.run(
        [bash, "--norc", "-c", TRY, "bash", "arl.bash", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == found


def test_every_command_and_flag_of_help_is_there(capsys):
    rows = {row.name: row for row in completed()}
    assert {"train", "eval", "completion"} <= rows.keys()
    assert not {"engine", "trainer"} & rows.keys()
    assert {"-m", "--model", "--dry-run", "-q"} <= set(rows["train"].words.split())
    assert rows["train"].takes_keys
    assert not rows["list"].takes_keys


def test_fish_and_zsh_get_the_same_words(capsys):
    fish, zsh = script("fish", capsys), script("zsh", capsys)
    assert "-n __fish_use_subcommand -a train -d 'train an agent" in fish
    assert "-n '__fish_seen_subcommand_from train' -s m -l model -x -a 'bundled " in fish
    for key in re.findall(r"-l ([a-z]\w+\.[\w.]+) -r", fish)[::20]:
        assert key_help(key)
    assert zsh.startswith("autoload -U +X bashcompinit && bashcompinit\n")
    assert zsh.endswith("complete -F _arl arl\n")


def found_by_fish(fish: str, folder) -> list[str]:
    """Return each line of `TYPED` with the completions of its last word."""
    commands = "; ".join(f"echo '> {line}'; complete -C '{line}'" for line, _ in TYPED)
    done = subprocess.run(
        [fish, "--no-config", "-c", f"source arl.fish; {commands}"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for block in done.stdout.split("> ")[1:]:
        line, *answers = (each.split("\t")[0] for each in block.splitlines())
        found.append(" ".join([*line.split()[:-1], *answers]) if answers else line)
    return found


def found_by_zsh(zsh: str, folder) -> list[str]:
    """Return what each line of `TYPED` becomes at a terminal when Tab is pressed."""
    (folder / ".zshrc").write_text(ZSHRC)
    terminal, end = pty.openpty()
    keys = "".join(f"{line}\t\a\x15" for line, _ in TYPED)
    with subprocess.Popen(
        [zsh, "-d", "-i"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TERM": "xterm", "ZDOTDIR": str(folder)},
        stdin=end, stdout=end, stderr=end, start_new_session=True,
    ):  # fmt: skip
        os.close(end)
        seen = b""
        with contextlib.suppress(OSError):  # the terminal is closed: the shell has ended
            while data := os.read(terminal, 4096):
                is_first, seen = b"READY" not in seen, seen + data
                if is_first and b"READY" in seen:
                    os.write(terminal, f"{keys}exit\r".encode())
    os.close(terminal)
    return [line.rstrip().removesuffix("=") for line in (folder / "shown").read_text().splitlines()]


@cases("name, found_by", [("fish", found_by_fish), ("zsh", found_by_zsh)], ids=["fish", "zsh"])
def test_a_shell_completes_what_is_typed(tmp_path, capsys, name, found_by):
    if (shell := shutil.which(name)) is None:
        pytest.skip(f"no {name} here")
    (tmp_path / f"arl.{name}").write_text(script(name, capsys))
    (tmp_path / "run.toml").touch()
    assert found_by(shell, tmp_path) == [whole for _, whole in TYPED]
