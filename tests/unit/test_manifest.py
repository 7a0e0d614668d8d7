"""The manifest of `muster submit --k8s`: a golden one, the published schemas, and what kubectl merges into it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from muster.cli import main, submit_k8s
from muster.cli.submit_k8s import with_overlay
from muster.engines.kubernetes.manifest import PodRequest, job_object, manifest_text
from muster.engines.kubernetes.yaml_text import yaml_text
from muster.errors import EXIT_MUSTER, UsageError
from muster.submit.batch_units import Memory

GOLDEN = Path(__file__).parents[1] / "golden"

REQUEST = PodRequest(
    typed="muster submit --k8s --nodes 4 --gpus-per-node 8 --image registry.example/train:1 train.py --lr 0.1",
    command=("muster", "run", "train.py", "--lr", "0.1"),
    job_id="20261118-014233-train-3f9a",
    name="train-3f9a",
    image="registry.example/train:1",
    token="0f" * 32,
    nodes=4,
    gpus=8,
)

FULL = replace(
    REQUEST,
    memory=Memory(amount=200, unit="G"),
    seconds=7200,
    grace=90.5,
    replaces_pods=True,
    env={"WANDB_API_KEY": "it's: a #secret", "LEVEL": "on"},
    gpu_resource="amd.com/gpu",
)


def documents(text: str) -> list[Any]:
    """What a YAML reader finds in a manifest."""
    return list(yaml.safe_load_all(text))


def text_of(request: PodRequest, *, jobset: bool = False) -> str:
    return manifest_text(request, job_object(request, jobset=jobset), jobset=jobset)


def test_the_manifest_is_the_golden_one():
    assert text_of(REQUEST) == (GOLDEN / "submit_k8s.yaml").read_text()


@pytest.mark.parametrize("request_", [REQUEST, FULL, replace(REQUEST, nodes=1), replace(FULL, nodes=1)])
@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_the_manifest_is_valid_by_the_schemas_of_kubernetes(request_: PodRequest, version: str):
    found = documents(text_of(request_))
    assert found[-1]["kind"] == "Job"
    for each in found:
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("request_", [REQUEST, FULL])
def test_a_reader_of_yaml_finds_exactly_the_job(request_: PodRequest):
    assert documents(text_of(request_))[-1] == job_object(request_)


def test_the_job_inside_a_jobset_is_valid_and_needs_no_service():
    *others, jobset = documents(text_of(FULL, jobset=True))
    assert [each["kind"] for each in others] == ["Secret"]
    (group,) = jobset["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
    kubernetes_validate.validate(job, "1.33", strict=True)
    env = {each["name"]: each.get("value") for each in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["PET_MASTER_ADDR"] == "train-3f9a-pods-0-0.train-3f9a"


def test_secrets_are_in_the_secret_only():
    secret, _, job = documents(text_of(FULL))
    assert secret["stringData"]["WANDB_API_KEY"] == "it's: a #secret"
    for value in (FULL.token, "it's: a #secret"):
        assert value not in str(job)


def test_one_pod_needs_neither_service_nor_secret():
    (job,) = documents(text_of(replace(REQUEST, nodes=1)))
    assert "PET_NNODES" not in str(job)


def test_a_failed_pod_does_not_delete_the_others_and_shared_memory_is_not_64_mb():
    job = job_object(FULL)["spec"]
    assert job["backoffLimitPerIndex"] == 0
    assert [rule["action"] for rule in job["podFailurePolicy"]["rules"]] == ["FailJob", "Ignore"]
    pod = job["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 91 + 15
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    assert pod["containers"][0]["resources"]["limits"] == {"amd.com/gpu": 8, "memory": "200Gi"}


@pytest.mark.parametrize(("request_", "codes"), [(REQUEST, [119, 125]), (FULL, [125])])
def test_a_pod_that_cannot_reach_the_first_one_ends_a_job_that_needs_all_pods(request_: PodRequest, codes: list[int]):
    rule = job_object(request_)["spec"]["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", codes)


PAGE = Path(__file__).parents[2] / "docs" / "engines" / "kubernetes.md"


@pytest.mark.parametrize("name", ["train.yaml", "role.yaml"])
def test_the_manifests_of_the_documentation_are_valid(name: str):
    found = re.search(rf'```yaml title="{re.escape(name)}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found is not None
    for each in documents(found[1]):
        kubernetes_validate.validate(each, "1.33", strict=True)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_yaml_means_what_was_written(document: dict[str, Any]):
    assert (yaml.safe_load(yaml_text(document, {})) or {}) == document


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="apt-get install kubernetes-client")
class TestOverlay:
    """kubectl merges, without a cluster."""

    def test_lists_are_merged_by_name_and_labels_are_kept(self, tmp_path: Path):
        overlay = tmp_path / "overlay.yaml"
        overlay.write_text(
            "metadata: {labels: {kueue.x-k8s.io/queue-name: team}}\n"
            "spec:\n"
            "  template:\n"
            "    spec:\n"
            "      schedulerName: volcano\n"
            "      containers:\n"
            "      - name: muster\n"
            "        workingDir: /work\n"
            "        volumeMounts: [{name: data, mountPath: /data}]\n"
            "      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n"
        )
        job = with_overlay(job_object(REQUEST), str(overlay))
        pod = job["spec"]["template"]["spec"]
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert pod["schedulerName"] == "volcano"
        assert pod["containers"][0]["command"] == list(REQUEST.command)
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {"shm", "state", "token", "data"}
        assert list(job)[:3] == ["apiVersion", "kind", "metadata"]
        assert list(pod["containers"][0])[:2] == ["name", "image"]
        kubernetes_validate.validate(documents(manifest_text(REQUEST, job))[-1], "1.33", strict=True)

    @pytest.mark.parametrize("text", ["spec: [1, 2\n", "spec: \0", "\udcff"])
    def test_a_file_that_is_no_patch_is_named(self, text: str, tmp_path: Path):
        overlay = tmp_path / "overlay.yaml"
        overlay.write_text(text, errors="surrogateescape")
        with pytest.raises(UsageError, match=r"^--overlay .*overlay\.yaml: kubectl could not merge it"):
            with_overlay(job_object(REQUEST), str(overlay))

    def test_a_missing_file_is_named(self, tmp_path: Path):
        with pytest.raises(UsageError, match=r"could not read it \(no such file or directory\)"):
            with_overlay(job_object(REQUEST), str(tmp_path / "none.yaml"))


def test_a_variable_with_the_name_token_does_not_replace_the_secret_of_the_pods() -> None:
    request = replace(REQUEST, env={"token": "mine"})
    data = next(yaml.safe_load_all(manifest_text(request, job_object(request))))["stringData"]
    assert sorted(data.values()) == [request.token, "mine"]


def test_a_job_that_is_submitted_but_not_recorded_is_one_sentence_with_the_command_that_deletes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def disk_is_full(folder: Path, place: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\nexit 0\n")
    kubectl.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(submit_k8s, "write_place", disk_is_full)
    monkeypatch.chdir(tmp_path)
    assert main(["submit", "--k8s", "-n", "ml", "--image", "i", "train.py"]) == EXIT_MUSTER
    said = capsys.readouterr().err
    (manifest,) = tmp_path.glob("train-*.yaml")
    assert (
        f"submitted jobset {manifest.stem}, but could not record it on this machine (No space left on device)" in said
    )
    assert f"`kubectl delete -n ml -f {manifest.name}`" in said
