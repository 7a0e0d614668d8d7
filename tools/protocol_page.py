"""The reference page of the protocol, with tables generated from the message classes."""

from __future__ import annotations

from collections.abc import Mapping

from muster.controller.events import HostChange
from muster.controller.keep.messages import FROM_KEEPER, FROM_RUN
from muster.jobs import job_messages
from muster.jobs.job_messages import JOB_ANSWERS, JOB_REQUESTS
from muster.shared import wire
from muster.shared.events import EVENTS, HELLO, RESUMED
from muster.shared.protocol import annotations_of, kinds_of
from muster.shared.replies import REPLIES, Refused
from muster.shared.reports import PASSED_ON, REPORTS
from muster.shared.requests import REQUESTS, RESUMING
from muster.shared.spawner_messages import NEWS, ORDERS
from muster.spec import LEASE_ALONE

_ENVELOPE = ("t", "do", "protocol", "muster")
"""Fields that the page describes once rather than for every message."""


def tables() -> dict[str, dict[str, type]]:
    """All messages of the protocol, by section of the page."""
    return {
        "requests": REQUESTS,
        "replies": {**REPLIES, "refused": Refused},
        "events": {kind: message for kind, message in EVENTS.items() if kind not in PASSED_ON},
        "reports": REPORTS,
        "hello": HELLO,
        "resuming": RESUMING,
        "resumed": RESUMED,
        "orders": ORDERS,
        "news": NEWS,
        "local": kinds_of(HostChange),
        "to_keeper": FROM_RUN,
        "from_keeper": FROM_KEEPER,
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
        lease_alone=LEASE_ALONE,
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

How the processes of a job communicate. You need this page to work on Muster, not to use it. Every message is a class in
`src/muster/shared`, and this page is generated from those classes.

- **Controller and agent** use stdin and stdout of ssh or of a child process, or a TLS connection that the agent opens
  (`requests.py`, `replies.py`, `events.py`).
- **Agent and spawner** use a SOCK_SEQPACKET socket pair; the file descriptors of a rank are attached to the request
  that starts it (`spawner_messages.py`).
- **A rank** reports to its agent over a socket pair; the agent requests a report by writing one byte (`reports.py`).
- **A run and the keeper**, which holds the agents that `--keep` leaves for the next run, use a unix socket that only
  their user can open; the pipes of an agent are attached to the message that hands it over
  (`controller/keep/messages.py`).
- **Other commands** (`muster ps`, `top`, `attach`, `stop`) query the controller over the unix socket of the job, which
  only its user can open (`jobs/job_messages.py`).

## Framing

One JSON object per line in each direction; between agent and spawner one object per packet. The agent's first bytes are
a greeting, `\\x1emuster-agent VERSION\\x1e`. The controller skips what a shell profile printed before it. Bytes of a
rank's output that are not UTF-8 are sent as lone surrogates and restored to the same bytes.

A request carries its name in `do` and a number in `id`; the reply carries that number in `re`. Every other message
carries its name in `t`.

## Validation

Every message is checked on arrival: its name must be known, and every required field must be present with the right
JSON type. Unknown fields are ignored.

- A host whose agent sends an invalid message is lost; the error includes the host, the message and the field.
- An agent answers an invalid request with `refused`, and the request fails with that message.
- An agent ignores an invalid report of a rank and logs it once, because a script may write to any file descriptor.

## Versions

The protocol between controller, agents and ranks has version {version}. The greeting, the event `up` and the `hello` of
an agent that dials back carry it. The controller sends the agent's code, so versions normally match; if they do not,
the host is unusable, and the error includes both versions.

The protocol of the job socket has version {job_version}, because another version of Muster may query a running job.
Every request carries this version in `protocol` and Muster's own in `muster`; a request without them is version 1. The
job answers a request of another version with an error that includes both.

The version is incremented when a message or a field is removed or changes its meaning, but not for a new message or an
optional field.

## Limits

| limit | seconds |
|---|---|
| interval of the controller's pings to each agent | {heartbeat:g} |
| time without contact after which a host is lost and its agent has ended its ranks, in a job with spares | {lease:g} |
| the same in other jobs; `--lost-after` changes it | {lease_alone:g} |
| maximum grace period of ranks once the host or controller is lost | {last_grace:g} |

## Controller to agent: requests

{requests}

## Agent to controller: replies

Listed by the name of the request. `ping` is answered by the event `pong`; `session` and `bye` are not answered.

{replies}

## Agent to controller: events

{events}

The controller itself adds one event about a connection:

{local}

An agent that dials back first identifies itself:

{hello}

If a connection breaks, both continue over another one. Each side counts the lines it has received and keeps the lines
it has sent until the other side has them. The agent then sends

{resumed}

and the controller answers a challenge with

{resuming}

## Rank to agent: reports

The rank adds the `time`, the agent the number of the `rank`. `sampling`, `answer`, `marked` and `moved` are for the
agent, which forwards all others to the controller as events.

{reports}

## Agent to spawner

{orders}

## Spawner to agent

{news}

## Run to keeper

{to_keeper}

## Keeper to run

{from_keeper}

## Job socket: requests

{job_requests}

## Job socket: answers

The answer to `state` is the state of the job, the same JSON as in `state.json` of the job directory. Followers get
`line` after `line`, and finally `end`. These messages have no name; their fields identify them.

{job_answers}
"""
