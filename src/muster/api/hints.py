"""Hints for a wrong command line: the option or command that was probably meant, by spelling or by meaning."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from muster.environment import SECRET_NAME
from muster.errors import UsageError

MEANINGS: dict[str, tuple[str, ...]] = {
    "--nproc": (
        *("--gpus", "--gpus-per-node", "--n-gpus", "--ngpus", "--nproc-per-node", "--nprocs", "--np", "--ntasks"),
        *("--ntasks-per-node", "--num-gpus", "--num-processes", "--num-procs", "--num-workers", "--ppn", "--procs"),
        *("--ranks", "--workers", "--world-size", "-np"),
    ),
    "--nodes": ("--nnodes", "--num-machines", "--num-nodes", "-N"),
    "--hosts": (
        *("--host", "--hostlist", "--include", "--machines", "--nnodes", "--nodelist", "--nodes", "--num-machines"),
        *("--num-nodes", "--servers", "-N", "-w"),
    ),
    "--hostfile": ("--host-file", "--hosts-file", "--machine-file", "--machinefile", "-f"),
    "--time": ("--time-limit", "--timeout", "--walltime", "-t"),
    "--hang-after": ("--hang-timeout", "--nccl-timeout", "--timeout", "--watchdog"),
    "--grace": ("--kill-timeout", "--kill-wait", "--shutdown-timeout", "--stop-timeout", "--timeout"),
    "--restarts": ("--max-restarts", "--max-retries", "--requeue", "--retries", "--retry"),
    "--only-rank": ("--filter", "--rank"),
    "--rank": ("--filter", "--only-rank", "-r"),
    "--master-addr": ("--address", "--main-process-ip"),
    "--master-port": ("--main-process-port", "--port"),
    "--interface": ("--iface", "--netdev", "--network", "--nic"),
    "--image": ("--container-image", "--docker", "--podman", "--singularity"),
    "--env": ("--environment", "--export", "--genv", "--setenv", "-e", "-x"),
    "--detach": ("--background", "--bg", "--daemon", "--nohup", "-d"),
    "--dashboard": ("--browser", "--ui", "--web"),
    "--quiet": ("--silent", "-q"),
    "--python": ("--executable", "--interpreter"),
    "--out": ("--output", "--output-dir", "-o"),
    "--lines": ("--tail",),
    "--follow": ("--watch", "-F"),
    "--partition": ("--qos", "-p", "-q"),
    "--all": ("--everything", "-a"),
}
"""Options of other launchers and tools, by the equivalent option of Muster."""

COMMAND_MEANINGS: dict[str, tuple[str, ...]] = {
    "run": ("exec", "launch", "mpirun", "python", "srun", "start", "torchrun"),
    "ps": ("jobs", "list", "ls", "squeue", "status"),
    "show": ("describe", "explain", "inspect", "why"),
    "logs": ("cat", "output", "tail"),
    "top": ("htop", "monitor", "watch"),
    "dashboard": ("browser", "ui", "web"),
    "attach": ("follow", "fg"),
    "stop": ("cancel", "kill", "scancel"),
    "drain": ("cordon", "evict", "migrate"),
    "check": ("diagnose", "doctor", "verify"),
    "submit": ("batch", "qsub", "sbatch"),
    "recipes": ("examples", "samples"),
}
"""Names in other tools for the commands of Muster."""

_DESTRUCTIVE = frozenset({"--now", "--prune"})
"""Options that delete or kill: never suggested, because a suggestion may be accepted without thought."""

_CLOSE = 0.75
"""Minimum similarity of a typing error; at 0.6, difflib's default, --timeout would match --image."""


def nearest(word: str, names: Iterable[str], meanings: Mapping[str, tuple[str, ...]] = MEANINGS) -> str:
    """Return the name that was probably meant: a synonym, a similar spelling, or the only name with this prefix."""
    from difflib import get_close_matches

    plain = word.replace("_", "-")
    safe = [name for name in names if name not in _DESTRUCTIVE]
    for name, others in meanings.items():
        if name in safe and plain in others:
            return name
    bare = plain.lstrip("-")
    if len(bare) < 3:
        return ""
    begun = [name.lstrip("-") for name in safe if name.lstrip("-").startswith(f"{bare}-")]
    by_letters = {other.lstrip("-"): name for name, others in meanings.items() if name in safe for other in others}
    by_letters |= {name.lstrip("-"): name for name in safe}
    close = get_close_matches(bare, by_letters, n=1, cutoff=_CLOSE) or (begun if len(begun) == 1 else [])
    return by_letters[close[0]] if close else ""


def misplaced(
    parser: argparse.ArgumentParser, argv: Sequence[str], command: Sequence[str], text: str, *, start: int
) -> str:
    """Return a hint about options of Muster after the script, if the script's source does not mention them.

    `command` is the script with its arguments, the end of `argv`; `start` is the number of Muster's options and their
    values at its beginning: less than what precedes the script in `-H a,b torchrun train.py`.
    """
    names, meant = _moved(parser, argv, command, text, start)
    if not names:
        return ""
    own = "its own argument" if len(names) == 1 else "its own arguments"
    return f"{command[0]} receives {', '.join(names)} as {own}; put Muster's options before the script: {meant}"


def refuse_misplaced(parser: argparse.ArgumentParser, argv: Sequence[str], command: Sequence[str], text: str) -> None:
    """Raise UsageError for options of Muster after the script, unless `--` before it says that all are the script's.

    For commands whose result would be wrong without them, such as a check of other hosts than those named.
    """
    script = command[0]
    names, meant = _moved(parser, argv, command, text, len(argv) - len(command))
    if names:
        own, they = ("own argument", "it belongs") if len(names) == 1 else ("own arguments", "they belong")
        raise UsageError(
            f"{parser.prog}: {', '.join(names)} after {script} would be {script}'s {own}",
            hint=f"put Muster's options before the script: {meant}\n"
            f"      or write `--` before {script} if {they} to {script}",
        )


def _moved(
    parser: argparse.ArgumentParser, argv: Sequence[str], command: Sequence[str], text: str, start: int
) -> tuple[list[str], str]:
    """Return the names of Muster's options after the script, and the command line with them at `start`.

    The hint of `muster run` goes into the debug log, so it shows no secrets and no arguments of the script.
    """
    before = len(argv) - len(command)
    if before > 0 and argv[before - 1] == "--":
        return [], ""
    script, *args = command
    found = list(_options_among(parser, args, text))
    moved = [word for words in found for word in words]
    names = [words[0].partition("=")[0] for words in found]
    line = shlex.join([*map(_without_secret, [*argv[:start], *moved, *argv[start:before]]), script])
    return names, f"{parser.prog} {line}{' ...' if len(moved) < len(args) else ''}"


def _without_secret(word: str) -> str:
    """Return a word of the command line, without the value of `WANDB_API_KEY=value`."""
    name, equals, _ = word.rpartition("=")
    return f"{name}=..." if equals and SECRET_NAME.search(name) else word


def _options_among(parser: argparse.ArgumentParser, args: Sequence[str], text: str) -> Iterator[tuple[str, ...]]:
    """Yield each option of the parser in a script's arguments, with its value, unless the source mentions it."""
    for position, word in enumerate(args):
        name = word.partition("=")[0].replace("_", "-")
        action = parser._option_string_actions.get(name)
        if action is None or hasattr(action, "is_inverse") or not re.match(r"--\w|-H|-np$", name):
            continue
        if name == "--help" or _mentions(text, name):
            continue
        takes_value = action.nargs != 0 and "=" not in word
        yield (word, *args[position + 1 : position + 2]) if takes_value else (word,)


def _mentions(text: str, option: str) -> bool:
    """Whether a script seems to read an option: "--dry-run", 'dry_run', `dry_run: bool` or `dry_run=`."""
    name = re.escape(option.removeprefix("--")).replace(r"\-", "[-_]")
    own = re.sub(r"(?m)^\s*(import|from)\s.*$", "", text)
    return re.search(rf"""(?<!\w)(--{name}\b|["']{name}["']|{name}\s*[:=,)])""", own) is not None
