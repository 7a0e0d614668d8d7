"""Hosts for machines that do not allow namespaces: an sshd of the user on each of many loopback addresses."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from muster.errors import LabError
from muster.lab import keys, loopback_host
from muster.lab.node import Node
from muster.lab.site import Site
from muster.lab.system_programs import SYSTEM_PATH, find

NETWORK = "127.0.0"


class LoopbackSite(Site[Node]):
    """Hosts that have their own address, sshd and process tree, and share everything else."""

    def __init__(self, names: Sequence[str]) -> None:
        # 127.0.0.1 is the machine itself.
        super().__init__({name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=2)})

    def open(self) -> None:
        """Create the directory and the keys, and find a port that is free on every address."""
        for program in ("ssh", "sshd", "bash"):
            find(program)
        self._start_switch()
        port = _free_port(list(self.addresses.values()))
        self._write_keys(port)
        for name, address in self.addresses.items():
            mark = f"{loopback_host.MARK_NAME}={self._mark(name)}"
            own = f"ListenAddress {address}\nPort {port}\nSetEnv {mark}\n"
            shared = keys.sshd_config(str(self.folder / "ssh"), str(self._file(name, "pid")))
            self._file(name, "sshd_config").write_text(own + shared)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd does not start without it

    def start(self, names: Sequence[str]) -> None:
        """Start the sshd of each host."""
        deadline = time.monotonic() + 20 + len(names)
        script = str(Path(loopback_host.__file__))
        for name in names:
            self._file(name, "pid").unlink(missing_ok=True)
            sshd = [find("sshd"), "-f", str(self._file(name, "sshd_config")), "-E", str(self._file(name, "log"))]
            mark, pid_file = self._mark(name), str(self._file(name, "pid"))
            argv = [sys.executable, "-I", "-S", script, mark, pid_file, *sshd]
            env = {"PATH": SYSTEM_PATH, loopback_host.MARK_NAME: mark}
            self.hosts[name] = Node(name, argv, env=env, errors=self._file(name, "log"))
        for name in names:
            try:
                self.hosts[name].expect("up", deadline)
            except LabError:
                self.kill(name)
                raise

    def pids(self, name: str) -> list[int]:
        """The processes of a host, except the one that holds it."""
        return loopback_host.members(self.init(name), self._mark(name))

    def ssh_argv(self) -> list[str]:
        """Plain ssh: every host is an address of this machine."""
        return [find("ssh"), "-F", str(self.ssh_config)]

    def enter_argv(self, name: str) -> list[str]:
        """The command prefix that sets the host's mark."""
        return ["env", f"{loopback_host.MARK_NAME}={self._mark(name)}"]

    def _mark(self, name: str) -> str:
        return f"{self.folder.name}/{name}"

    def _file(self, name: str, kind: str) -> Path:
        return self.folder / f"{name}.{kind}"


def _free_port(addresses: Sequence[str]) -> int:
    for _ in range(50):
        port = 0
        opened: list[socket.socket] = []
        try:
            for address in addresses:
                opened.append(socket.create_server((address, port)))
                port = opened[0].getsockname()[1]
            return port
        except OSError:
            continue
        finally:
            for server in opened:
                server.close()
    raise LabError(f"no port is free on all of {addresses[0]} to {addresses[-1]}")
