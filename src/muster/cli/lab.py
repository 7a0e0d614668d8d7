"""`muster lab`: virtual hosts on this machine, with fault injection."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from muster.api.arguments import Parser, cores, has_unit, option, percentage, port, positive, seconds
from muster.errors import UsageError

EXIT_NO_LAB = 1

HELP = """\
usage: muster lab COMMAND [options]

Run virtual hosts on this machine: h1, h2, ... each with its own address, hostname, disk, processes
and sshd. They run until `muster lab down`, which leaves nothing behind.

commands:
{commands}

faults:
{faults}

examples:
  muster lab up 4                     start four hosts, in less than a second
  muster lab exec h1 muster run -H h1,h2 train.py
                                      run a job on two of them
  muster lab ssh h1                   open a shell on h1
  muster lab exec h2 nproc            run a command with this machine's files
  muster lab cut h3                   disconnect h3 from the network
  muster lab heal h3                  reconnect it

`muster lab COMMAND --help` describes a command and its options.
"""


class Command(NamedTuple):
    """One `muster lab` command."""

    text: str
    examples: Sequence[str]
    """Command lines after `muster lab`."""
    run: Callable[[argparse.Namespace], int]
    options: Sequence[Callable[[Parser], None]] = ()


def main(argv: list[str]) -> int:
    """Run one `muster lab` command and return its exit code."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP.format(commands=_listed(COMMANDS), faults=_listed(FAULTS)), end="")
        return 0
    name, rest = argv[0], argv[1:]
    entry = {**COMMANDS, **FAULTS}.get(name)
    if entry is None:
        raise _unknown(name)
    parser = Parser(
        prog=f"muster lab {name}",
        description=f"{entry.text}.",
        epilog="examples:\n" + "\n".join(f"  muster lab {line}" for line in entry.examples),
    )
    for add in entry.options:
        add(parser)
    options = parser.parse_args(rest)
    options.verb = name
    return entry.run(options)


def _listed(entries: dict[str, Command]) -> str:
    return "\n".join(f"  {name:<11} {entry.text}" for name, entry in entries.items())


def _unknown(name: str) -> UsageError:
    from muster.api.hints import nearest

    near = nearest(name, [*COMMANDS, *FAULTS])
    hint = f"did you mean `muster lab {near}`?" if near else "`muster lab --help` lists the commands"
    return UsageError(f"muster lab: unknown command `{name}`", hint=hint)


def _up(options: argparse.Namespace) -> int:
    from muster.engines.ssh.lab_hint import leave_ssh_config
    from muster.jobs.job_folders import jobs_folder
    from muster.lab.lab_client import start

    jobs = jobs_folder()
    jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    bind = [str(jobs), *(os.path.abspath(path) for path in options.bind)]
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
    if lab["kind"] != "loopback":  # there, hosts do not know each other's names
        leave_ssh_config(lab["ssh"][-1])
    hosts = lab["hosts"]
    last = hosts[-1]["name"]
    if len(hosts) > 1:
        said = f"{len(hosts)} hosts are up: h1 to {last}, {hosts[0]['address']} to {hosts[-1]['address']}\n"
    else:
        said = f"1 host is up: h1, {hosts[0]['address']}\n"
    if lab["limits"]:
        said += "\nlimitations of this lab:\n" + "".join(f"  - {limit}\n" for limit in lab["limits"])
    said += "\nnext steps:\n" + _next_steps(options, last, in_names=lab["kind"] != "loopback")
    sys.stderr.write(said)
    return 0


def _next_steps(options: argparse.Namespace, last: str, *, in_names: bool) -> str:
    """The lines that follow `next steps:`; `last` is the last host, and with `in_names` the hosts know each other's."""
    hosts = "h1" if last == "h1" else f"h1,{last}"
    job = f"lab exec h1 muster run -H {hosts} train.py" if in_names else f"run --lab {options.hosts} train.py"
    tries = [
        (job, f"run a job on {hosts.replace(',', ' and ')}" if in_names else "run a job, on hosts of its own"),
        ("lab ssh h1", "open a shell on h1, over ssh"),
        (f"lab exec {last} hostname", f"run a command on {last}"),
        (f"lab crash {last}", "inject a fault; `muster lab --help` lists more"),
        ("lab status", "show the state of the hosts"),
        ("lab down", "stop the lab"),
    ]
    if options.podman:
        tries.insert(3, ("lab ssh h1 podman images", "list the container images on h1"))
    if options.mpi:
        root = " --allow-run-as-root" if os.getuid() == 0 else ""
        tries.insert(3, (f"lab ssh h1 mpirun{root} -H {hosts} hostname", "run two processes with MPI"))
    if options.slurm:
        tries.insert(3, (f"lab ssh h1 srun -N{options.hosts} hostname", "run a command on all hosts with Slurm"))
    width = max(len(line) for line, _ in tries) + 1
    return "".join(f"  muster {line:<{width}} {text}\n" for line, text in tries)


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
    terminal = [] if options.command else ["-t"]
    os.execvp(argv[0], [*argv, *terminal, options.hosts[0], _remote_line(options.command)])


def _remote_line(command: Sequence[str]) -> str:
    """What the login shell runs: a shell, or a command in one, with our PATH and in our working directory."""
    own = {"PATH": _path()}
    if "XDG_STATE_HOME" in os.environ:  # the jobs are there
        own["XDG_STATE_HOME"] = os.environ["XDG_STATE_HOME"]
    shell = ["sh", "-c", 'cd "$0" 2>/dev/null; exec "$SHELL" "$@"', os.getcwd()]
    line = ["-c", " ".join(command)] if command else []  # ssh joins the words, too
    return shlex.join(["env", *(f"{name}={value}" for name, value in own.items()), *shell, *line])


def _path() -> str:
    """The PATH of a command on a host: ours, and where it finds Muster."""
    from muster.lab.system_programs import SYSTEM_PATH

    return ":".join(filter(None, [os.environ.get("PATH"), os.path.dirname(sys.executable), SYSTEM_PATH]))


def _exec(options: argparse.Namespace) -> int:
    from muster.lab.lab_client import request

    if not options.command:
        raise UsageError(
            "muster lab exec: no command given", hint=f"for example `muster lab exec {options.hosts[0]} hostname`"
        )
    argv: list[str] = request("enter", host=options.hosts[0], cwd=os.getcwd())["argv"]
    # Ctrl-C is for the command inside: nsenter, which waits for the command, must survive it, and the shell turns
    # the end of the command into an exit code.
    for caught in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(caught, signal.SIG_IGN)
    shell = ["env", "--default-signal=INT,QUIT", "sh", "-c", 'trap : INT QUIT; "$@"', "sh"]
    os.execvpe(argv[0], [*argv, *shell, *options.command], {**os.environ, "PATH": _path()})


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


def _milliseconds(text: str) -> float:
    return seconds(text) * 1000 if has_unit(text) else float(text)


def _option(names: str, about: str, **settings: Any) -> Callable[[Parser], None]:
    return lambda parser: option(parser, names, about, **settings)


_HOST = _option("HOST", "a host, such as h2", dest="hosts", nargs=1)
_HOSTS = _option("HOST", "one or more hosts, such as h2 h3", dest="hosts", nargs="+")
_COMMAND = _option("COMMAND", "the command to run", nargs=argparse.REMAINDER)
_BIND = "directory that all hosts share with this machine, as with NFS (repeatable)"
_DELAY = "delay of each packet, such as 25ms; a plain number is milliseconds"
_OUT = "block connections from the host to this port of other hosts instead"
_switch = partial(_option, action="store_const")

COMMANDS = {
    "up": Command(
        "Start a lab that stays up in the background",
        ["up 4", "up 8 --disk 1g --bind /data", "up 4 --slurm --mpi --podman --gpus 2"],
        _up,
        [
            _option("N", "number of hosts: h1 to hN", dest="hosts", type=positive),
            _option("--disk SIZE", "size of each host's disk and /tmp (default: 256m)", default="256m"),
            _option("--shm SIZE", "size of each host's /dev/shm (default: 1g)", default="1g"),
            _option("--bind DIR", _BIND, action="append", default=[]),
            _option("--gpus N", "simulate N GPUs per host, as files in /dev", type=positive),
            _option("--slurm", "run Slurm on the hosts; h1 is also the login node"),
            _option("--mpi", "configure Open MPI and MPICH for the hosts"),
            _option("--podman", "support containers on the hosts, with a small image"),
        ],
    ),
    "down": Command("Stop the lab and everything in it", ["down"], _down),
    "status": Command(
        "Show the address, state and faults of each host (exit code 1 if no lab is up)",
        ["status", "status --json"],
        _status,
        [_option("--json", "print JSON")],
    ),
    "ssh": Command(
        "Open a shell or run a command on a host over ssh",
        ["ssh h1", "ssh h1 nvidia-smi"],
        _ssh,
        [_HOST, _COMMAND],
    ),
    "exec": Command(
        "Run a command on a host without ssh, in the working directory if the host has it",
        ["exec h1 muster run -H h1,h2 train.py", "exec h2 hostname", "exec h2 sh -c 'echo hello > /tmp/note'"],
        _exec,
        [_HOST, _COMMAND],
    ),
}

FAULTS = {
    "cut": Command("Disconnect hosts from the network: packets get lost", ["cut h2", "cut h2 h3"], _fault, [_HOSTS]),
    "loss": Command(
        "Drop a percentage of the packets to and from a host",
        ["loss h2 10"],
        _fault,
        [_HOST, _option("PERCENT", "percentage of lost packets", type=percentage)],
    ),
    "delay": Command(
        "Delay each packet to and from a host; adds twice the delay to a round trip",
        ["delay h2 25ms"],
        _fault,
        [_HOST, _option("DURATION", _DELAY, dest="milliseconds", type=_milliseconds)],
    ),
    "slow": Command(
        "Slow down the CPU or the network of a host",
        ["slow h2 --cpu 0.1", "slow h2 --rate 40mbit"],
        _fault,
        [
            _HOST,
            _option("--cpu CORES", "limit all its processes together to this many cores: 0.1", type=cores),
            _option("--rate SPEED", "limit its network to this speed: 40mbit"),
        ],
    ),
    "block-port": Command(
        "Block a TCP port of a host, as a firewall does",
        ["block-port h2 29500", "block-port h2 29500 --drop --out"],
        _fault,
        [
            _HOST,
            _option("PORT", "a TCP port", type=port),
            _switch("--drop", "drop packets instead of rejecting them", dest="how", const="drop", default="reject"),
            _switch("--out", _OUT, dest="direction", const="out", default="in"),
        ],
    ),
    "fill-disk": Command("Fill the disk and /tmp of hosts", ["fill-disk h2"], _fault, [_HOSTS]),
    "heal": Command("Undo all of the above", ["heal h2"], _fault, [_HOSTS]),
    "freeze": Command("Freeze every process of hosts", ["freeze h2"], _fault, [_HOSTS]),
    "thaw": Command("Resume the processes of frozen hosts", ["thaw h2"], _fault, [_HOSTS]),
    "crash": Command(
        "Kill all processes of hosts; their connections close, so peers notice", ["crash h2"], _fault, [_HOSTS]
    ),
    "power-off": Command("Power hosts off: peers get no notice", ["power-off h2"], _fault, [_HOSTS]),
    "reboot": Command("Restart hosts with an empty disk and without faults", ["reboot h2"], _fault, [_HOSTS]),
}
