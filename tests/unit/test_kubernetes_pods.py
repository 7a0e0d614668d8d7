"""Pods of a job: which ones are meant, in which order and by which name; the frames of an exec; what kubectl says."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from muster.engines.choice import choose
from muster.engines.kubernetes.kubectl import explain_kubectl
from muster.engines.kubernetes.pod_facts import gpus_requested
from muster.engines.kubernetes.pods import read_named, read_selected
from muster.engines.kubernetes.proxy import within
from muster.engines.kubernetes.websocket import (
    PIECE,
    STATUS,
    STDOUT,
    Messages,
    WebSocketError,
    exit_code,
    frames,
    request,
)
from muster.errors import MusterError, UsageError
from muster.hosts import parse_hosts
from muster.spec import RunSpec


def pod(
    name: str, *, phase: str = "Running", index: str = "", containers: tuple[str, ...] = ("main",), **meta: Any
) -> Any:
    labels = {"batch.kubernetes.io/job-completion-index": index} if index else {}
    return {
        "metadata": {"name": name, "namespace": "ml", "labels": labels, **meta},
        "spec": {"nodeName": "n1", "containers": [{"name": one} for one in containers]},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": one, "state": {"running": {}}} for one in containers],
        },
    }


def test_pods_are_ordered_by_their_numbers_and_finished_ones_left_out() -> None:
    found = [pod("train-10"), pod("train-2"), pod("train-1", phase="Succeeded"), pod("train-3", deletionTimestamp="x")]
    assert [one.name for one in read_selected(found, "app=train", "ml", None)] == ["train-2", "train-10"]


def test_pods_of_an_indexed_job_are_shown_without_their_random_end() -> None:
    found = [pod("w-0-lpnqh", index="0"), pod("w-1-x8x2x", index="1")]
    assert [one.label for one in read_selected(found, "job-name=w", "ml", None)] == ["w-0", "w-1"]
    twice = [pod("w-0-lpnqh", index="0"), pod("w-0-x8x2x", index="0")]
    assert [one.label for one in read_selected(twice, "job-name=w", "ml", None)] == ["w-0-lpnqh", "w-0-x8x2x"]


def test_the_container_is_the_one_that_kubectl_would_choose() -> None:
    annotated = pod("a", containers=("side", "main"), annotations={"kubectl.kubernetes.io/default-container": "main"})
    assert read_named([annotated], ["a"], "ml", None)[0].container == "main"
    assert read_named([pod("a", containers=("x", "y"))], ["a"], "ml", None)[0].container == "x"
    assert read_named([pod("a", containers=("x", "y"))], ["a"], "ml", "y")[0].container == "y"
    with pytest.raises(UsageError, match="-c z: pod a has no such container"):
        read_named([pod("a", containers=("x", "y"))], ["a"], "ml", "z")


def test_pods_that_do_not_exist_are_named() -> None:
    with pytest.raises(MusterError, match="no pod named b in namespace ml"):
        read_named([pod("a")], ["a", "b"], "ml", None)
    with pytest.raises(MusterError, match="no pod matches --pods app=x in namespace ml"):
        read_selected([], "app=x", "ml", None)
    with pytest.raises(MusterError, match="all pods that match --pods app=x have ended"):
        read_selected([pod("a", phase="Succeeded")], "app=x", "ml", None)


def test_a_host_list_may_have_pods() -> None:
    hosts = parse_hosts("pod/train-[0-1]:8,pods/other")
    assert [(host.name, host.pod, host.slots) for host in hosts] == [
        ("train-0", "train-0", 8),
        ("train-1", "train-1", 8),
        ("other", "other", None),
    ]
    assert ",".join(map(str, hosts)) == "pod/train-0:8,pod/train-1:8,pod/other"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"hosts": parse_hosts("pod/a,b")}, "pods and other hosts"),
        ({"namespace": "ml"}, "-n has no effect without pods"),
        ({"pod_container": "main"}, "-c has no effect without pods"),
        ({"pods": "app=x", "engine": "ssh"}, "--engine ssh does not run in pods"),
        ({"pods": "app=x", "lab": 2}, "--lab has no pods"),
        ({"pods": "app=x", "image": "i"}, "--image: pods already run in a container"),
        ({"engine": "kubernetes"}, "--engine kubernetes needs pods"),
    ],
)
def test_options_that_contradict_pods_are_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        choose(RunSpec(target="x.py", **fields), {})


def test_a_silent_pod_is_lost_after_20_s_even_with_spares() -> None:
    assert RunSpec(target="x.py", pods="app=x", spares=1).lease == 20.0
    assert RunSpec(target="x.py", hosts=parse_hosts("a,b"), spares=1).lease == 5.0


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (
            'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource "pods" in API group "" in '
            'the namespace "ml"',
            "Kubernetes denied a request",
            'add this rule to your Role in namespace ml: {apiGroups: [""], resources: ["pods"], verbs: [list]}',
        ),
        (
            'E1118 02:00:00.000000    1 memcache.go:265] "Unhandled Error" err="x"\n'
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
            "kubectl: The connection to the server localhost:8080 was refused",
            "check that the cluster runs",
        ),
        ("error: current-context is not set", "kubectl: current-context is not set", "kubectl config use-context"),
        ("", "kubectl: no message", "kubectl get pods"),
    ],
)
def test_what_kubectl_says_becomes_one_sentence(text: str, what: str, hint: str) -> None:
    error = explain_kubectl(text)
    assert error.message.startswith(what)
    assert hint in (error.hint or "")
    assert "\n" not in error.message


def server_frame(payload: bytes, opcode: int = 2, *, last: bool = True) -> bytes:
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
    return bytes([(0x80 if last else 0) | opcode]) + length + payload


AGREED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


def test_messages_arrive_whole_however_they_are_cut() -> None:
    sent = [b"\x01" + bytes(range(256)) * 3, b"\x02words", b'\x03{"status":"Success"}']
    stream = AGREED + b"".join(map(server_frame, sent)) + server_frame(b"\x01ab", last=False) + server_frame(b"c", 0)
    for step in (1, 2, 7, 4096):
        messages = Messages()
        found = [one for at in range(0, len(stream), step) for one in messages.feed(stream[at : at + step])]
        assert found == [*((one[0], one[1:]) for one in sent), (STDOUT, b"abc")]


def test_pings_are_answered_and_a_close_is_seen() -> None:
    messages = Messages()
    assert list(messages.feed(AGREED + server_frame(b"hi", 9) + server_frame(b"\x03\xe8", 8))) == [
        ("close", b"\x03\xe8")
    ]
    assert messages.replies == b"\x8a\x82\0\0\0\0hi"


def test_a_refusal_keeps_the_reason() -> None:
    messages = Messages()
    body = json.dumps({"kind": "Status", "message": 'pods "x" not found', "code": 404})
    assert list(messages.feed(f"HTTP/1.1 404 Not Found\r\n\r\n{body}".encode())) == []
    assert (messages.status, messages.refusal) == (404, 'pods "x" not found')


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"x" * 70000, AGREED + b"\x82\xff" + b"\xff" * 8])
def test_what_is_not_a_websocket_is_refused(data: bytes) -> None:
    with pytest.raises(WebSocketError):
        list(Messages().feed(data))


def test_stdin_is_sent_in_pieces_and_the_command_is_quoted() -> None:
    data = bytes(PIECE + 1)
    sent = frames(data)
    assert sent.count(b"\x82\xfe") == 1, "a long piece"
    assert sent.endswith(b"\x82\x82\0\0\0\0\0\0"), "and the last byte"
    head = request("ml", "train-0", "main", ("python3", "-c", "a b&c"))
    assert (
        b"/api/v1/namespaces/ml/pods/train-0/exec?command=python3&command=-c&command=a%20b%26c&container=main" in head
    )


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ({"status": "Success"}, 0, ""),
        ({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "137"}]}}, 137, ""),
        ({"status": "Failure", "message": "OCI runtime exec failed"}, None, "OCI runtime exec failed"),
        ("nonsense", None, ""),
    ],
)
def test_the_status_of_an_exec(status: Any, code: int | None, message: str) -> None:
    assert exit_code(json.dumps(status).encode()) == (code, message)
    assert STATUS == 3


def test_a_cancellation_that_coincides_with_an_answer_is_not_lost() -> None:
    async def main() -> None:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def work() -> int:
            return await answer

        waiting = asyncio.ensure_future(within(60, work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answer.set_result(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())


def test_gpus_of_any_vendor_are_counted() -> None:
    limits = {"nvidia.com/gpu": "4", "amd.com/gpu": "2", "nvidia.com/mig-1g.5gb": "1", "memory": "2", "rdma/hca": "1"}
    found = pod("a")
    found["spec"]["containers"][0]["resources"] = {"limits": limits}
    assert gpus_requested(found, "main") == 7
