"""What a run can be asked for: one value with every option and its default, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from muster.errors import UsageError
from muster.hosts import Host


@dataclass(frozen=True, kw_only=True)
class Call:
    """A Python function with its arguments, as it is sent to the ranks."""

    name: str
    data: bytes = field(repr=False)
    """What a rank unpickles; `rank/function_call.py` knows the form."""
    python: tuple[int, int] | None
    """The version of Python it needs, because it holds code; None where all code is only named."""
    file: str = ""
    """The file of the module it names, if that lies below the working directory: hosts must have it alike."""
    path: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """What the caller has before and after the interpreter's own folders in sys.path; relative where below the cwd."""
    text: str = field(default="", repr=False)
    """Its source, where there is one, to see what it will import."""


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

    # Where
    hosts: tuple[Host, ...] | None = None
    """None for the hosts of the scheduler's job, else this machine."""
    lab: int | None = None
    """Run on that many virtual hosts, which live as long as the run."""
    nproc: int | None = None
    """Ranks per host where `hosts` does not say; None for one per GPU."""
    ssh: tuple[str, ...] = ("ssh",)
    """The ssh program, with options that come before all others."""
    python: str | None = None
    """The interpreter on the hosts; None for this one's path, else python3."""

    # Engine
    engine: str = "auto"
    """A name of `engines.table`, or `auto`: that of the job we are in, else ssh or local."""
    pbs_start: Literal["tm", "ssh"] = "tm"
    """How agents start inside a PBS job: as tasks of PBS, or by ssh and pbs_attach."""
    mpi_args: tuple[str, ...] = ()
    """More options for mpirun."""
    image: str | None = None
    """Run inside this container image on every host."""
    container: str | None = None
    """podman, docker or apptainer; None for what a host has."""
    container_args: tuple[str, ...] = ()
    """More options for it."""

    # Environment and code
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables for every rank; they win over everything."""
    sync: bool = False
    """Send the working directory to each host and run there."""
    fetch: tuple[str, ...] = ()
    """Paths and globs of files to copy back from there when the ranks have ended."""
    preload: tuple[str, ...] = ()
    """Modules to import once per host, besides torch."""
    zygote: bool = True
    """Fork ranks from a process that has imported torch; False starts each as a fresh interpreter."""
    watch: bool = True
    """Let Muster install its hooks, thread and signal handler in the ranks, to detect hangs and stragglers."""
    check: bool = True
    """Look at the hosts while the job starts."""

    # Network
    master_addr: str | None = None
    """An address of the first host, where ranks meet; None for one that every host was seen to reach."""
    master_port: int | None = None
    """A port there; None for a free one."""
    interface: str | None = None
    """The network interface for gloo and NCCL on every host."""

    # Failures
    restarts: int = 0
    """How often all ranks are started again after a failure."""
    grace: float = 5.0
    """Seconds for ranks to end after Ctrl-C or SIGTERM."""
    hang_after: float = 30.0
    """Seconds without progress after which a hang is reported; 0 for never."""
    on_hang: Literal["report", "kill"] = "report"
    """Whether a hang is only reported, or also ends the job with exit code 124."""
    role: str = "default"
    """ROLE_NAME of every rank."""

    # Output
    quiet: bool = False
    """Print only errors from Muster."""
    only_ranks: frozenset[int] | None = None
    """The ranks whose output is shown; None for all."""
    only_local_ranks: frozenset[int] | None = None
    """The ranks whose output is shown, by their numbers on their hosts."""
    debug: bool = False
    """Show the debug log on the screen too."""
    dashboard: bool = False
    """Serve the dashboard while the job runs, and print its address."""
    dashboard_port: int = 0
    """Its port; 0 for a free one."""
    notify: tuple[str, ...] = ()
    """Shell commands, `desktop` or URLs that get a message when the job ends or hangs."""

    @property
    def command(self) -> str:
        """The script's command line, for people."""
        return " ".join((*(("-m",) if self.kind == "module" else ()), self.target, *self.args))

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, int | float):
                raise UsageError(f"{name} must be a number, got {value!r}", hint=f"leave {name} out")
            if value is not None and not value >= least:
                raise UsageError(f"{name} must be at least {least}, got {value}", hint=f"leave {name} out")
        for name in ("master_port", "dashboard_port"):
            if not 0 <= (getattr(self, name) or 0) < 65536:
                raise UsageError(f"{name} must be a port (1 to 65535), got {getattr(self, name)}", hint="leave it out")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                words = " or ".join(map(repr, allowed))
                raise UsageError(f"{name} must be {words}, got {getattr(self, name)!r}", hint=f"leave {name} out")
        for name in ("args", "ssh", "mpi_args", "container_args", "preload", "fetch", "notify"):
            if isinstance(getattr(self, name), str):
                raise UsageError(f"{name} must be a list, got {getattr(self, name)!r}", hint="write it as [...]")
        for name in ("only_ranks", "only_local_ranks"):
            if not isinstance(getattr(self, name), frozenset | None):
                raise UsageError(f"{name} must be a set of ranks, got {getattr(self, name)!r}", hint="write {0, 1}")
        if self.kind == "function" and self.call is None:
            raise UsageError("a run of a function needs the function", hint="use muster.launch(function)")
        if self.on_hang == "kill" and not (self.watch and self.hang_after):
            raise UsageError("on_hang=kill has no effect: hangs are not watched for", hint="leave one of them out")


_LEAST = {
    "nproc": 1,
    "lab": 1,
    "restarts": 0,
    "grace": 0,
    "hang_after": 0,
    "master_port": 1,
    "dashboard_port": 0,
}
"""Fields that are numbers, and the least of each."""

_CHOICES = {
    "kind": ("script", "module", "function"),
    "pbs_start": ("tm", "ssh"),
    "on_hang": ("report", "kill"),
}
