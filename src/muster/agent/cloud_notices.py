"""Asks the metadata service of AWS, Google Cloud or Azure whether this virtual machine is about to be taken away.

Nothing that the service says is trusted: another program may answer at its address.
"""

from __future__ import annotations

import http.client
import json
import time
from datetime import datetime, timezone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ADDRESS = "169.254.169.254"
"""The link-local address of the metadata service in all three clouds."""

PORT = 80

_TIMEOUT = 2.0
"""Seconds for each answer; the service runs on the same machine."""

_LARGEST = 1 << 16
"""Bytes of the largest answer that is read."""

_TOKEN_LIFE = 21600
"""Seconds for which a token of AWS is requested; the most that it allows."""


class CloudError(Exception):
    """The metadata service does not answer, or not as documented; the text says how."""


class Aws:
    """A spot instance of EC2 that is about to be interrupted: announced two minutes ahead.

    A rebalance recommendation is not a notice: it only says that an interruption has become more likely.
    """

    patience = 10.0
    """Seconds of errors in a row before they are reported."""

    def __init__(self) -> None:
        self._token = ""

    def poll(self) -> tuple[float, str] | None:
        """The seconds left and who announced it; None if there is no notice."""
        path = "/latest/meta-data/spot/instance-action"
        status, body, _ = self._get(path)
        if status == 404:
            return None
        if status != 200:
            raise CloudError(f"{_url(path)} answered with HTTP status {status}")
        action = _json(path, body)
        try:
            left = _seconds_until(action["time"])
            return left, f"AWS will {_word(action['action'])} this spot instance"
        except (LookupError, TypeError, ValueError):
            raise CloudError(f"{_url(path)} sent an invalid answer: {_start(body)}") from None

    def _get(self, path: str) -> tuple[int, bytes, Mapping[str, str]]:
        """Ask with a token (IMDSv2); get a new one when the old one has expired."""
        self._token = self._token or self._new_token()
        answer = _ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if answer[0] != 401:
            return answer
        self._token = self._new_token()
        return _ask("GET", path, {"X-aws-ec2-metadata-token": self._token})

    def _new_token(self) -> str:
        path = "/latest/api/token"
        status, body, _ = _ask("PUT", path, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFE)})
        token = body.decode("latin-1").strip()
        if status != 200 or not token.isascii() or not token.isprintable() or not 0 < len(token) < 1000:
            raise CloudError(f"{_url(path)} gave no token (HTTP status {status})")
        return token


class Gcp:
    """A preemptible or spot instance of Compute Engine (30 s), or one that host maintenance will terminate (60 s)."""

    patience = 10.0
    """Seconds of errors in a row before they are reported."""

    def poll(self) -> tuple[float, str] | None:
        """The seconds left and who announced it; None if there is no notice."""
        if self._value("preempted") == "TRUE":
            return 30.0, "Google Cloud is preempting this instance"
        if self._value("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE":
            return 60.0, "Google Cloud will terminate this instance for host maintenance"
        return None

    def _value(self, name: str) -> str:
        path = f"/computeMetadata/v1/instance/{name}"
        status, body, headers = _ask("GET", path, {"Metadata-Flavor": "Google"})
        if status != 200 or headers.get("Metadata-Flavor") != "Google":
            raise CloudError(f"{_url(path)} does not answer as Google Cloud does (HTTP status {status})")
        return body.decode("latin-1").strip()


class Azure:
    """A virtual machine of Azure with a scheduled event that ends its processes."""

    patience = 150.0
    """Seconds of errors in a row before they are reported: Azure needs two minutes for the first answer."""

    _ENDING: Mapping[str, str] = {
        "Preempt": "evict this spot virtual machine",
        "Terminate": "delete this virtual machine",
        "Redeploy": "move this virtual machine to another node",
        "Reboot": "reboot this virtual machine",
    }
    """The types of events after which no process is left; `Freeze` pauses for some seconds only."""

    def __init__(self) -> None:
        self._name = ""

    def poll(self) -> tuple[float, str] | None:
        """The seconds left and who announced it; None if there is no notice."""
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        body = self._get(path)
        document = _json(path, body)
        try:
            ending = [event for event in document["Events"] if event["EventType"] in self._ENDING]
            if not ending:
                return None
            name = self._own_name().casefold()
            # The events of all machines of a scale set or availability set are listed.
            own = [event for event in ending if name in (str(each).casefold() for each in event["Resources"])]
            found = [(_seconds_until(event["NotBefore"]), event["EventType"]) for event in own]
        except (LookupError, TypeError, ValueError):
            raise CloudError(f"{_url(path)} sent an invalid answer: {_start(body)}") from None
        if not found:
            return None
        left, kind = min(found)
        return left, f"Azure will {self._ENDING[kind]}"

    def _own_name(self) -> str:
        if not self._name:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            name = self._get(path).decode("utf-8", "replace").strip()
            if not name:
                raise CloudError(f"{_url(path)} sent an empty name")
            self._name = name
        return self._name

    def _get(self, path: str) -> bytes:
        status, body, _ = _ask("GET", path, {"Metadata": "true"})
        if status != 200:
            raise CloudError(f"{_url(path)} answered with HTTP status {status}")
        return body


CLOUDS: Mapping[str, type[Aws | Gcp | Azure]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}
"""The ready-made sources of notices, by the name that --notice accepts."""


def _ask(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes, Mapping[str, str]]:
    """Status, body and headers of an answer; never through a proxy."""
    connection = http.client.HTTPConnection(ADDRESS, PORT, timeout=_TIMEOUT)
    try:
        connection.request(method, path, headers=dict(headers))
        response = connection.getresponse()
        body = response.read(_LARGEST + 1)
        if len(body) > _LARGEST:
            raise CloudError(f"{_url(path)} sent more than {_LARGEST >> 10} KB")
        return response.status, body, dict(response.headers)
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CloudError(f"{_url(path)} does not answer: {why}") from None
    finally:
        connection.close()


def _json(path: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise CloudError(f"{_url(path)} sent an invalid answer: {_start(body)}") from None


def _seconds_until(moment: str) -> float:
    """Seconds from now to a time as AWS or Azure writes it; an empty one has come; ValueError if it is neither."""
    if not moment:
        return 0.0
    if moment[:1].isdigit():
        then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    else:
        then = datetime.strptime(moment, "%a, %d %b %Y %H:%M:%S GMT")
    if then.tzinfo is None:
        then = then.replace(tzinfo=timezone.utc)
    return then.timestamp() - time.time()


def _word(text: object) -> str:
    if not (isinstance(text, str) and text.isalpha() and text.isascii() and len(text) < 30):
        raise ValueError(text)
    return text


def _url(path: str) -> str:
    return f"http://{ADDRESS}{path.partition('?')[0]}"


def _start(body: bytes) -> str:
    return ascii(body[:60].decode("latin-1"))
