"""The command `arl completion`: a script by which a shell completes commands, flags, keys of the
configuration, and the names of what is installed."""

from __future__ import annotations

import contextlib
import shlex
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym_rl.cli import Command
from agentgym_rl.core import ConfigError, extension_names, load_extension

if TYPE_CHECKING:
    from pydantic import BaseModel

_HELP = """\
Print a script by which a shell completes commands, their flags, the keys of the
configuration, and the names of what is installed.

  source <(arl completion bash)              in this shell; or for all of them:
  arl completion bash > ~/.local/share/bash-completion/completions/arl
  source <(arl completion zsh)               in ~/.zshrc, after compinit
  arl completion fish > ~/.config/fish/completions/arl.fish

Print it again after an installation of environments, agents or commands.
"""
_BASH = """\
_arl() {
  local cur="${COMP_WORDS[COMP_CWORD]}" before="" prev="" command="" before_equals="" word
  ((COMP_CWORD > 0)) && prev="${COMP_WORDS[COMP_CWORD-1]}"
  [[ "$cur" == "=" ]] && cur=""
  [[ "$prev" == "=" ]] && prev="${COMP_WORDS[COMP_CWORD-2]}"
  if [[ "$cur" == --*=* ]]; then  # a shell that does not split words at =
    prev="${cur%%=*}" before_equals="${cur%%=*}=" cur="${cur#*=}"
  fi
  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
    [[ "$word" != -* ]] && { command="$word"; break; }
  done
  local words="" files=""
  case "$prev" in
VALUES
    *) case "$command" in
COMMANDS
    esac ;;
  esac
  COMPREPLY=()
  while IFS= read -r word; do
    [[ -n "$word" ]] && COMPREPLY+=("$before_equals$word")
  done < <(if [[ -n "$files" ]]; then compgen -f -- "$cur"; else compgen -W "$words" -- "$cur"; fi)
  if type compopt >/dev/null 2>&1; then
    [[ -n "$files" ]] && compopt -o filenames
    [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" == *= ]] && compopt -o nospace
  fi
  return 0
}
"""
_SPACE = " "
_SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Flag:
    """A flag of a command: its spellings, whether a value follows, and which values there are."""

    names: tuple[str, ...]
    about: str
    takes_value: bool
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completed:
    """A command with its flags, and whether it takes keys of the configuration."""

    name: str
    summary: str
    flags: tuple[Flag, ...]
    choices: tuple[str, ...]
    """The words that its arguments without a flag are chosen from."""
    takes_keys: bool

    @property
    def words(self) -> str:
        """Return its flags and those words."""
        return " ".join([*self.choices, *(name for it in self.flags for name in it.names)])


def completed() -> list[Completed]:
    """Return the commands that `arl --help` shows."""
    values = dict(_values())
    found: list[Completed] = []
    for name in extension_names("commands"):
        with contextlib.suppress(ConfigError):  # a broken package: `arl --help` names it
            command = load_extension("commands", name, of=Command)
            if not command.group:
                continue
            parser = ArgumentParser(add_help=False)
            command.flags(parser)
            actions = parser._actions
            flags = tuple(_flag(it, values) for it in actions if it.option_strings)
            free = [
                str(word) for it in actions if not it.option_strings for word in it.choices or ()
            ]
            keys = "config" in parser._defaults
            found.append(Completed(name, command.summary, flags, tuple(free), keys))
    return found


def _flag(action: Action, values: Mapping[str, tuple[str, ...]]) -> Flag:
    known = tuple(map(str, action.choices or ())) or next(
        (values[it] for it in action.option_strings if it in values), ()
    )
    return Flag(tuple(action.option_strings), action.help or "", action.nargs != 0, known)


def _values() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the values of flags that name what is installed."""
    from agentgym_rl.config import preset_names
    from agentgym_rl.gym import listing
    from agentgym_rl.models import BUNDLED_MODELS

    yield "--preset", tuple(preset_names())
    yield "--engine", tuple(extension_names("engines"))
    yield "--cluster", tuple(extension_names("processes"))
    yield "--model", ("bundled", *BUNDLED_MODELS)
    for kind in ("env", "agent", "sandbox"):
        yield f"--{kind}", tuple(row.id.removesuffix("-v0") for row in listing(kind))


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of the configuration, those of every type of a section."""
    from agentgym_rl.config import fields_of, section_types

    for name, field in fields_of(model).items():
        kinds = section_types(field)
        if prefix and not kinds:
            yield f"{prefix}{name}"
        for kind in kinds:
            yield from _keys(kind, f"{prefix}{name}.")


def bash(commands: Sequence[Completed], keys: Sequence[str]) -> str:
    """Return the script for bash."""
    names = {flag: it for row in commands for it in row.flags for flag in it.names}
    known = {flag: it.values for flag, it in names.items() if it.takes_value}
    values = [
        f"    {flag}) {f'words={shlex.quote(_SPACE.join(its))}' if its else 'files=1'} ;;"
        for flag, its in known.items()
    ]
    cases = [
        f"    {row.name}) words={shlex.quote(row.words)}"
        f"{'' if not row.takes_keys else '; [[ $cur == --*.* ]] && words=$_arl_keys'}"
        f"{'' if row.choices else '; [[ $cur != -* ]] && files=1'} ;;"
        for row in commands
    ]
    cases.append(f"    *) words={shlex.quote(' '.join(row.name for row in commands))} ;;")
    dotted = shlex.quote(" ".join(f"--{key}=" for key in keys))
    body = _BASH.replace("VALUES", "\n".join(values)).replace("COMMANDS", "\n".join(cases))
    return f"_arl_keys={dotted}\n{body}"


def fish(commands: Sequence[Completed], keys: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the script for fish."""
    for row in commands:
        about = shlex.quote(row.summary)
        yield f"complete -c arl -f -n __fish_use_subcommand -a {row.name} -d {about}"
    for row in commands:
        if row.choices:
            words = shlex.quote(" ".join(row.choices))
            yield f"complete -c arl -f -n '__fish_seen_subcommand_from {row.name}' -a {words}"
        here = f"complete -c arl -n '__fish_seen_subcommand_from {row.name}'"
        for flag in row.flags:
            long = [f"-{'l' if it[1] == '-' else 's'} {it.lstrip('-')}" for it in flag.names]
            known = f" -x -a {shlex.quote(' '.join(flag.values))}" if flag.values else " -r"
            value = known if flag.takes_value else ""
            yield f"{here} {' '.join(long)}{value} -d {shlex.quote(flag.about)}"
    its = " ".join(row.name for row in commands if row.takes_keys)
    for key in keys:
        yield f"complete -c arl -n '__fish_seen_subcommand_from {its}' -l {key} -r"


def completion(args: Namespace) -> int:
    """Print the script for a shell."""
    from agentgym_rl.config import Config

    commands, keys = completed(), sorted(set(_keys(Config)))
    if args.shell == "fish":
        print("\n".join(fish(commands, keys)))
        return 0
    zsh = "autoload -U +X bashcompinit && bashcompinit\n" if args.shell == "zsh" else ""
    print(f"{zsh}{bash(commands, keys)}complete -F _arl arl")
    return 0


def _flags(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=_SHELLS, help="the shell that reads the script")


COMMAND = Command(
    summary="print a script by which a shell completes commands and keys",
    description=_HELP,
    flags=_flags,
    run=completion,
    group="keys, examples and documentation",
    order=165,
)
