from __future__ import annotations

from muster.lab import keys

ENDPOINTS = {"h1": keys.Endpoint(address="10.77.0.1"), "h2": keys.Endpoint(address="127.0.0.3", port=2222)}


def test_known_hosts_hold_each_host_under_name_address_and_port() -> None:
    lines = keys.known_hosts(ENDPOINTS, "ssh-ed25519 AAAA comment\n").splitlines()
    assert lines == [
        "h1,[10.77.0.1]:22,10.77.0.1 ssh-ed25519 AAAA comment",
        "h2,[127.0.0.3]:2222,127.0.0.3 ssh-ed25519 AAAA comment",
    ]


def test_the_client_configuration_maps_each_name_to_its_address() -> None:
    text = keys.client_config(ENDPOINTS, user="me", key="/a folder/key", known_hosts="/a folder/known")
    assert "Host h2\n  HostName 127.0.0.3\n  Port 2222\n" in text
    assert '  IdentityFile "/a folder/key"\n' in text
    assert "  User me\n" in text


def test_etc_hosts_answers_reverse_look_ups_of_mapped_addresses() -> None:
    lines = keys.etc_hosts(ENDPOINTS).splitlines()
    assert lines.index("10.77.0.1 h1") < lines.index("::ffff:10.77.0.1 h1")
