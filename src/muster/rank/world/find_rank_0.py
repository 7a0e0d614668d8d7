"""How ranks find rank 0 if its address and port are not given.

Rank 0 opens its store on a free port. Then it listens on a port derived from the job id, or on one of the next few if
another job uses it, and sends the port of the store to every client, with a proof that it knows the job's key: a
digest of key, address, port and a number that the client has just chosen. The other ranks connect to the hosts where
rank 0 may be, most likely first, until one answers with that proof. So a wrong guess, a second job on the same hosts or
an unrelated program on that port only costs a little time.

The key is random where the launcher passes on something random (Open MPI 4, PMI). The job ids of Slurm are public, so
rank 0 adds a secret that MUNGE seals for processes of the same user. `same_user.py` has the details.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator

from muster.engines.mpi import pmi, pmix
from muster.engines.rank_variables import LOOPBACK
from muster.errors import MusterError
from muster.rank.world import same_user
from muster.rank.world.master_address import Meeting
from muster.rank.world.sockets import leads_here, listen
from muster.rank.world.waiting import wait_for

PORTS = 8
"""Number of ports that rank 0 tries; if the first one is in use, the second is most likely free."""

DIAL_LIMIT = 2.0
"""Timeout of one connection in seconds; the hosts of a job are close to each other."""

WORD_LIMIT = 0.5
"""Timeout in seconds for the first line; rank 0 sends it at once, another program may wait for a request."""

_CLIENTS = 64
"""Maximum number of clients that are answered at once."""

_SEALED_FOR = 60.0
"""Seconds after which a secret is sealed again; MUNGE opens it for 300 s."""

HINT = "check that rank 0 is running, or set MASTER_ADDR=host and MASTER_PORT=29500 on all ranks"


class Answer:
    """Sends the address of rank 0's store to every client, until `close()`."""

    def __init__(self, meeting: Meeting, store_port: int) -> None:
        self._key = meeting.key or secrets.token_hex(16)
        self._port = store_port
        self._secret = secrets.token_hex(16)
        self._sealed, self._sealed_at = "", 0.0
        self._munge = meeting.munge
        self._clients = threading.Semaphore(_CLIENTS)
        self._is_closed = False
        self._seal()
        self._server = _listen_near(meeting.port)
        self._published = meeting.ask == "PMI"
        if self._published:
            hosts = meeting.hosts or own_names()
            pmi.publish(f"{self._key}/{self._server.getsockname()[1]}/{','.join(hosts)}")
        self._thread = threading.Thread(target=self._serve, name="muster-answer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering, because all ranks have joined or the wait is over."""
        self._is_closed = True
        if self._published:
            pmi.withdraw()
        try:
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread; closing alone does not
        except OSError:
            pass
        self._thread.join(DIAL_LIMIT)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # a connection that broke before, or no free descriptor
                continue
            if self._clients.acquire(blocking=False):
                threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()
            else:
                connection.close()  # it tries again

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            with connection:
                nonce, kind = _line(connection, WORD_LIMIT, 100).decode().split()
                sealed = self._seal() if kind == "munge" else ""
                here = (_plain(connection.getsockname()[0]), self._port)
                proof = _proof(self._key, self._secret if sealed else "", nonce, here)
                connection.sendall(f"muster {proof} {self._port} {sealed or '-'}\n".encode())
        except (OSError, ValueError):
            pass  # the client has disconnected, or is another program
        finally:
            self._clients.release()

    def _seal(self) -> str:
        """The secret, sealed for this user; sealed again before that expires."""
        if self._munge and time.monotonic() - self._sealed_at > _SEALED_FOR:
            self._sealed, self._sealed_at = same_user.seal(self._secret), time.monotonic()
        return self._sealed


def _line(connection: socket.socket, limit: float, longest: int) -> bytes:
    """The line of the other side; OSError if it takes longer than `limit`, as that of a stranger may."""
    deadline, data = time.monotonic() + limit, b""
    while not data.endswith(b"\n") and len(data) < longest:
        connection.settimeout(max(0.0, deadline - time.monotonic()))
        piece = connection.recv(longest)
        if not piece:
            break
        data += piece
    return data


def _proof(key: str, secret: str, nonce: str, where: tuple[str, int]) -> str:
    """What only a process at this address can compute that knows the job's key, and the secret if there is one."""
    return hmac.new(f"{key} {secret}".encode(), f"{nonce} {where[0]} {where[1]}".encode(), "sha256").hexdigest()


def _plain(address: str) -> str:
    """An address as both ends write it: an IPv4 address may look like one of IPv6, and one of IPv6 has a scope."""
    return address.removeprefix("::ffff:").partition("%")[0]


def _listen_near(port: int) -> socket.socket:
    ports = _ports(port)
    for candidate in ports:
        try:
            return listen(candidate)
        except MusterError:
            continue
    where = f"ports {ports[0]} to {ports[-1]} of {socket.gethostname()}"
    raise MusterError(f"rank 0 could not announce its address: {where} are all in use", hint=HINT)


def _ports(first: int) -> range:
    return range(first, first + PORTS) if first else range(1)


def own_names() -> tuple[str, ...]:
    """Names under which other hosts may reach this one: mpiexec's name for it, its hostname, its addresses."""
    names = [os.environ.get("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", ""), socket.gethostname()]
    try:
        names += [str(info[4][0]) for info in socket.getaddrinfo(names[1], None, type=socket.SOCK_STREAM)]
    except OSError:
        pass  # this host cannot resolve its own name
    return tuple(dict.fromkeys(name for name in names if name and not name.startswith("127.")))


def address_of_rank_0(meeting: Meeting, store_port: int) -> str:
    """The first candidate address of rank 0 that leads to this host; used by rank 0 itself."""
    names = (*meeting.hosts, *own_names(), LOOPBACK)
    return next((name for name in names if leads_here(name, store_port)), LOOPBACK)


def find_rank_0(meeting: Meeting, *, who: str, limit: float) -> tuple[str, int]:
    """Try to connect until rank 0 of this job answers, and return the address and port of its store."""
    search = _Search(meeting, time.monotonic() + limit, who)
    if not wait_for(search.look, limit, search.what, longest_pause=0.25):
        raise MusterError(f"{search.who} could not find rank 0 within {limit:.0f} s: {search.trouble}", hint=HINT)
    return search.found


class _Search:
    """The search for rank 0, with the outcome of the last attempts."""

    def __init__(self, meeting: Meeting, deadline: float, who: str) -> None:
        self.who, self.trouble = who, "no attempt yet"
        self.found = ("", 0)
        self._meeting, self._deadline = meeting, deadline
        self._width = 1
        self._munge = meeting.munge and bool(same_user.seal("works"))

    def what(self) -> str:
        return f"{self.who} is looking for rank 0: {self.trouble}"

    def look(self) -> bool:
        """Try each candidate host once; each round tries twice as many hosts, so that few are disturbed."""
        place = self._place()
        if place is None:
            return False
        key, ports, hosts = place
        troubles = [""] * min(self._width, len(hosts))
        for i, host in enumerate(hosts[: self._width]):
            for port in ports:
                answer, troubles[i] = _dial(host, port, key, self._deadline, munge=self._munge)
                if answer:
                    self.found = (host, answer)
                    return True
                if troubles[i] not in _SOMEBODY_IS_THERE or time.monotonic() > self._deadline:
                    break
        self._width *= 2
        self.trouble = "; ".join(_problems(hosts, ports, troubles))
        return False

    def _place(self) -> tuple[str, range, tuple[str, ...]] | None:
        meeting = self._meeting
        if meeting.ask == "PMI":
            published = pmi.look_up()
            if published is None:
                self.trouble = "rank 0 has not published its address through mpiexec"
                return None
            key, port, hosts = published.split("/", 2)
            return key, range(int(port), int(port) + 1), tuple(hosts.split(","))
        hosts = meeting.hosts or (pmix.host_of_rank_0(),)
        return meeting.key, _ports(meeting.port), hosts


_REFUSED, _STRANGER = "connection refused", "another program or job answered"
_OTHER_USER = "a process of another user answered"
_NO_PROOF = "a process answered that did not prove (MUNGE) that it belongs to this user"
_SOMEBODY_IS_THERE = (_REFUSED, _STRANGER, _OTHER_USER, _NO_PROOF)


def _dial(host: str, port: int, key: str, deadline: float, *, munge: bool) -> tuple[int, str]:
    """Ask one host and port; return the port of the store, or 0 and the problem."""
    limit = max(0.05, min(DIAL_LIMIT, deadline - time.monotonic()))
    try:
        connection = socket.create_connection((host, port), timeout=limit)
    except ConnectionRefusedError:
        return 0, _REFUSED
    except (OSError, UnicodeError) as error:  # UnicodeError: a name such as `a..b`
        return 0, getattr(error, "strerror", None) or str(error)
    nonce = secrets.token_hex(16)
    try:
        with connection:
            if same_user.is_of_another_user(connection):
                return 0, _OTHER_USER
            connection.settimeout(min(limit, WORD_LIMIT))
            connection.sendall(f"{nonce} {'munge' if munge else 'plain'}\n".encode())
            words = _line(connection, min(limit, WORD_LIMIT), 4096).decode().split()
            address = _plain(connection.getpeername()[0])
    except (OSError, ValueError):
        return 0, _STRANGER
    if len(words) != 4 or words[0] != "muster" or not (words[2].isdecimal() and len(words[2]) < 6):
        return 0, _STRANGER
    secret = same_user.unseal(words[3]) if munge else ""
    if munge and not secret:
        return 0, _NO_PROOF
    if not hmac.compare_digest(_proof(key, secret, nonce, (address, int(words[2]))).encode(), words[1].encode()):
        return 0, _STRANGER
    return int(words[2]), ""


def _problems(hosts: tuple[str, ...], ports: range, troubles: list[str]) -> Iterator[str]:
    """Describe the problem at each of the first few hosts."""
    where = f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]}"
    for host, trouble in list(zip(hosts, troubles, strict=False))[:4]:
        yield f"{host}, {where}: {trouble}"
    if len(troubles) > 4:
        yield f"and {len(troubles) - 4} more hosts"
