"""The local engine: the agent is a child process."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

from muster.engines.container.container import Container, container_of, explain_container_failure
from muster.engines.engine import PIPED_AGENT, AgentSpec, Choice, Engine, Launch, StartCommand, this_host
from muster.errors import HostError, MusterError, UsageError
from muster.hosts import Host
from muster.plan import labels
from muster.spec import RunSpec


class LocalEngine(Engine):
    """Runs ranks on this machine, in a container if an image is given."""

    name = "local"

    def choose(self, spec: RunSpec, env: Mapping[str, str]) -> Choice:
        """Choose this machine, which the user may also give with -H."""
        hosts = spec.hosts or (this_host(),)
        for host in hosts if spec.hosts else ():
            if not is_this_machine(host):
                raise UsageError(f"--engine local: {host.name} is not this machine", hint="omit --engine to use ssh")
        if len(hosts) > 1:
            raise UsageError("--engine local: -H names several hosts", hint="omit --engine to use ssh")
        return Choice(engine=self, hosts=hosts)

    def launch(self, choice: Choice, spec: RunSpec, folder: str) -> Launch:
        """One child process, whose stdin and stdout are the channel."""
        box = container_of(spec, folder)
        named = zip(choice.hosts, labels(choice.hosts), strict=True)
        commands = tuple(local_command(host, name, python=spec.python_on(host), box=box) for host, name in named)
        return Launch(engine=self, commands=commands, channel="pipes")

    def explain(self, command: StartCommand, code: int | None, text: str) -> MusterError:
        """Explain why the agent did not start."""
        host = command.agents[0].name
        if command.box is not None:
            return explain_container_failure(host, command.box, code, text)
        last = text.splitlines()[-1:] or [f"exit code {code}"]
        return HostError(host, f"the agent did not start: {last[0]}", hint=self.program_hint(command))

    def program_hint(self, command: StartCommand) -> str:
        """The hint for a missing Python."""
        return "choose a Python with `--python PATH`"


def local_command(
    host: Host, name: str = "", *, python: str | None = None, box: Container | None = None
) -> StartCommand:
    """The command that starts the agent with Muster's own interpreter, the one given by --python, or the image's."""
    if sys.platform != "linux":
        raise UsageError(
            f"ranks run on Linux only, and this machine runs {sys.platform}",
            hint="give Linux hosts: `muster run -H box train.py`",
        )
    bare = box is None
    agent = (python or (sys.executable if bare else "python3"), "-c", PIPED_AGENT)
    return StartCommand(
        argv=box.run(agent) if box is not None else agent,
        agents=(AgentSpec(host=host, name=name or host.name, inherits=bare, here=bare),),
        remote=False,
        box=box,
    )


def is_this_machine(host: Host) -> bool:
    """Whether a host given by the user is this machine, so that ssh is not needed.

    A host with a user or a port is always reached by ssh.
    """
    if host.user or host.port:
        return False
    own = socket.gethostname()
    return host.name in ("localhost", "127.0.0.1", "::1", own, own.partition(".")[0])
