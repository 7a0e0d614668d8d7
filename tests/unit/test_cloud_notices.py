"""The metadata services of three clouds: which answers are notices, and that odd ones are only reported."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

import metadata_service
import pytest

from muster.agent import cloud_notices
from muster.agent.cloud_notices import CLOUDS, CloudError

pytestmark = pytest.mark.timeout(60)


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, cloud: str, **answers: Any) -> Iterator[dict[str, Any]]:
    server = metadata_service.serve(cloud, lambda: answers, ("127.0.0.1", 0))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setattr(cloud_notices, "ADDRESS", "127.0.0.1")
    monkeypatch.setattr(cloud_notices, "PORT", server.server_address[1])
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()


def iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def event(kind: str = "Preempt", machine: str = "train_7", seconds: float | None = 30.0) -> dict[str, Any]:
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventStatus": "Scheduled" if seconds is not None else "Started",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [machine],
        "NotBefore": formatdate(time.time() + seconds, usegmt=True) if seconds is not None else "",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


def events(*those: dict[str, Any]) -> dict[str, Any]:
    return {"DocumentIncarnation": 2, "Events": list(those)}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_machine_that_stays_has_no_notice(cloud: str, monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, cloud):
        assert CLOUDS[cloud]().poll() is None


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_a_spot_interruption_of_aws_is_a_notice(action: str, monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "aws", action=json.dumps({"action": action, "time": iso(120)})):
        found = CLOUDS["aws"]().poll()
    assert found is not None
    assert 110 < found[0] <= 120
    assert found[1] == f"AWS will {action} this spot instance"


def test_a_rebalance_recommendation_of_aws_is_no_notice(monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "aws", rebalance=json.dumps({"noticeTime": iso(0)})):
        assert CLOUDS["aws"]().poll() is None


def test_an_expired_token_of_aws_is_renewed(monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "aws") as answers:
        aws = CLOUDS["aws"]()
        assert aws.poll() is None
        answers["token"] = "another"
        assert aws.poll() is None


def test_a_preempted_instance_of_gcp_has_30_seconds(monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "gcp", preempted="TRUE"):
        assert CLOUDS["gcp"]().poll() == (30.0, "Google Cloud is preempting this instance")


def test_host_maintenance_of_gcp_is_a_notice_only_if_it_terminates(monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "gcp", **{"maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}) as answers:
        assert CLOUDS["gcp"]().poll() is None
        answers["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        found = CLOUDS["gcp"]().poll()
    assert found is not None
    assert found[0] == 60.0


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Redeploy", "Reboot"])
def test_a_scheduled_event_of_azure_that_ends_the_machine_is_a_notice(kind: str, monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "azure", events=events(event("Freeze", seconds=1), event(kind, "TRAIN_7"))):
        found = CLOUDS["azure"]().poll()
    assert found is not None
    assert 20 < found[0] <= 30
    assert found[1].startswith("Azure will ")


def test_an_event_of_azure_that_has_started_leaves_no_time(monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "azure", events=events(event(seconds=None))):
        assert CLOUDS["azure"]().poll() == (0.0, "Azure will evict this spot virtual machine")


@pytest.mark.parametrize("other", [event("Freeze"), event(machine="train_70"), event("Something")])
def test_other_events_of_azure_are_no_notices(other: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "azure", events=events(other)):
        assert CLOUDS["azure"]().poll() is None


AWS_ODD = ["", "[]", "{}", '{"action": "terminate"}', '{"action": "a\\u001b[2J", "time": "2017-09-18T08:22:00Z"}']
AWS_ODD += ['{"action": "stop", "time": "soon"}', '{"action": "stop", "time": 3}', "[" * 20000, "x" * 100000]
AZURE_ODD: list[Any] = ["", "[]", "{}", {"Events": 3}, {"Events": [3]}, {"Events": [{"EventType": "Preempt"}]}]
AZURE_ODD += [{"Events": [{**event(), "NotBefore": "soon"}]}, {"Events": [{**event(), "Resources": None}]}]
AZURE_ODD += [{"Events": [{**event(), "EventType": []}]}]


@pytest.mark.parametrize(
    ("cloud", "answers"),
    [
        *(("aws", {"action": odd}) for odd in AWS_ODD),
        *(("azure", {"events": odd}) for odd in AZURE_ODD),
        ("azure", {"name": "", "events": events(event())}),
        ("aws", {"token": "forbidden"}),
        ("aws", {"token": ""}),
    ],
)
def test_an_odd_answer_is_an_error_and_no_notice(cloud: str, answers: Any, monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, cloud, **answers), pytest.raises(CloudError) as caught:
        CLOUDS[cloud]().poll()
    assert str(caught.value).startswith("http://127.0.0.1/")
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_the_service_of_another_cloud_is_not_taken_for_gcp(monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, "azure"), pytest.raises(CloudError, match="does not answer as Google Cloud does"):
        CLOUDS["gcp"]().poll()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_machine_outside_the_cloud_is_an_error(cloud: str, monkeypatch: pytest.MonkeyPatch):
    with serving(monkeypatch, cloud):
        pass
    with pytest.raises(CloudError, match="does not answer: Connection refused"):
        CLOUDS[cloud]().poll()
