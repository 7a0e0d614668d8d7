"""Output of kubectl that is not what was requested."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.engines.kubernetes.pods import find_pods
from muster.errors import MusterError


@pytest.mark.parametrize("output", ["Warning: use another version", "[" * 100_000])
def test_output_of_kubectl_that_is_not_json_is_one_sentence(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "kubectl"
    (tmp_path / "output").write_text(output)
    program.write_text(f"#!/bin/sh\nexec cat {tmp_path}/output\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(MusterError, match="is not JSON"):
        find_pods("app=train", (), "default", None)
