"""`muster ps` removes the socket of a job that has died, and nothing else, whatever the job directory says."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept_jobs import keep, state_of

from muster.cli import main
from muster.jobs import location

DEAD = "20261115-080000-train-dddd"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # sockets need short paths
        monkeypatch.setenv("XDG_STATE_HOME", folder)
        yield keep(state_of(DEAD, controller_birth="00000000-1"))


@pytest.fixture
def short_base(job: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = job.parent.parent / "sockets"
    base.mkdir()
    monkeypatch.setattr("muster.home.short_folder", lambda: base)
    return base


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def test_a_socket_that_nobody_holds_is_removed(job: Path, short_base: Path) -> None:
    bind(job / "socket")
    main(["ps"])
    assert not (job / "socket").exists()
    bind(short_base / "far")
    (job / "socket-at").write_text(str(short_base / "far"))
    main(["ps"])
    assert not (short_base / "far").exists()
    assert not (job / "socket-at").exists()


def test_a_file_in_the_place_of_a_socket_is_kept(job: Path, short_base: Path) -> None:
    (job / "socket").write_text("precious")
    main(["ps"])
    assert (job / "socket").read_text() == "precious"
    (job / "socket").unlink()
    (short_base / "file").write_text("precious")
    (job / "socket-at").write_text(str(short_base / "file"))
    main(["ps"])
    assert (short_base / "file").read_text() == "precious"


def test_a_socket_behind_a_link_in_tmp_is_kept(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, link = job.parent.parent / "agent", job.parent.parent / "link"
    elsewhere.mkdir()
    link.symlink_to(elsewhere)  # in /tmp, another user could have created it
    bind(elsewhere / "s")
    monkeypatch.setattr("muster.home.short_folder", lambda: link)
    (job / "socket-at").write_text(str(link / "s"))
    main(["ps"])
    assert (elsewhere / "s").exists()


def test_a_socket_of_another_user_is_kept(job: Path, short_base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind(short_base / "s")
    (job / "socket-at").write_text(str(short_base / "s"))
    monkeypatch.setattr(location.os, "getuid", lambda: 12345)
    main(["ps"])
    assert (short_base / "s").exists()
