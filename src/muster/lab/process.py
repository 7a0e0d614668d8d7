"""A process inside a host, held from outside."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any


class HostProcess(subprocess.Popen[Any]):
    """A Popen whose signals go to the command inside the host, not to the nsenter that waits for it.

    Killing nsenter would leave the command running; and when that ended, the machine's pid 1 would have to
    take note of it before the host could die, which some are slow to do.
    """

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command, or to nsenter when it has not started the command yet."""
        self.poll()
        if self.returncode is not None:
            return
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            os.kill(int(children[0]), sig)
        except (OSError, IndexError):
            super().send_signal(sig)
