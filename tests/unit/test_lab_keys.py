from __future__ import annotations

from pathlib import Path

from muster.lab import keys

ADDRESSES = {"h1": "10.77.0.1", "h2": "127.0.0.3"}


def test_known_hosts_hold_each_host_under_name_address_and_port() -> None:
    lines = keys.known_hosts(ADDRESSES, "ssh-ed25519 AAAA comment\n", 2222).splitlines()
    assert lines == [
        "h1,[10.77.0.1]:2222,10.77.0.1 ssh-ed25519 AAAA comment",
        "h2,[127.0.0.3]:2222,127.0.0.3 ssh-ed25519 AAAA comment",
    ]


def test_the_client_configuration_maps_each_name_to_its_address() -> None:
    text = keys.client_config(ADDRESSES, Path("/a folder"), user="me", port=2222)
    assert "Host h2\n  HostName 127.0.0.3\n  Port 2222\n" in text
    assert '  IdentityFile "/a folder/id_ed25519"\n' in text
    assert "  User me\n" in text


def test_etc_hosts_answers_reverse_look_ups_of_mapped_addresses() -> None:
    lines = keys.etc_hosts(ADDRESSES).splitlines()
    assert lines.index("10.77.0.1 h1") < lines.index("::ffff:10.77.0.1 h1")
