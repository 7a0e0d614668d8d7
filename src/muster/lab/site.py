"""What the hosts of all kinds of labs have in common."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from muster.lab import keys
from muster.lab.node import Node
from muster.lab.system_programs import SYSTEM_PATH, find

SWITCH_SCRIPT = Path(__file__).with_name("switch.sh")

HostNode = TypeVar("HostNode", bound=Node)


def script_argv(title: str) -> list[str]:
    """The command line of bash for the script in the environment variable SCRIPT, kept short for `ps`."""
    return [find("bash"), "-c", 'eval "$SCRIPT"', title]


class Site(Generic[HostNode]):
    """The hosts of one lab and its switch, the first process to start and the last to end, which also cleans up."""

    process_type: type[subprocess.Popen[Any]] = subprocess.Popen[Any]
    """The Popen class for what `enter_argv` starts."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.addresses = addresses
        self.hosts: dict[str, HostNode] = {}
        self.folder = Path()
        """Keys, configuration and logs of the lab; removed when its owner is gone."""
        self._login = pwd.getpwuid(os.getuid())
        self._switch: Node | None = None

    def _start_switch(self, prefix: Sequence[str] = (), *, address: str = "") -> None:
        """Start the switch with the command `prefix`; without an `address` it only cleans up."""
        env = {"PATH": SYSTEM_PATH, "ADDRESS": address, "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
        env["SCRIPT"] = SWITCH_SCRIPT.read_text()
        self._switch = Node("the switch", [*prefix, *script_argv("muster lab switch")], env=env, errors=None)
        self.folder = Path(self._switch.expect("ready", time.monotonic() + 20)[0])

    def _write_keys(self, port: int = keys.SSH_PORT) -> None:
        """Create the keys, and the configuration with which the owner's ssh reaches the hosts."""
        folder = self.folder / "ssh"
        keys.make_keys(folder)
        host_key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(keys.known_hosts(self.addresses, host_key, port))
        self.ssh_config.write_text(self._client_config(folder, port))

    def _client_config(self, folder: Path, port: int = keys.SSH_PORT) -> str:
        """The configuration of an ssh that finds its keys in `folder`."""
        return keys.client_config(self.addresses, folder, user=self._login.pw_name, port=port)

    @property
    def ssh_config(self) -> Path:
        """The configuration with which the owner's ssh reaches the hosts."""
        return self.folder / "ssh_config"

    def running(self, name: str) -> bool:
        """Whether a host is up."""
        return name in self.hosts and self.hosts[name].alive

    def init(self, name: str) -> int:
        """The process whose end ends a running host, with its pid outside the host."""
        return self.hosts[name].init

    def kill(self, name: str) -> None:
        """End a host and everything in it, if it is running."""
        if host := self.hosts.pop(name, None):
            host.terminate()
            host.end()

    def close(self) -> None:
        """End all hosts, then let the switch remove the directory and the control groups."""
        for host in self.hosts.values():
            host.terminate()
        for host in self.hosts.values():
            host.end()
        self.hosts.clear()
        if self._switch:
            self._switch.end()
            self._switch = None
