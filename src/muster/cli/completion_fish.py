"""The fish completion of `muster`: one `complete` line for each command and option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster.cli.command_table import CommandWords, OptionWords, Value, torchrun_words
from muster.cli.completion_bash import HOST_NAMES

_HEAD = r"""# fish completion for muster, written by `muster completion fish`

function __muster_hosts
  set -l typed (string replace -r '[^,]*$' '' -- (commandline -ct))
  for host in (sh -c %(hosts)s)
    echo $typed$host
  end
end

function __muster_jobs
  set -l state $XDG_STATE_HOME
  test -n "$state"; or set state ~/.local/state
  for job in $state/muster/jobs/*/
    string replace -r '.*/([^/]+)/$' '$1' -- $job
    string replace -r '.*/[^-/]+-[^-/]+-([^/]+)-[^-/]+/$' '$1' -- $job
  end
  echo last
end

# Whether the command line begins with these words.
function __muster_is
  set -l words (commandline -opc)
  string match -q -- "$argv *" "$words[2..-1] "
end

# Whether it consists of these words alone.
function __muster_only
  set -l words (commandline -opc)
  test "$words[2..-1]" = "$argv"
end

complete -c muster -f
complete -c muster -n __fish_use_subcommand -s h -l help -d 'show the commands'
complete -c muster -n __fish_use_subcommand -s V -l version -d 'show the version'
"""


def fish_script(table: Sequence[CommandWords]) -> str:
    """The completion script."""
    lines = [line for command in table for line in _lines(command)]
    after_torchrun = "complete -c muster -n 'contains torchrun (commandline -opc)'"
    lines += [f"{after_torchrun} {' '.join(_option(option))}" for option in torchrun_words().options]
    return _HEAD % {"hosts": _quoted(HOST_NAMES)} + "\n".join(lines) + "\n"


def _lines(command: CommandWords) -> Iterator[str]:
    *parents, name = command.words
    when = _quoted(f"__muster_only {' '.join(parents)}") if parents else "__fish_use_subcommand"
    yield f"complete -c muster -n {when} -a {name} -d {_quoted(command.about)}"
    here = _quoted(f"__muster_is {' '.join(command.words)}")
    for option in command.options:
        yield f"complete -c muster -n {here} {' '.join(_option(option))}"
    for argument in command.arguments[:1]:
        wanted = _candidates(argument)
        if wanted:
            yield f"complete -c muster -n {here} {wanted}"


def _option(option: OptionWords) -> Iterator[str]:
    for name in option.names:
        bare = name.lstrip("-")
        yield f"-l {bare}" if name.startswith("--") else f"-s {bare}" if len(bare) == 1 else f"-o {bare}"
    if option.about:
        yield f"-d {_quoted(option.about)}"
    if option.value.kind in ("files", "directories"):
        yield "-r -F"
    elif option.value.kind != "flag":
        yield f"-x {_candidates(option.value)}".rstrip()


def _candidates(value: Value) -> str:
    """The options of `complete` that offer a value."""
    return {
        "choices": f"-a {_quoted(' '.join(value.choices))}",
        "files": "-F",
        "directories": "-F",
        "script": "-F",
        "hosts": "-a '(__muster_hosts)'",
        "job": "-a '(__muster_jobs)'",
    }.get(value.kind, "")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
