"""The transport over ssh: the user's own OpenSSH, so its config, agent, jump hosts and ControlMaster all work."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from muster.agent import boot
from muster.errors import HostError
from muster.hosts import Host
from muster.transports.command import Command

CONNECT_TIMEOUT = 10
"""Seconds ssh tries to connect to a host."""

_OPTIONS = (
    "-T",  # no terminal: the channel is binary-clean
    "-oBatchMode=yes",  # a password prompt would wait for ever
    f"-oConnectTimeout={CONNECT_TIMEOUT}",
    "-oClearAllForwardings=yes",  # a LocalForward in the user's config would fail on the second host
    "-oEscapeChar=none",
)

# $0 is the code, the arguments are interpreters to try. Quoted once in single quotes, which every login shell
# (sh, bash, zsh, csh, fish) reads the same way.
_FIRST_PYTHON = (
    'for p in "$@"; do command -v "$p" >/dev/null 2>&1 && exec "$p" -c "$0"; done; '
    'echo "muster: none of these is on this host: $*" >&2; exit 127'
)


def ssh_command(host: Host, *, python: str | None = None, ssh: Sequence[str] = ("ssh",)) -> Command:
    """Log in and start the agent; nothing but the interpreter's name is on the command line."""
    port = () if host.port is None else ("-p", str(host.port))
    if python is not None:
        remote = f"exec {_quote_path(python)} -c '{boot.COMMAND}'"
    else:
        # The same path first: on a shared file system it is the user's environment. python3 otherwise.
        remote = f"exec sh -c '{_FIRST_PYTHON}' '{boot.COMMAND}' {shlex.quote(sys.executable)} python3 python"
    return Command(host=host, argv=(*ssh, *_OPTIONS, *port, host.destination, remote), over_ssh=True)


def _quote_path(path: str) -> str:
    """Quote a path for the remote shell, but let it expand a leading `~/`."""
    return "~/" + shlex.quote(path[2:]) if path.startswith("~/") else shlex.quote(path)


def explain_ssh_failure(host: Host, code: int | None, stderr: str) -> HostError:
    """What ssh's exit code and words mean, and what to type next."""
    name, destination = host.name, host.destination
    text = stderr.strip()
    last = text.splitlines()[-1].strip() if text else ""
    port = f"-p {host.port} " if host.port else ""
    if "Could not resolve hostname" in text:
        return HostError(
            name,
            "ssh does not know this name",
            hint="check the spelling, or add a `Host` entry to ~/.ssh/config",
        )
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in text:
        return HostError(
            name,
            "its host key is not the one you accepted before: the machine was set up anew, or this is another machine",
            hint=f"if you know why, `ssh-keygen -R {name}`, then `ssh {port}{destination}` and compare the new key",
        )
    if "Host key verification failed" in text:
        return HostError(
            name,
            "you have not accepted its host key yet",
            hint=f"type `ssh {port}{destination}` once, compare the key, and answer yes",
        )
    if "Permission denied" in text:
        return HostError(
            name,
            f"ssh was refused ({last})",
            hint=f"put your key there with `ssh-copy-id {port}{destination}`",
        )
    if last.startswith("muster: Python"):
        return HostError(name, last[len("muster: ") :], hint="name another with `--python PATH`")
    if code == 127 or "not found" in text or "No such file" in text:
        return HostError(name, f"there is no such Python ({last})", hint="name one with `--python PATH`")
    for sign, meaning in (
        ("Connection refused", "nothing listens for ssh there (connection refused)"),
        ("timed out", f"no answer within {CONNECT_TIMEOUT} s"),
        ("No route to host", "no route to this host"),
        ("Network is unreachable", "the network is unreachable"),
    ):
        if sign in text:
            return HostError(name, meaning, hint=f"does `ssh {port}{destination} true` work from here?")
    said = f": {last}" if last else ""
    return HostError(
        name,
        f"ssh ended with code {code} before the agent started{said}",
        hint=f"does `ssh {port}{destination} true` work from here?",
    )
