"""The port where the ranks meet, on the host of rank 0: found, held and released for each attempt."""

from __future__ import annotations

from ..shared import light_selectors as selectors
from .connectivity import BACKLOG, Listener, free_port, own_addresses, port_in_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from ..shared import replies, requests
    from .local_ranks import LocalRanks


class MasterPort:
    """Answers connection tests of the other hosts, and holds the port for the store or for rank 0."""

    def __init__(self, selector: selectors.Selector, ranks: LocalRanks) -> None:
        self._selector = selector
        self._ranks = ranks
        self._listener: Listener | None = None
        self._held: socket.socket | None = None
        self._is_waiting = False
        """Whether the store is started when somebody needs it."""
        ranks.on_torch = self.begin_store

    def listen(self, message: requests.Listen, number: int) -> replies.Listening:
        """Open a port for connection tests by the other hosts; on the host of rank 0 it becomes the master port."""
        self.release()
        try:
            self._listener = Listener(message["port"], message["nonce"])
        except OSError as error:
            return {**port_in_use(error, message["port"]), "own_name": []}
        self._selector.register(self._listener.socket, selectors.EVENT_READ, self._listener.answer)
        return {"problem": "", "owner": None, "port": self._listener.port, "own_name": own_addresses()}

    def release(self) -> None:
        """Give up the port and the store of an earlier attempt, before the hosts of the next one meet."""
        self._wait_no_longer()
        if self._ranks.spawner is not None:
            self._ranks.spawner.end_store()
        self.stop_answering()  # the last meeting was not completed
        if self._held is not None:
            self._held.close()
            self._held = None

    def stop_answering(self, whom: str = "") -> socket.socket | None:
        """Close the port for connection tests, unless it is reserved for the job's `store` or for `rank 0`."""
        listener, self._listener = self._listener, None
        if listener is None:
            return None
        self._selector.unregister(listener.socket)
        return listener.keep(whom)

    def hold(self, message: requests.Hold, number: int) -> replies.Held:
        """Stop answering connections, and reserve the port for the job's `store` or for `rank 0`."""
        self._held = self.stop_answering(message["whom"]) or self._held
        return {"port": self._held.getsockname()[1] if self._held is not None else 0}

    def another(self, message: requests.AnotherPort, number: int) -> replies.Port:
        """Reserve a new port for the next attempt; a port chosen by the user stays reserved."""
        self._wait_no_longer()
        if self._ranks.spawner is not None:
            self._ranks.spawner.end_store()
        if self._held is not None:
            if message["port"]:
                return {"problem": "", "owner": None, "port": message["port"]}
            self._held.close()
        try:
            self._held = free_port(message["port"])
        except OSError as error:
            return port_in_use(error, message["port"])
        return {"problem": "", "owner": None, "port": self._held.getsockname()[1]}

    def start_store(self) -> None:
        """Serve the job's store at the port; without a zygote, only once it is needed.

        That is when a rank of this host imports torch, or when somebody connects. A store in a fresh interpreter takes
        0.3 s of CPU.
        """
        self._wait_no_longer()
        if self._held is not None and self._ranks.spawner is not None:
            self._held.listen(BACKLOG)
            if self._ranks.spawner.is_plain:
                self._is_waiting = True
                self._selector.register(self._held, selectors.EVENT_READ, self.begin_store)
            else:
                self._ranks.spawner.start_store(self._held)

    def begin_store(self) -> None:
        """Start the store, unless it has been started."""
        if self._wait_no_longer() and self._held is not None and self._ranks.spawner is not None:
            self._ranks.spawner.start_store(self._held)

    def _wait_no_longer(self) -> bool:
        """Stop watching the port; returns whether it was watched."""
        was_waiting, self._is_waiting = self._is_waiting, False
        if was_waiting and self._held is not None:
            self._selector.unregister(self._held)
        return was_waiting
