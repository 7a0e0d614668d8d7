"""Hints for a wrong command line: what a person may have meant, by letters or by meaning."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping

MEANINGS: dict[str, tuple[str, ...]] = {
    "--nproc": (
        *("--gpus", "--gpus-per-node", "--n-gpus", "--ngpus", "--nproc-per-node", "--nprocs", "--np", "--ntasks"),
        *("--ntasks-per-node", "--num-gpus", "--num-processes", "--num-procs", "--num-workers", "--ppn", "--procs"),
        *("--ranks", "--workers", "--world-size", "-n", "-np"),
    ),
    "--nodes": ("--nnodes", "--num-machines", "--num-nodes", "-N"),
    "--hosts": (
        *("--host", "--hostlist", "--include", "--machines", "--nnodes", "--nodelist", "--nodes", "--num-machines"),
        *("--num-nodes", "--servers", "-N", "-w"),
    ),
    "--hostfile": ("--host-file", "--hosts-file", "--machine-file", "--machinefile", "-f"),
    "--time": ("--time-limit", "--timeout", "--walltime", "-t"),
    "--hang-after": ("--hang-timeout", "--nccl-timeout", "--timeout", "--watchdog"),
    "--grace": ("--kill-timeout", "--kill-wait", "--stop-timeout", "--timeout"),
    "--restarts": ("--max-retries", "--requeue", "--retries", "--retry"),
    "--only-rank": ("--filter", "--rank"),
    "--rank": ("--filter", "--only-rank"),
    "--master-addr": ("--address", "--main-process-ip"),
    "--master-port": ("--main-process-port", "--port"),
    "--interface": ("--iface", "--netdev", "--network", "--nic"),
    "--image": ("--container-image", "--docker", "--podman", "--singularity"),
    "--env": ("--environment", "--export", "--genv", "--setenv", "-e", "-x"),
    "--detach": ("--background", "--bg", "--daemon", "--nohup", "-d"),
    "--dashboard": ("--ui", "--web"),
    "--quiet": ("--silent", "-q"),
    "--python": ("--executable", "--interpreter"),
    "--out": ("--output", "--output-dir", "-o"),
    "--follow": ("--tail", "--watch", "-F"),
    "--partition": ("--qos", "-p", "-q"),
    "--all": ("--everything", "-a"),
}
"""Options of other launchers and tools, by the option of Muster that means the same."""

COMMAND_MEANINGS: dict[str, tuple[str, ...]] = {
    "run": ("exec", "launch", "mpirun", "python", "srun", "start", "torchrun"),
    "ps": ("jobs", "list", "ls", "squeue", "status"),
    "logs": ("cat", "output", "tail"),
    "top": ("htop", "monitor", "watch"),
    "dashboard": ("browser", "ui", "web"),
    "attach": ("follow", "fg"),
    "stop": ("cancel", "kill", "scancel"),
    "check": ("diagnose", "doctor", "verify"),
    "submit": ("batch", "qsub", "sbatch"),
    "recipes": ("examples", "samples"),
}
"""What other tools call the commands of Muster."""

_DESTRUCTIVE = frozenset({"--now", "--prune"})
"""Options that remove or kill: a person must have meant them, so they are never suggested."""

_CLOSE = 0.75
"""Share of letters that a typing error leaves; at 0.6, difflib's default, --timeout is close to --image."""


def nearest(word: str, names: Iterable[str], meanings: Mapping[str, tuple[str, ...]] = MEANINGS) -> str:
    """The name that was meant: the same in other terms, one with a typing error, or the only one that begins so."""
    from difflib import get_close_matches

    plain = word.replace("_", "-")
    safe = [name for name in names if name not in _DESTRUCTIVE]
    for name, others in meanings.items():
        if name in safe and plain in others:
            return name
    bare = plain.lstrip("-")
    if len(bare) < 3:
        return ""
    by_letters = {name.lstrip("-"): name for name in safe}
    begun = [name for name in by_letters if name.startswith(f"{bare}-")]
    close = get_close_matches(bare, by_letters, n=1, cutoff=_CLOSE) or (begun if len(begun) == 1 else [])
    return by_letters[close[0]] if close else ""


def misplaced(parser: argparse.ArgumentParser, script: str, args: tuple[str, ...], text: str) -> str:
    """A sentence about options of Muster that stand after the script, whose source does not mention them."""
    found = [word for words in _options_among(parser, args, text) for word in words]
    if not found:
        return ""
    names = ", ".join(word.partition("=")[0] for word in found if word.startswith("-"))
    return (
        f"{script} gets {names} as its own arguments; Muster's options go before the script: "
        f"{parser.prog} {' '.join(found)} {script}"
    )


def _options_among(parser: argparse.ArgumentParser, args: tuple[str, ...], text: str) -> Iterator[tuple[str, ...]]:
    """Each option of the parser among a script's arguments, with its value, unless the source has its name."""
    for position, word in enumerate(args):
        name = word.partition("=")[0].replace("_", "-")
        action = parser._option_string_actions.get(name)
        if action is None or not re.match(r"--\w|-H|-np$", name) or name == "--help":
            continue
        bare = name.removeprefix("--")
        if bare in text or bare.replace("-", "_") in text:
            continue
        takes_value = action.nargs != 0 and "=" not in word
        yield (word, *args[position + 1 : position + 2]) if takes_value else (word,)
