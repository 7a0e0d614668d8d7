"""What `muster keep` and `muster ps` ask the keeper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.controller.keep.keeper_socket import Connection, KeeperGone, connect
from muster.controller.keep.messages import FROM_KEEPER, Entry
from muster.errors import MusterError


@dataclass(frozen=True, kw_only=True)
class KeptHost:
    """A host with a kept agent."""

    entry: Entry
    memory: int | None
    """Bytes of its agent and zygote; None if they are in use or did not answer."""


def kept_hosts() -> list[KeptHost]:
    """All hosts that are kept ready for this user on this machine."""
    return _with_keeper(_list)


def end_kept(hosts: Sequence[str]) -> list[KeptHost]:
    """End the kept agents of these hosts, or all; returns them."""

    def end(connection: Connection, entries: list[Entry]) -> list[KeptHost]:
        connection.socket.settimeout(15.0)
        connection.send({"t": "end", "hosts": list(hosts)})
        connection.receive()
        return [KeptHost(entry=entry, memory=None) for entry in entries if not hosts or entry["host"] in hosts]

    return _with_keeper(end)


def _list(connection: Connection, entries: list[Entry]) -> list[KeptHost]:
    connection.send({"t": "measure"})
    sizes: dict[str, int] = connection.receive()["bytes"]
    return [KeptHost(entry=entry, memory=sizes.get(str(entry["id"])) or None) for entry in entries]


def _with_keeper(ask: Callable[[Connection, list[Entry]], list[KeptHost]]) -> list[KeptHost]:
    connection = connect(FROM_KEEPER)
    if connection is None:
        return []
    try:
        entries: list[Entry] = connection.receive()["agents"]
        return ask(connection, entries) if entries else []
    except KeeperGone as error:
        raise MusterError(f"the process that keeps hosts ready does not answer ({error})") from None
    finally:
        connection.close()
