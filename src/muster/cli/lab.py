"""`muster lab`: a cluster of virtual hosts on this machine, with faults to inject."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from muster.api.arguments import Parser, has_unit, seconds
from muster.errors import UsageError

EXIT_NO_LAB = 1

HELP = """\
usage: muster lab COMMAND [options]

A cluster of virtual hosts on this machine: h1, h2, ... each with its own address, hostname, disk, processes
and sshd. It stays up until `muster lab down`, and leaves nothing behind.

commands:
{commands}

faults:
{faults}

examples:
  muster lab up 4                     four hosts, in less than a second
  muster lab ssh h1                   a shell on one of them
  muster lab exec h2 nproc            one command, here with this machine's files
  muster lab cut h3                   pull its network cable
  muster lab heal h3                  and put it back

`muster lab COMMAND --help` explains one command.
"""


Setup = Callable[[argparse.ArgumentParser], None]
Action = Callable[[argparse.Namespace], int]


def main(argv: list[str]) -> int:
    """Run one `muster lab` command and return its exit code."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP.format(commands=_listed(COMMANDS), faults=_listed(FAULTS)), end="")
        return 0
    name, rest = argv[0], argv[1:]
    entry = {**COMMANDS, **FAULTS}.get(name)
    if entry is None:
        raise _unknown(name)
    text, examples, setup, action = entry
    parser = Parser(
        prog=f"muster lab {name}",
        description=f"{text}.",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples),
    )
    setup(parser)
    options = parser.parse_args(rest)
    options.verb = name
    return action(options)


def _listed(entries: dict[str, Any]) -> str:
    return "\n".join(f"  {name:<11} {entry[0]}" for name, entry in entries.items())


def _unknown(name: str) -> UsageError:
    from muster.api.hints import nearest

    near = nearest(name, [*COMMANDS, *FAULTS])
    hint = f"did you mean `muster lab {near}`?" if near else "`muster lab --help` lists the commands"
    return UsageError(f"there is no lab command `{name}`", hint=hint)


# --- what each command takes ------------------------------------------------------------------------


def _nothing(parser: argparse.ArgumentParser) -> None:
    del parser


def _up_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="N", type=int, help="how many hosts: h1 to hN")
    parser.add_argument("--disk", default="256m", help="size of each host's disk, and of its /tmp (default 256m)")
    parser.add_argument("--shm", default="1g", help="size of each host's /dev/shm (default 1g)")
    parser.add_argument(
        "--bind",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder that all hosts share with this machine, as over NFS; may be given again",
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="let each host pretend to have N GPUs, as files in /dev")
    parser.add_argument("--slurm", action="store_true", help="make it a Slurm cluster; h1 is also the login node")
    parser.add_argument("--mpi", action="store_true", help="make sure that Open MPI and MPICH reach every host")
    parser.add_argument("--podman", action="store_true", help="let the hosts run containers, from a tiny image")


def _status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it for programs")


def _host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="HOST", nargs=1, help="a host, say h2")


def _hosts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="HOST", nargs="+", help="one or more hosts, say h2 h3")


def _command(parser: argparse.ArgumentParser) -> None:
    _host(parser)
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="what to run there")


def _slow_options(parser: argparse.ArgumentParser) -> None:
    _host(parser)
    parser.add_argument("--cpu", type=float, metavar="CORES", help="all its processes share this many cores: 0.1")
    parser.add_argument("--rate", metavar="SPEED", help="speed of its network: 40mbit")


def _loss_options(parser: argparse.ArgumentParser) -> None:
    _host(parser)
    parser.add_argument("percent", metavar="PERCENT", type=float, help="how many of a hundred packets get lost")


def _delay_options(parser: argparse.ArgumentParser) -> None:
    _host(parser)
    parser.add_argument(
        "milliseconds",
        metavar="DURATION",
        type=_milliseconds,
        help="how much later each packet arrives, such as 25ms; a plain number is milliseconds",
    )


def _milliseconds(text: str) -> float:
    return seconds(text) * 1000 if has_unit(text) else float(text)


def _port_options(parser: argparse.ArgumentParser) -> None:
    _host(parser)
    parser.add_argument("port", metavar="PORT", type=int, help="a TCP port")
    parser.add_argument(
        "--drop",
        action="store_const",
        dest="how",
        const="drop",
        default="reject",
        help="swallow packets in silence",
    )
    parser.add_argument(
        "--out",
        action="store_const",
        dest="direction",
        const="out",
        default="in",
        help="block the host's connections to that port of others, not theirs to it",
    )


# --- what each command does -------------------------------------------------------------------------


def _up(options: argparse.Namespace) -> int:
    from muster.lab.lab_client import start

    bind = [os.path.abspath(path) for path in options.bind]
    lab = start(
        options.hosts,
        bind=bind,
        disk=options.disk,
        shm=options.shm,
        gpus=options.gpus,
        slurm=options.slurm,
        mpi=options.mpi,
        podman=options.podman,
    )
    hosts = lab["hosts"]
    last = hosts[-1]["name"]
    if len(hosts) > 1:
        said = f"{len(hosts)} hosts are up: h1 to {last}, {hosts[0]['address']} to {hosts[-1]['address']}\n"
    else:
        said = f"1 host is up: h1, {hosts[0]['address']}\n"
    if lab["limits"]:
        said += "\nwhat is missing in this lab:\n" + "".join(f"  - {limit}\n" for limit in lab["limits"])
    tries = [
        ("ssh h1", "a shell on h1"),
        (f"exec {last} hostname", f"a command on {last}"),
        (f"crash {last}", "one of many faults: `muster lab --help`"),
        ("status", "how the hosts are"),
        ("down", "when you are done"),
    ]
    if options.podman:
        tries.insert(2, ("ssh h1 podman images", "the image that the hosts have"))
    if options.mpi:
        root = " --allow-run-as-root" if os.getuid() == 0 else ""
        tries.insert(2, (f"ssh h1 mpirun{root} -H h1,{last} hostname", "two processes, by MPI"))
    if options.slurm:
        tries.insert(2, (f"ssh h1 srun -N{len(hosts)} hostname", "a command on all of them, by Slurm"))
    width = max(20, *(len(line) + 1 for line, _ in tries))
    said += "\nnow try:\n" + "".join(f"  muster lab {line:<{width}} {text}\n" for line, text in tries)
    sys.stderr.write(said)
    return 0


def _down(options: argparse.Namespace) -> int:
    from muster.lab.lab_client import request

    request(options.verb)
    print("the lab is down", file=sys.stderr)
    return 0


def _status(options: argparse.Namespace) -> int:
    from muster.lab.lab_client import NoLab, request

    try:
        lab = request("status")
    except NoLab as none:
        print(json.dumps({"hosts": []}) if options.json else f"{none.message}; {none.hint}")
        return EXIT_NO_LAB
    if options.json:
        print(json.dumps(lab, indent=2))
        return 0
    print(f"{'HOST':<6} {'ADDRESS':<12} {'STATE':<7} FAULTS")
    for host in lab["hosts"]:
        faults = ", ".join(host["faults"]) or "-"
        print(f"{host['name']:<6} {host['address']:<12} {host['state']:<7} {faults}")
    return 0


def _ssh(options: argparse.Namespace) -> int:
    from muster.lab.lab_client import request

    argv: list[str] = request("ssh", host=options.hosts[0])["argv"]
    os.execvp(argv[0], [*argv, options.hosts[0], *options.command])


def _exec(options: argparse.Namespace) -> int:
    from muster.lab.lab_client import request

    if not options.command:
        raise UsageError(
            "muster lab exec: say what to run", hint=f"muster lab exec {options.hosts[0]} hostname, for example"
        )
    argv: list[str] = request("enter", host=options.hosts[0], cwd=os.getcwd())["argv"]
    # Ctrl-C is for the command inside: nsenter, which waits for it, must not die of it first, and the shell turns
    # the command's end into an exit code.
    for caught in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(caught, signal.SIG_IGN)
    shell = ["env", "--default-signal=INT,QUIT", "sh", "-c", 'trap : INT QUIT; "$@"', "sh"]
    os.execvp(argv[0], [*argv, *shell, *options.command])


def _fault(options: argparse.Namespace) -> int:
    from muster.lab.lab_client import request

    arguments = {name: value for name, value in vars(options).items() if name not in ("verb", "hosts")}
    hosts: list[str] = options.hosts
    for host in hosts:
        request(options.verb, host=host, **arguments)
    for host in request("status")["hosts"]:
        if host["name"] in hosts:
            faults = ", ".join(host["faults"])
            print(f"{host['name']} is {host['state']}" + (f": {faults}" if faults else ""), file=sys.stderr)
    return 0


COMMANDS: dict[str, tuple[str, list[str], Setup, Action]] = {
    "up": (
        "Start a lab that stays up in the background",
        [
            "muster lab up 4",
            "muster lab up 8 --disk 1g --bind /data",
            "muster lab up 4 --slurm --mpi --podman --gpus 2",
        ],
        _up_options,
        _up,
    ),
    "down": ("End the lab and everything in it", ["muster lab down"], _nothing, _down),
    "status": (
        "Show each host with its address, state and faults (exit code 1 when no lab is up)",
        ["muster lab status", "muster lab status --json"],
        _status_options,
        _status,
    ),
    "ssh": (
        "Log in to a host, or run a command there, over ssh",
        ["muster lab ssh h1", "muster lab ssh h1 nvidia-smi"],
        _command,
        _ssh,
    ),
    "exec": (
        "Run a command in a host without ssh, in this folder where the host has it",
        ["muster lab exec h2 hostname", "muster lab exec h2 sh -c 'echo hello > /tmp/note'"],
        _command,
        _exec,
    ),
}

FAULTS: dict[str, tuple[str, list[str], Setup, Action]] = {
    "cut": (
        "Cut the network cable of hosts: silence",
        ["muster lab cut h2", "muster lab cut h2 h3"],
        _hosts,
        _fault,
    ),
    "loss": (
        "Lose a share of the packets to and from a host",
        ["muster lab loss h2 10"],
        _loss_options,
        _fault,
    ),
    "delay": (
        "Delay each packet to and from a host; a round trip takes twice as much longer",
        ["muster lab delay h2 25ms"],
        _delay_options,
        _fault,
    ),
    "slow": (
        "Slow down the processors or the network of a host",
        ["muster lab slow h2 --cpu 0.1", "muster lab slow h2 --rate 40mbit"],
        _slow_options,
        _fault,
    ),
    "block-port": (
        "Close a TCP port of a host, as a firewall does",
        ["muster lab block-port h2 29500", "muster lab block-port h2 29500 --drop --out"],
        _port_options,
        _fault,
    ),
    "fill-disk": ("Fill the disk and /tmp of hosts", ["muster lab fill-disk h2"], _hosts, _fault),
    "heal": ("Undo all of the above", ["muster lab heal h2"], _hosts, _fault),
    "freeze": ("Stop every process of hosts", ["muster lab freeze h2"], _hosts, _fault),
    "thaw": ("Let the processes of frozen hosts go on", ["muster lab thaw h2"], _hosts, _fault),
    "crash": (
        "Kill everything in hosts at once; their connections close, so peers notice",
        ["muster lab crash h2"],
        _hosts,
        _fault,
    ),
    "power-off": ("Pull the plug of hosts: peers hear nothing", ["muster lab power-off h2"], _hosts, _fault),
    "reboot": (
        "Bring hosts back, with an empty disk and no faults",
        ["muster lab reboot h2"],
        _hosts,
        _fault,
    ),
}
