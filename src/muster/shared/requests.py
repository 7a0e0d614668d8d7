"""What the controller asks of an agent: one class for the fields of each request; `do` and `id` come on top."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal, TypedDict
else:
    from .protocol import TypedDict


class Session(TypedDict):
    """Sent with the agent: its lease in seconds, and the name and secret by which its session is resumed."""

    lease: float
    name: str
    """Also the name of the socket on which such an agent listens; empty if a closed connection is the end."""
    secret: str
    boxed: bool
    """Whether a container program is between ssh and the agent, or Kubernetes, so that only its input closes."""
    wait: float
    """Seconds that such an agent waits for another connection; its lease may be shorter."""


class Ping(TypedDict):
    """Prove that the job is still wanted, and ask for the host's clock: answered by the event `pong`.

    It has the number of lines `got` from the agent, and by the controller's monotonic clock the time now and the time
    at which it last heard the agent.
    """

    sent: float
    got: int
    clock: float
    heard: float


class Renew(TypedDict):
    """Forget the last job, whose ranks have ended, and serve the one with this id; none for now if it is empty."""

    job: str
    lease: float
    environ: Mapping[str, str] | None
    """The environment of the controller, for an agent that inherits it; None: as before."""
    stdin: bool
    """Whether the stdin of the ranks was sent over the connection as a descriptor."""


class Memory(TypedDict):
    """Ask how much memory the agent and its zygote use."""


class Resume(TypedDict):
    """The answer to a challenge: our nonce, the proof that we know the secret, and the number of lines we got."""

    nonce: str
    proof: str
    got: int


class Compare(TypedDict):
    """Ask whether the working directory, the script with fingerprint `digest`, and the modules `imports` are there."""

    cwd: str
    script: str | None
    digest: Sequence[int] | None
    imports: Sequence[str]


class _Piece(TypedDict):
    """One base64 piece of something long."""

    piece: str
    last: bool


class UnpackCode(_Piece):
    """Send a base64 piece of the working directory's archive; the agent unpacks it after the `last` one."""


class Probe(TypedDict):
    """One probe of `muster check`: the check that asks, `module.function` in `agent/probes`, and its time limit."""

    name: str
    probe: str
    limit: float


class Question(TypedDict):
    """What every probe is given: about the job, with `env` and `cwd` for the child process that it runs in."""

    env: dict[str, str]
    cwd: str
    script: str
    code: list[str]
    """Files below `cwd` that the hosts should have as the controller does."""
    master: str | None
    """The address that the user chose for rank 0."""
    paths: list[str]
    """Files and directories that the job reads."""
    peers: dict[str, list[str]]
    """The addresses of the other hosts."""


class RunProbes(TypedDict):
    """Run probes in child processes; `ask` is what each is given."""

    probes: Sequence[Probe]
    ask: Question


class Listen(TypedDict):
    """Listen on `port` (0: any free one) and answer every caller with `nonce`."""

    port: int
    nonce: str


class DialTarget(TypedDict):
    """An address of another host, and the nonce with which its agent answers."""

    host: str
    address: str
    port: int
    nonce: str


class Dial(TypedDict):
    """Try to reach addresses of other hosts, all at once."""

    targets: Sequence[DialTarget]


class Hold(TypedDict):
    """Stop answering callers, and hold the port for the job's `store` or for `rank 0`; empty: release it."""

    whom: str


class AnotherPort(TypedDict):
    """Hold a new port for the next attempt; `port` is the user's choice, or 0."""

    port: int


class Prepare(TypedDict):
    """Start the process that starts the ranks; it imports `preload` first, if that names modules."""

    env: Mapping[str, str]
    cwd: str
    preload: Sequence[str]
    kind: str
    target: str
    args: Sequence[str]
    path: Sequence[Sequence[str]]
    grace: float
    keep: bool
    """Whether what it has imported may serve a later job."""


class SendCall(_Piece):
    """Send a base64 piece of the pickled function that the ranks run."""


class RankStart(TypedDict):
    """One rank to start, with its own environment variables."""

    rank: int
    env: Mapping[str, str]


class Start(TypedDict):
    """Start this host's ranks of a new attempt; `leader` reports for the host, `fed` is the rank that gets stdin."""

    ranks: Sequence[RankStart]
    leader: bool
    store: bool
    fed: int | None


class SendSignal(TypedDict):
    """Send a signal to all ranks of this host."""

    number: int


class WatchNotices(TypedDict):
    """Report when this host is about to go away: after SIGTERM if `sigterm`, and when `command` says so."""

    command: str
    sigterm: bool


class Deadline(TypedDict):
    """Keep the deadline for the ranks, in seconds since 1970 by the host's clock; send them `signal` unless it is 0."""

    time: float
    signal: int


class TakeStacks(TypedDict):
    """Find out where every rank is; with `deep`, including stack traces and the last collectives."""

    deep: bool


class Examine(TypedDict):
    """Watch ranks from outside for some seconds: CPU, disk, neighbors, send queues, GPUs."""

    ranks: Sequence[int]
    seconds: float


class Stop(TypedDict):
    """End all ranks and their children: SIGINT first if `interrupt`, SIGTERM, and SIGKILL after `grace` seconds."""

    grace: float
    interrupt: bool


class SendStdin(_Piece):
    """Send a base64 piece of stdin for the rank that is `fed`."""


class ReadResults(TypedDict):
    """Look for files below the directory of --sync by paths or globs (`find`), or read files found so (`send`)."""

    what: Literal["find", "send"]
    names: Sequence[str]


class MoreResults(TypedDict):
    """Ask for the next part of what `read_results` finds or reads."""


class Bye(TypedDict):
    """End the agent: the job is over, or the host is given up."""

    code: int
    """The exit code of the job."""


RESUMING: dict[str, type] = {"resume": Resume}
"""The request that precedes the others on a connection that resumes a session."""

REQUESTS: dict[str, type] = {
    "session": Session,
    "ping": Ping,
    "renew": Renew,
    "memory": Memory,
    "compare": Compare,
    "unpack": UnpackCode,
    "probe": RunProbes,
    "listen": Listen,
    "dial": Dial,
    "hold": Hold,
    "another_port": AnotherPort,
    "prepare": Prepare,
    "call": SendCall,
    "start": Start,
    "signal": SendSignal,
    "notices": WatchNotices,
    "deadline": Deadline,
    "stacks": TakeStacks,
    "examine": Examine,
    "stop": Stop,
    "stdin": SendStdin,
    "read_results": ReadResults,
    "more_results": MoreResults,
    "bye": Bye,
}
"""Every request by its name, the value of `do`."""
