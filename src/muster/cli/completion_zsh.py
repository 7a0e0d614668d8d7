"""The zsh completion of `muster`: options with their descriptions, by `_arguments`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster.cli.command_table import CommandWords, OptionWords, Value, torchrun_words
from muster.cli.completion_bash import HOST_NAMES

_SCRIPT = r"""#compdef muster
# zsh completion for muster, written by `muster completion zsh`

_muster_hosts() {
  local -a found
  found=(${(f)"$(
  %(hosts)s
  )"})
  compset -P '*,'
  compadd -S '' -a found
}

# Job ids and job names: 20261116-101500-baseline-3f9a and baseline.
_muster_jobs() {
  local -a found job_names
  found=("${XDG_STATE_HOME:-$HOME/.local/state}"/muster/jobs/*(N/:t))
  job_names=(${${found#*-*-}%%-*})
  compadd -V jobs last ${(u)job_names} ${(Oa)found}
}

_muster_commands() {
  local -a found
  found=(
%(commands)s
  )
  _describe -t commands 'muster command' found
}

_muster_torchrun() {
%(torchrun)s
}

_muster() {
  local curcontext=$curcontext state line
  typeset -A opt_args
  _arguments -C '(- *)'{-h,--help}'[show the commands]' '(- *)'{-V,--version}'[show the version]' \
    '1: :_muster_commands' '*:: :->arguments' && return
  case $state in
    arguments)
      local -i torchrun=$words[(i)torchrun]
      if (( torchrun > 1 && torchrun < CURRENT )); then
        words=("${(@)words[torchrun,-1]}")
        (( CURRENT -= torchrun - 1 ))
        _muster_torchrun
        return
      fi
      case $words[1] in
%(cases)s
      esac ;;
  esac
}

if [[ $funcstack[1] == _muster ]]; then
  _muster "$@"
else
  compdef _muster muster
fi
"""


_UP_TO_SCRIPT = " -A '-*'"
"""Lets `_arguments` offer no options after the script: those are the script's own."""


def zsh_script(table: Sequence[CommandWords]) -> str:
    """The completion script, for `fpath` or for `source`."""
    commands = [command for command in table if len(command.words) == 1]
    lines = [f"    {_quoted(f'{command.words[0]}:{command.about}')}" for command in commands]
    cases = "\n".join(line for command in commands for line in _case(command, table))
    torchrun = "\n".join(_arguments(torchrun_words(), "  "))
    return _SCRIPT % {"hosts": HOST_NAMES, "commands": "\n".join(lines), "cases": cases, "torchrun": torchrun}


def _case(command: CommandWords, table: Sequence[CommandWords]) -> Iterator[str]:
    yield f"        {command.words[-1]})"
    subs = [one for one in table if one.words[:-1] == command.words]
    if not subs:
        yield from _arguments(command, " " * 10)
        yield "          ;;"
        return
    listed = " ".join(_quoted(f"{one.words[-1]}:{one.about}") for one in subs)
    yield "          _arguments -C '1: :->subcommand' '*:: :->rest' && return"
    yield f"          local -a subcommands=({listed})"
    yield "          case $state in"
    yield f"            subcommand) _describe -t commands '{command.words[0]} command' subcommands ;;"
    yield "            rest)"
    yield "              case $words[1] in"
    for sub in subs:
        yield f"                {sub.words[-1]})"
        yield from _arguments(sub, " " * 18)
        yield "                  ;;"
    yield "              esac ;;"
    yield "          esac ;;"


def _arguments(command: CommandWords, indent: str) -> Iterator[str]:
    specs = [spec for option in command.options for spec in _option(option)]
    script = [argument for argument in command.arguments[:1] if argument.kind == "script"]
    if script:
        specs += ["'1:script:_files -g \"*.py(-.)\"'", "'*::argument:_files'"]
    elif command.arguments and command.arguments[0].kind == "text":
        specs.append(f"'*:{command.arguments[0].name}:()'")  # nothing to offer, but options may follow
    elif command.arguments:
        specs.append(f"'1:{command.arguments[0].name}:{_action(command.arguments[0])}'")
    yield f"{indent}_arguments -S{_UP_TO_SCRIPT if script else ''} \\"
    yield from (f"{indent}  {spec} \\" for spec in specs[:-1])
    yield f"{indent}  {specs[-1]}"


def _option(option: OptionWords) -> Iterator[str]:
    about = _escaped(option.about)
    value = "" if option.value.kind == "flag" else f":{option.value.name}:{_action(option.value)}"
    others = "" if option.repeats else f"({' '.join(option.names)})"
    for name in option.names:
        equals = "=" if value and name.startswith("--") else ""
        yield _quoted(f"{'*' if option.repeats else others}{name}{equals}[{about}]{value}")


def _action(value: Value) -> str:
    return {
        "choices": f"({' '.join(value.choices)})",
        "files": "_files",
        "directories": "_files -/",
        "hosts": "_muster_hosts",
        "job": "_muster_jobs",
    }.get(value.kind, " ")


def _escaped(text: str) -> str:
    for letter in "\\[]:":
        text = text.replace(letter, f"\\{letter}")
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
