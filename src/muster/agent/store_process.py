"""The process on the first host that serves the job's store, in which ranks meet; it outlives every rank.

As under torchrun, all ranks including rank 0 are clients, so a rank that starts late or before rank 0 can connect.
"""

from __future__ import annotations

import os
import sys

from ..rank import process_title
from ..shared import light_signal as signal
from ..shared import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn


NO_TORCH = 3
"""Exit code if torch is not installed, in which case no script needs a store."""


def main(config: Mapping[str, int]) -> NoReturn:
    """Serve the store in a fresh interpreter, if there is no zygote."""
    keep(config["socket"])


def keep(listener: int) -> NoReturn:
    """Serve a listening socket as torch's TCPStore until this process is killed."""
    errors = os.dup(2)
    try:
        # Suppress torch's warnings about clients without a host name and about each one that disconnects.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        process_title.set_title(["muster store"])
        # Schedulers signal every process of a job, but ranks need the store until they exit: only SIGKILL ends it.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        port = _port_of(listener)
        server = _tcp_store()(
            "127.0.0.1", port, None, True, wait_for_workers=False, multi_tenant=False, master_listen_fd=listener
        )
        while server:
            signal.pause()
    except ImportError:
        os._exit(NO_TORCH)
    except BaseException as error:
        os.write(errors, f"muster: could not open the store: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)


def _port_of(listener: int) -> int:
    import socket

    with socket.socket(fileno=os.dup(listener)) as copy:
        return copy.getsockname()[1]


def _tcp_store() -> Any:
    """torch's TCPStore, loaded without torch's Python modules if possible: 0.3 s of CPU instead of 1.1 s."""
    if "torch" not in sys.modules:
        try:
            return _without_python()
        except Exception:  # other versions of torch need more modules
            for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
                del sys.modules[name]
    from torch.distributed import TCPStore  # type: ignore[import-not-found,unused-ignore]

    return TCPStore


def _without_python() -> Any:
    from importlib.util import find_spec
    from types import ModuleType

    spec = find_spec("torch")
    if spec is None:
        raise ModuleNotFoundError("torch")
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    torch.__path__ = list(spec.submodule_search_locations or ())
    torch.__dict__["distributed"] = distributed
    sys.modules.update({"torch": torch, "torch.distributed": distributed})
    c: Any = __import__("torch._C", fromlist=["_c10d_init"])
    c._c10d_init()
    return __import__("torch._C._distributed_c10d", fromlist=["TCPStore"]).TCPStore


def start(listener: int, env: Mapping[str, str], *, fork: bool) -> NoReturn:
    """Serve the store in this fork of the spawner, or exec a fresh interpreter if forking is not safe."""
    from ..shared import bootstrap

    processes.default_signals()
    if fork:
        keep(listener)
    os.set_inheritable(listener, True)
    code = processes.file_with(bootstrap.payload(bootstrap.own_package(), "agent.store_process", {"socket": listener}))
    os.dup2(code, 0)
    argv = [sys.executable, "-c", bootstrap.COMMAND, *process_title.room_for([])]
    os.execve(sys.executable, argv, env)
