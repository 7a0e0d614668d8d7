"""The context of kubectl: read once, and used for everything that a job in pods does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from waiting import wait_until

from muster.engines.kubernetes.engine import KubernetesEngine, PodChoice
from muster.spec import RunSpec

_KUBECTL = """\
#!/bin/sh
echo "$*" >> {folder}/asked
case "$1" in
config) [ -f {folder}/context ] && cat {folder}/context ;;
get) cat {folder}/pods.json ;;
proxy) exec sleep 60 ;;
esac
"""
_POD = {
    "metadata": {"name": "train-0", "namespace": "ml"},
    "spec": {"containers": [{"name": "main"}]},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize("context", ["prod", ""])
def test_a_job_in_pods_stays_in_the_context_in_which_it_began(
    context: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(_KUBECTL.format(folder=tmp_path))
    kubectl.chmod(0o700)
    (tmp_path / "pods.json").write_text(json.dumps({"items": [_POD]}))
    if context:
        (tmp_path / "context").write_text(f"{context}\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    engine, spec = KubernetesEngine(), RunSpec(target="train.py", pods="app=train")
    choice = engine.choose(spec, {})
    assert isinstance(choice, PodChoice)

    def asked() -> list[str]:
        return (tmp_path / "asked").read_text().splitlines()

    try:
        wait_until("kubectl proxy", lambda: any(line.startswith("proxy ") for line in asked()))
        (command,) = engine.launch(choice, spec, "").commands
        login = engine.login(command)
    finally:
        asyncio.run(choice.proxy.close())
    assert login is not None
    assert sum(line.startswith("config current-context") for line in asked()) == 1
    others = [line for line in asked() if not line.startswith("config ")]
    for line in (*others, " ".join(command.argv), " ".join(login)):
        assert (f"--context {context}" in line) if context else ("--context" not in line)
    assert command.argv[command.argv.index("train-0") :][:4] == ("train-0", "-c", "main", "--")
