"""`--sync` on a host: nobody else can read the code, and an end in the middle leaves no archive."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.code_sync import Unpacking


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = os.umask(0)  # the worst that a user may have
    (tmp_path / "muster").mkdir(mode=0o755)  # of an older version
    yield tmp_path / "muster"
    assert os.umask(before) == 0, "the agent changed the umask of the ranks"


def archive() -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("secret.py")
        info.size, info.mode = 3, 0o644
        tar.addfile(info, io.BytesIO(b"x=1"))
    return base64.b64encode(buffer.getvalue()).decode()


def test_code_that_arrives_has_no_name_and_only_its_user_can_enter_the_directory(state: Path):
    unpacking = Unpacking("job")
    unpacking.add(archive())
    # What SIGKILL would leave now.
    assert [path for path in state.rglob("*") if not path.is_dir()] == []
    assert {path.stat().st_mode & 0o777 for path in [state, *state.rglob("*")]} == {0o700}
    assert os.fstat(unpacking.archive.fileno()).st_mode & 0o777 == 0o600
    unpacking.finish(1)
    assert os.waitpid(unpacking.child, 0)[1] == 0
    assert (state / "jobs" / "job" / "code" / "secret.py").read_text() == "x=1"
    assert {path.stat().st_mode & 0o777 for path in [state, *state.rglob("*")] if path.is_dir()} == {0o700}
