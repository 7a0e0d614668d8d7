"""The ssh engine; it runs the user's own OpenSSH, so its config, agent, jump hosts and ControlMaster all work."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from muster.engines.container.container import Container, container_of, explain_container_failure
from muster.engines.engine import PIPED_AGENT, AgentSpec, Choice, Engine, Launch, StartCommand
from muster.engines.local.engine import LocalEngine, is_this_machine, local_command
from muster.engines.ssh.lab_hint import lab_hint
from muster.errors import HostError, MusterError
from muster.hosts import Host
from muster.plan import labels
from muster.spec import RunSpec

CONNECT_TIMEOUT = 10
"""Seconds ssh tries to connect to a host."""

_RECONNECT_TIMEOUT = 4
"""The same for a host that was connected; there is a new attempt every second."""

_OPTIONS = (
    "-T",  # no terminal: the channel is binary-clean
    "-oBatchMode=yes",  # a password prompt would wait forever
    f"-oConnectTimeout={CONNECT_TIMEOUT}",
    "-oClearAllForwardings=yes",  # a LocalForward in the user's config would fail on the second host
    "-oEscapeChar=none",
    # If this process is killed and the host has no power, nothing else ends ssh before TCP gives up, 15 minutes later.
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
    # A separate connection that ends with this job; as the master of other sessions it would end them as well.
    # An existing master connection is still used.
    "-oControlMaster=no",
    "-oRemoteCommand=none",  # a RemoteCommand in the user's config would conflict with ours
    "-oPermitLocalCommand=no",
)

# $0 is the code, the arguments are the interpreters to try. Enclosed in single quotes, which all login shells (sh,
# bash, zsh, csh, fish) interpret the same way.
_FIRST_PYTHON = (
    'for p in "$@"; do command -v "$p" >/dev/null 2>&1 && exec "$p" -c "$0"; done; '
    'echo "muster: tried $*" >&2; exit 127'
)


_HERE = LocalEngine()

_SSH_ITSELF = 255
"""The exit code of ssh if ssh itself fails, not the remote command."""


class SshEngine(Engine):
    """One login per host; for this machine, a child process as with `local`."""

    name = "ssh"
    takes_lab = True

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """One child process per host, whose stdin and stdout are the channel."""
        box = container_of(spec, folder)
        under = self.wrapper(choice)
        commands: list[StartCommand] = []
        for host, name in zip(choice.hosts, labels(choice.hosts), strict=True):
            python = spec.python_on(host)
            if self.is_here(host, choice.hosts) and not spec.lab:
                commands.append(local_command(host, name, python=python, box=box))
            else:
                commands.append(ssh_command(host, name, python=python, ssh=spec.ssh, under=under, box=box))
        return Launch(engine=self, commands=tuple(commands), channel="pipes")

    def is_here(self, host: Host, hosts: Sequence[Host]) -> bool:
        """Whether one of these hosts is this machine, so that ssh is not needed."""
        return is_this_machine(host)

    def wrapper(self, choice: Choice) -> str:
        """A program on the hosts, quoted for their shell, that wraps the agent's command."""
        return ""

    def login(self, command: StartCommand) -> tuple[str, ...]:
        """The ssh command, or nothing for this machine."""
        host = command.agents[0].host
        port = ("-p", str(host.port)) if host.port else ()
        return ("ssh", *port, host.destination) if command.remote else ()

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        """Explain the exit code and output of ssh or of the command it ran."""
        if command.box is not None and code != _SSH_ITSELF:
            return explain_container_failure(command.agents[0].name, command.box, code, text)
        if not command.remote:
            return _HERE.explain(command, code, text)
        return explain_ssh_failure(command.agents[0].host, code, text)

    def program_hint(self, command: StartCommand) -> str:
        """The hint for a missing ssh, or for a missing Python on this machine."""
        return "install the OpenSSH client" if command.remote else _HERE.program_hint(command)


def ssh_command(
    host: Host,
    name: str = "",
    *,
    python: str | None = None,
    ssh: Sequence[str] = ("ssh",),
    under: str = "",
    box: Container | None = None,
) -> StartCommand:
    """The command that logs in and starts the agent; the remote command line names only the interpreter.

    `under` is a program on the host, quoted for its shell, that runs the command that follows it.
    """
    start = _start(python) if box is None else shlex.join(box.run((python or "python3", "-c", PIPED_AGENT)))
    # In turn over a master connection of the user, which may need no password, and without one, which may hang.
    outside = _exec(under, _start(python if box is None else None))
    again = tuple(
        (*login_argv(host, ssh=(*ssh, *way), connect_timeout=_RECONNECT_TIMEOUT), outside)
        for way in ((), ("-oControlPath=none",))
    )
    return StartCommand(
        argv=(*login_argv(host, ssh=ssh), _exec(under, start)),
        agents=(AgentSpec(host=host, name=name or host.name),),
        box=box,
        bridges=again,
    )


def _start(python: str | None) -> str:
    """What starts PIPED_AGENT on a host: a given Python, or the first one that is found."""
    if python is not None:
        return f"{_quote_path(python)} -c '{PIPED_AGENT}'"
    # Try the same path first: on a shared file system it is the user's environment. Then python3.
    return f"sh -c '{_FIRST_PYTHON}' '{PIPED_AGENT}' {shlex.quote(sys.executable)} python3 python"


def _exec(under: str, start: str) -> str:
    return f"exec {under} {start}" if under else f"exec {start}"


def login_argv(host: Host, *, ssh: Sequence[str] = ("ssh",), connect_timeout: int = CONNECT_TIMEOUT) -> tuple[str, ...]:
    """The command that logs in to a host without prompts and runs what follows it there."""
    port = () if host.port is None else ("-p", str(host.port))
    # ssh uses the first value that it gets for an option.
    limit = () if connect_timeout == CONNECT_TIMEOUT else (f"-oConnectTimeout={connect_timeout}",)
    return (*ssh, *limit, *_OPTIONS, *port, host.destination)


def _quote_path(path: str) -> str:
    """Quote a path for the remote shell, except for a leading `~/`."""
    return "~/" + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def explain_ssh_failure(host: Host, code: int | None, stderr: str) -> HostError:
    """Turn ssh's exit code and error output into an error with a hint.

    Exit code 255 comes from ssh itself; any other comes from the shell or Python on the host.
    """
    text = stderr.strip()
    last = text.splitlines()[-1].strip() if text else ""
    login = f"ssh {f'-p {host.port} ' if host.port else ''}{host.destination}"
    if code == _SSH_ITSELF:
        facts = {
            "login": login,
            "last": last,
            "entry": host.name if host.port in (None, 22) else f"'[{host.name}]:{host.port}'",
            "written": replace(host, slots=None, gpus=None),
        }
        for sign, kind, message, hint in _SSH_FAILURES:
            if sign in text:
                in_lab = lab_hint(host.name) if kind == "unknown-name" else None
                hint = in_lab or hint.format_map(facts)
                return HostError(host.name, message.format_map(facts), hint=hint, kind=kind)
    elif last.startswith("muster: Python"):
        return HostError(host.name, last.removeprefix("muster: "), hint="choose another with `--python PATH`")
    elif code in (126, 127):
        said = last.removeprefix("muster: ") or f"exit code {code}"
        return HostError(host.name, f"could not start Python ({said})", hint="choose one with `--python PATH`")
    how = "ssh did not start the agent" if code is None else f"ssh exited with code {code} before the agent started"
    return HostError(host.name, f"{how}: {last}" if last else how, hint=_TRY.format(login=login))


_TRY = "check that `{login} true` works from here"

_SSH_FAILURES = (
    # Order matters: the output for a changed key ends with the message for an unknown key.
    (
        "Could not resolve hostname",
        "unknown-name",
        "ssh could not resolve this host name",
        "check the spelling, or add a `Host` entry to ~/.ssh/config",
    ),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "changed-key",
        "its host key has changed since you accepted it; the host was reinstalled, or this is a different machine",
        "if you expected this, run `ssh-keygen -R {entry}`, then `{login}` and compare the new key",
    ),
    (
        "Host key verification failed",
        "unknown-key",
        "you have not accepted its host key yet",
        "run `muster setup ssh -H {written}`, which shows the key to compare",
    ),
    (
        "Permission denied",
        "denied",
        "ssh login denied ({last})",
        "install your key there with `muster setup ssh -H {written}`",
    ),
    ("Connection refused", "closed", "no ssh server is listening (connection refused)", _TRY),
    ("timed out", "dead", f"no answer within {CONNECT_TIMEOUT} s", _TRY),
    ("No route to host", "dead", "no route to this host", _TRY),
    ("Network is unreachable", "dead", "the network is unreachable", _TRY),
)
"""What ssh prints, the kind of failure, the error message, and the hint."""
