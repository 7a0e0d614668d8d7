"""The page of the reference about the protocol: its tables come from the message classes."""

from __future__ import annotations

from collections.abc import Mapping

from muster.controller.events import HostChange
from muster.jobs import job_messages
from muster.jobs.job_messages import JOB_ANSWERS, JOB_REQUESTS
from muster.shared import wire
from muster.shared.events import EVENTS, HELLO
from muster.shared.protocol import annotations_of, kinds_of
from muster.shared.replies import REPLIES, Refused
from muster.shared.reports import PASSED_ON, REPORTS
from muster.shared.requests import REQUESTS
from muster.shared.spawner_messages import NEWS, ORDERS

_ENVELOPE = ("t", "do", "protocol", "muster")
"""Fields that the page describes once, not for every message."""


def tables() -> dict[str, dict[str, type]]:
    """Every message of the protocol, by the part of the page that lists it."""
    return {
        "requests": REQUESTS,
        "replies": {**REPLIES, "refused": Refused},
        "events": {kind: message for kind, message in EVENTS.items() if kind not in PASSED_ON},
        "reports": REPORTS,
        "hello": HELLO,
        "orders": ORDERS,
        "news": NEWS,
        "local": kinds_of(HostChange),
        "job_requests": JOB_REQUESTS,
        "job_answers": JOB_ANSWERS,
    }


def protocol_page() -> str:
    """The whole page."""
    return PAGE.format(
        version=wire.VERSION,
        job_version=job_messages.VERSION,
        heartbeat=wire.HEARTBEAT,
        lease=wire.LEASE,
        last_grace=wire.LAST_GRACE,
        **{name: _table(messages) for name, messages in tables().items()},
    )


def _table(messages: Mapping[str, type]) -> str:
    rows = [
        f"| `{kind}` | {_fields(message)} | {' '.join((message.__doc__ or '').split())} |"
        for kind, message in messages.items()
    ]
    return "\n".join(["| message | fields | meaning |", "|---|---|---|", *rows])


def _fields(message: type) -> str:
    found: list[str] = []
    for name, annotation in annotations_of(message).items():
        if name not in _ENVELOPE or (message in HELLO.values() and name == "protocol"):
            required = not annotation.startswith("NotRequired[")
            found.append(f"`{name}`" if required else f"`{name}` (optional)")
    return ", ".join(found) or "none"


PAGE = """\
# Protocol

How the processes of a job talk to each other. You need this page to work on Muster, not to use it. Every message is a
class in `src/muster/shared`, and this page is generated from those classes.

- **Controller and agent** talk over stdin and stdout of ssh or of a child process, or over a TLS connection that the
  agent opens (`requests.py`, `replies.py`, `events.py`).
- **Agent and spawner** talk over a SOCK_SEQPACKET socket pair; the descriptors of a rank are attached to the request to
  start it (`spawner_messages.py`).
- **A rank** reports to its agent over a socket pair; the agent asks by writing one byte (`reports.py`).
- **Other commands** (`muster ps`, `top`, `attach`, `stop`) ask the controller over the unix socket of the job, which
  only its user can open (`jobs/job_messages.py`).

## Framing

One JSON object per line, each way; between agent and spawner one object per packet. The agent's first bytes are a
greeting, `\\x1emuster-agent VERSION\\x1e`. The controller skips what a shell profile printed before it. Bytes of a
rank's output that are not UTF-8 travel as lone surrogates and come out as the same bytes.

A request carries its name in `do` and a number in `id`; the reply carries that number in `re`. Every other message
carries its name in `t`.

## Validation

Every message is checked on arrival: its name must be known, every required field must be there and have the right JSON
type. Fields that the receiver does not know are ignored.

- A host whose agent sends an invalid message is lost; the error names the host, the message and the field.
- An agent answers an invalid request with `refused`, and the request fails with that sentence.
- An agent ignores an invalid report of a rank and says so once, because a script may write to any descriptor.

## Versions

The protocol between controller, agents and ranks has version {version}. The greeting, the event `up` and the `hello` of
an agent that dials back carry it. The controller sends the agent's code, so versions normally match; where they do not,
the host cannot be used, and the error names both versions.

The protocol of the job socket has version {job_version}, since another Muster may ask a running job. Every request
carries this version in `protocol` and Muster's own in `muster`; a request without them is version 1. The job answers a
request of another version with an error that names both.

A version is raised when a message or a field is removed or changes its meaning. A new message or an optional field does
not raise it.

## Limits

| limit | seconds |
|---|---|
| the controller pings each agent every | {heartbeat:g} |
| without a sign of life, an agent ends its ranks and the controller gives the host up after | {lease:g} |
| ranks have at most this grace once host or controller is lost | {last_grace:g} |

## Controller to agent: requests

{requests}

## Agent to controller: replies

Listed by the name of the request. `ping` is answered by the event `pong`, and `bye` is not answered.

{replies}

## Agent to controller: events

{events}

The controller adds one event of its own about a connection:

{local}

An agent that dials back first says who it is:

{hello}

## Rank to agent: reports

The rank adds the `time`, the agent the number of the `rank`. `sampling`, `answer`, `marked` and `moved` are for the
agent; all others it passes on to the controller as events.

{reports}

## Agent to spawner

{orders}

## Spawner to agent

{news}

## Job socket: requests

{job_requests}

## Job socket: answers

`state` is answered with the state of the job, the same JSON as in `state.json` of its directory. Followers get `line`
after `line`, and `end` last. These messages carry no name; they differ in their fields.

{job_answers}
"""
