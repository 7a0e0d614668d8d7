"""The certificates of agents that dial back: real TLS over a socket pair, with the strict checks of newer Pythons."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from muster.controller.links.certificate import authority_of, make_server_context
from muster.controller.links.dial_order import token_of

SECRET = "0123456789abcdef" * 4


def greeting(server: ssl.SSLContext, authority: str) -> bytes:
    """What a client that requires this authority receives from the server."""
    ours, theirs = socket.socketpair()
    client = ssl.create_default_context(cadata=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as secure:
                secure.sendall(b"hello")
        except OSError:
            theirs.close()  # the client has refused the certificate

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname="muster") as secure:
            return secure.recv(5)
    finally:
        ours.close()
        thread.join(20)


def test_a_client_accepts_the_server_of_its_job():
    server, authority = make_server_context()
    assert greeting(server, authority) == b"hello"


def test_a_client_that_knows_the_secret_accepts_a_server_it_has_never_seen():
    server, _ = make_server_context(SECRET)
    assert greeting(server, authority_of(SECRET)) == b"hello"


@pytest.mark.parametrize("other", [SECRET[::-1], SECRET + "0"])
def test_a_server_with_another_secret_is_refused(other: str):
    server, _ = make_server_context(other)
    with pytest.raises(ssl.SSLCertVerificationError):
        greeting(server, authority_of(SECRET))


def test_a_server_without_the_secret_is_refused():
    server, _ = make_server_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        greeting(server, authority_of(SECRET))


def test_the_token_does_not_contain_the_secret_and_differs_with_it():
    assert token_of(SECRET) == token_of(SECRET) != token_of(SECRET[::-1])
    assert SECRET[:16] not in token_of(SECRET)


def test_a_secret_of_any_bytes_is_usable():
    secret = b"\xff\xfe".decode(errors="surrogateescape") * 16  # as os.environ has it
    assert greeting(make_server_context(secret)[0], authority_of(secret))
