"""Shell completion: what bash makes of the script, for words as it splits them."""

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
