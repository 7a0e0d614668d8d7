"""The part of the module `selectors` that agents need: importing that module takes 3 ms of CPU on each host."""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    class _Socket(Protocol):
        def fileno(self) -> int: ...


EVENT_READ = 1  # EPOLLIN
EVENT_WRITE = 4  # EPOLLOUT; numbers, because a controller may import this on macOS


class SelectorKey:
    """A watched descriptor, and what to call when it is ready."""

    def __init__(self, fd: int, data: Callable[[], Any]) -> None:
        self.fd = fd
        self.data = data


class Selector:
    """Watches descriptors with epoll, with the methods of `selectors.DefaultSelector`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, SelectorKey] = {}

    def register(self, file: int | _Socket, events: int, data: Callable[[], Any]) -> None:
        """Watch a descriptor; raises KeyError if it is watched already."""
        fd = _number(file)
        if fd in self._keys:
            raise KeyError(f"descriptor {fd} is already registered")
        self._epoll.register(fd, events)
        self._keys[fd] = SelectorKey(fd, data)

    def modify(self, file: int | _Socket, events: int, data: Callable[[], Any]) -> None:
        """Watch a descriptor for other events."""
        fd = _number(file)
        self._epoll.modify(fd, events)
        self._keys[fd] = SelectorKey(fd, data)

    def unregister(self, file: int | _Socket) -> None:
        """Watch a descriptor no longer; raises KeyError if it is not watched."""
        fd = _number(file)
        del self._keys[fd]
        try:
            self._epoll.unregister(fd)
        except OSError:
            pass  # it has been closed

    def select(self, timeout: float) -> list[tuple[SelectorKey, int]]:
        """Wait for at most `timeout` seconds; returns what is ready, and the events."""
        ready = self._epoll.poll(timeout, max(len(self._keys), 1))
        return [(self._keys[fd], events) for fd, events in ready if fd in self._keys]

    def close(self) -> None:
        """Watch nothing any more."""
        self._epoll.close()
        self._keys.clear()

    def get_map(self) -> Mapping[int, SelectorKey]:
        """What is watched, by descriptor."""
        return self._keys


def _number(file: int | _Socket) -> int:
    return file if isinstance(file, int) else file.fileno()
