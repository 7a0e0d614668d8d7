"""RunSpec: every option of a run with its default, for the command line and for Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from muster.errors import UsageError
from muster.hosts import MAX_HOSTS, MAX_SLOTS, Host
from muster.shared.wire import LEASE

LEASE_ALONE = 20.0
"""Default of `lost_after` for a job that cannot replace a host, so waiting for the network costs nothing."""

SHORTEST_LEASE = 2.0
"""Minimum of `lost_after` in seconds; a busy host may be silent for longer than a second."""

RESTARTS = 20
"""Default of `restarts` for a job with spares or `min_hosts`, which are useless without."""

LOCAL_RANK = "--local-rank=${local_rank}"
"""What torch.distributed.launch without --use-env passes to the script; each rank fills in its number."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A Python function with its arguments, as it is sent to the ranks."""

    name: str
    data: bytes = field(repr=False)
    """The pickle that a rank loads; `rank/function_call.py` defines the format."""
    python: tuple[int, int] | None
    """The version of Python it needs because it contains code; None if all code is sent by name."""
    file: str = ""
    """The file of its module if that is below the working directory: hosts need an identical copy."""
    path: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The caller's directories before and after the interpreter's own in sys.path; relative if below the cwd."""
    text: str = field(default="", repr=False)
    """Its source if available, to see what it imports."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run: a script, module or function, where it runs, and how."""

    target: str
    """The script as typed, or the name of the module or function; empty for `muster check` without one."""
    kind: Literal["script", "module", "function"] = "script"
    args: tuple[str, ...] = ()
    """The arguments of the script or module."""
    call: Call | None = None
    """The function, if it is one."""
    cwd: str = ""
    """The working directory of the ranks; empty for this process's own."""
    name: str = ""
    """A name for the job, accepted wherever a job's id is; empty for that of the script."""

    # Where
    hosts: tuple[Host, ...] | None = None
    """None for the hosts of the scheduler's job, else this machine."""
    pods: str | None = None
    """A label selector of Kubernetes: run in these pods instead of `hosts`."""
    namespace: str | None = None
    """The namespace of the pods; None for that of kubectl's current context."""
    pod_container: str | None = None
    """The container of the pods; None for kubectl's default."""
    lab: int | None = None
    """Run on that many virtual hosts, created for this run."""
    nproc: int | None = None
    """Ranks per host unless `hosts` gives a number; None for one per GPU."""
    ssh: tuple[str, ...] = ("ssh",)
    """The ssh program, with options that come before all others."""
    python: str | None = None
    """Python on the hosts; None for the same path as here, else python3, in pods always python3."""
    host_python: Mapping[str, str] = field(default_factory=dict[str, str])
    """Python on single hosts, by name, instead of `python`."""
    controller: str = ""
    """The host for the controller of a detached job; empty for the first host, `local` for this machine."""

    # Engine
    engine: str = "auto"
    """A name in `engines.table`, or `auto`: the scheduler of the current job, else ssh or local."""
    pbs_start: Literal["tm", "ssh"] = "tm"
    """How agents start inside a PBS job: as tasks of PBS, or by ssh and pbs_attach."""
    mpi_args: tuple[str, ...] = ()
    """More options for mpirun."""
    image: str | None = None
    """Run inside this container image on every host."""
    container: str | None = None
    """podman, docker or apptainer; None for the first one a host has."""
    container_args: tuple[str, ...] = ()
    """More options for the container program."""

    # Environment and code
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables for every rank; they override all others."""
    sync: bool = False
    """Copy the working directory to each host and run there."""
    fetch: tuple[str, ...] = ()
    """Paths and globs of files to copy back from there when the ranks have ended."""
    preload: tuple[str, ...] = ()
    """Modules to import once per host, in addition to torch."""
    zygote: bool = True
    """Fork ranks from a process that has imported torch; False starts each as a fresh Python process."""
    watch: bool = True
    """Install Muster's hooks, thread and signal handler in the ranks, to detect hangs and stragglers."""
    keep: float = 0.0
    """Seconds without a run for which the agents stay when the job has ended; 0: they end with it."""
    reuse: bool = True
    """Use agents that an earlier run has kept, if they fit."""
    check: bool = True
    """Run a quick check of the hosts while the job starts."""

    # Network
    master_addr: str | None = None
    """MASTER_ADDR, an address of the first host; None for one that every host can reach."""
    master_port: int | None = None
    """MASTER_PORT; None for a free port."""
    interface: str | None = None
    """The network interface for gloo and NCCL on every host."""

    # Failures
    restarts: int = 0
    """How often in a row all ranks are restarted after a failure without progress; 20 with spares or `min_hosts`."""
    spares: int = 0
    """How many hosts, from the end of the list, run no ranks until they replace a lost one."""
    min_hosts: int | None = None
    """The fewest hosts to continue with when one is lost and no spare is left; None to require all of them."""
    rejoin: float | None = None
    """Seconds after which a job with fewer hosts restarts for returned ones; 0: at its next restart; None: never."""
    lost_after: float | None = None
    """Seconds without contact until a host is lost; None for 5 with spares or `min_hosts`, 20 for pods, else 20."""
    avoid_bad: bool = False
    """Do not use hosts on which earlier jobs failed because of their hardware."""
    notice: str = ""
    """Polled on each host to learn that it will go away: a shell command, or `aws`, `gcp` or `azure`."""
    drain_signal: str = "USR1"
    """The signal that all ranks get when a host is about to go away."""
    grace: float = 5.0
    """Seconds for ranks to exit after Ctrl-C or SIGTERM."""
    hang_after: float = 30.0
    """Seconds without progress after which a hang is reported; 0 for never."""
    on_hang: Literal["report", "kill"] = "report"
    """Whether Muster only reports a hang, or also kills the job with exit code 124."""
    role: str = "default"
    """ROLE_NAME of every rank."""

    # Output
    quiet: bool = False
    """Print only errors from Muster."""
    only_ranks: frozenset[int] | None = None
    """The ranks whose output is shown; None for all."""
    only_local_ranks: frozenset[int] | None = None
    """The local ranks whose output is shown; None for all."""
    debug: bool = False
    """Print the debug log to stderr as well."""
    dashboard: bool = False
    """Serve the dashboard while the job runs, and print its address."""
    dashboard_port: int = 0
    """Its port; 0 for a free one."""
    notify: tuple[str, ...] = ()
    """Shell commands, `desktop` or URLs that get a message when the job ends or hangs."""

    @property
    def lease(self) -> float:
        """Seconds without contact after which a host is lost and its ranks have been ended."""
        if self.lost_after is not None:
            return self.lost_after
        # A restart of the API server cuts the connections to all pods for some seconds.
        can_be_short = (self.spares or self.min_hosts) and not self.uses_pods
        return LEASE if can_be_short else LEASE_ALONE

    @property
    def uses_pods(self) -> bool:
        """Whether it runs in pods of Kubernetes that kubectl reaches."""
        return self.pods is not None or any(host.pod for host in self.hosts or ())

    @property
    def command(self) -> str:
        """The script's command line, for display."""
        args = (arg for arg in self.args if arg != LOCAL_RANK)
        return " ".join((*(("-m",) if self.kind == "module" else ()), self.target, *args))

    def python_on(self, host: Host) -> str | None:
        """Return the Python on a host."""
        return self.host_python.get(host.name, self.python)

    def python_on_all(self, hosts: Sequence[Host]) -> str | None:
        """Return the Python on all hosts, for engines that start one command for all; UsageError if they differ."""
        found = {self.python_on(host): host for host in hosts}
        if len(found) > 1:
            listed = " and ".join(f"{python or 'the default'} on {host.name}" for python, host in found.items())
            raise UsageError(
                f"this engine needs the same Python on every host, got {listed}", hint="give one with --python PATH"
            )
        return next(iter(found), self.python)

    def __post_init__(self) -> None:
        for name in _LEAST:
            _check_number(name, getattr(self, name))
        for name in _TEXTS:
            _check_text(name, getattr(self, name))
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                words = " or ".join(map(repr, allowed))
                raise UsageError(f"{name} must be {words}, got {getattr(self, name)!r}", hint=f"leave {name} out")
        for name in _LISTS:
            _check_list(name, getattr(self, name))
        for name in ("env", "host_python"):
            _check_mapping(name, getattr(self, name))
        for name in ("only_ranks", "only_local_ranks"):
            ranks: object = getattr(self, name)
            listed = cast("frozenset[object]", ranks) if isinstance(ranks, frozenset) else frozenset[object]()
            if not isinstance(ranks, frozenset | None) or not all(type(rank) is int for rank in listed):
                raise UsageError(f"{name} must be a set of ranks, got {ranks!r}", hint="write {0, 1}")
        for module in self.preload:
            if not all(part.isidentifier() for part in module.split(".")):
                raise UsageError(f"preload: `{module}` is not a name of a module", hint="for example --preload numpy")
        if self.name:
            _check_name(self.name)
        if self.kind == "function" and self.call is None:
            raise UsageError("kind='function' needs a call", hint="use muster.launch(function)")
        if self.keep and not self.reuse:
            raise UsageError("--keep and --no-keep exclude each other", hint="leave one of them out")
        if self.on_hang == "kill" and not (self.watch and self.hang_after):
            off = "watch=False" if not self.watch else "hang_after=0"
            raise UsageError(f"on_hang='kill' has no effect with {off}", hint="leave one of them out")


def _check_number(name: str, value: object) -> None:
    least, most = _LEAST[name]
    hint = f"leave {name} out"
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} must be a number, got {value!r}", hint=hint)
    if isinstance(value, float) and name not in _DURATIONS:
        raise UsageError(f"{name} must be a whole number, got {value}", hint=hint)
    if name.endswith("_port") and not least <= value <= most:
        raise UsageError(f"{name} must be a port (1 to 65535), got {value}", hint="leave it out")
    if not value >= least:
        raise UsageError(f"{name} must be at least {least}, got {value}", hint=hint)
    if value > most:
        raise UsageError(f"{name} must be at most {most}, got {value}", hint=hint)


def _check_text(name: str, value: object) -> None:
    if value is None:
        return
    pattern, example = _TEXTS[name]
    if not isinstance(value, str):
        raise UsageError(f"{name} must be a string, got {value!r}", hint=f"leave {name} out")
    if "\0" in value:
        raise UsageError(f"{name} contains a NUL character", hint="remove it")
    if not re.fullmatch(pattern, value):
        raise UsageError(f"{name}: `{value}` is not valid", hint=f"for example {example}")


def _check_list(name: str, value: object) -> None:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name} must be a list, got {value!r}", hint="write [...]")
    wrong = [item for item in cast("list[object]", value) if not isinstance(item, str) or "\0" in item]
    if wrong:
        raise UsageError(f"{name} must be a list of strings, got {wrong[0]!r}", hint=f'write {name}=["a", "b"]')


def _check_mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be a dict, got {value!r}", hint=f'write {name}={{"NAME": "value"}}')
    for key, text in cast("Mapping[object, object]", value).items():
        if not isinstance(key, str) or not key or "\0" in key or (name == "env" and "=" in key):
            raise UsageError(f"{name}: invalid name {key!r}", hint=f'write {name}={{"NAME": "value"}}')
        if not isinstance(text, str):
            raise UsageError(f"{name}: {key} must be a string, got {text!r}", hint=f'write {name}={{"{key}": "value"}}')
        if "\0" in text:
            raise UsageError(f"{name}: the value of {key} contains a NUL character", hint="remove it")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(str(name)):
        raise UsageError(
            f"name must be 1 to 40 letters, digits, - and _, and begin with a letter, got {name!r}",
            hint="for example `--name resnet-lr01`",
        )
    if name == "last":
        raise UsageError("name must not be `last`, which means the newest job", hint="choose another name")


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")

_LONGEST = 10_000 * 86400
"""Seconds; the longest duration, which every timeout of the operating system can still hold."""

_DURATIONS = ("lost_after", "rejoin", "grace", "hang_after", "keep")

_LEAST: dict[str, tuple[float, float]] = {
    "nproc": (1, MAX_SLOTS),
    "lab": (1, 253),  # addresses of one network
    "restarts": (0, 1_000_000_000),
    "spares": (0, MAX_HOSTS),
    "min_hosts": (1, MAX_HOSTS),
    "lost_after": (SHORTEST_LEASE, _LONGEST),
    "rejoin": (0, _LONGEST),
    "grace": (0, _LONGEST),
    "hang_after": (0, _LONGEST),
    "keep": (0, _LONGEST),
    "master_port": (1, 65535),
    "dashboard_port": (0, 65535),
}
"""Minimum and maximum of each numeric field."""

_ANY = r"(?s).*"

_TEXTS = {
    "target": (_ANY, ""),
    "cwd": (_ANY, ""),
    "name": (_ANY, ""),
    "notice": (_ANY, ""),
    "role": (_ANY, ""),
    "engine": (_ANY, ""),
    "pods": (r"(?!-)[^\n\r\x1b]{1,4096}", "`--pods app=train`"),
    "namespace": (r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "`-n training`"),
    "pod_container": (r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "`-c main`"),
    "controller": (r"|(?!-)[^\s/]{1,255}", "`--controller gpu01`"),
    "python": (r"(?!-)[^\n\r\x1b]{1,4096}", "`--python /opt/venv/bin/python`"),
    "image": (r"[^\s\x1b]{1,4096}", "`--image pytorch/pytorch`"),
    "master_addr": (r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,254}", "`--master-addr 10.0.0.1`"),
    "interface": (r"(?!-)[^\s/\x1b]{1,255}", "`--interface eth0`"),
}
"""The form of each text field as a regular expression, and an example."""

_LISTS = ("args", "ssh", "mpi_args", "container_args", "preload", "fetch", "notify")

_CHOICES = {
    "kind": ("script", "module", "function"),
    "pbs_start": ("tm", "ssh"),
    "on_hang": ("report", "kill"),
    "drain_signal": ("USR1", "USR2", "TERM", "INT", "HUP"),
}
