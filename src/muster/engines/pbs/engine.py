"""PBS: one task of its task manager per host, so that PBS accounts for the agents and ends them with the job."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from muster.agent import dial_back
from muster.engines.container.container import PULL_LIMIT, Container, code_reason
from muster.engines.engine import ORDER_FILE, AgentSpec, Dialed, StartCommand
from muster.errors import HostError, MusterError

SCHEDULER = "PBS"

_STATUS = re.compile(r"task 0x[0-9a-fA-F]+ exit status (\d+)")  # all that pbsdsh tells, and on its stdout
_NO_PROGRAM = 254


def pbs_engine(
    seats: Sequence[AgentSpec],
    lines: Mapping[str, int],
    *,
    pbsdsh: str,
    python: str | None,
    library_path: str | None,
    box: Container | None,
) -> Dialed:
    """One pbsdsh for each host; `lines` are the hosts' first lines in the nodefile, which is how pbsdsh counts.

    A task begins with an empty environment, and a Python of a module may need `library_path` to start at all.
    """
    interpreter = python or (sys.executable if box is None else "python3")
    libraries = ("/usr/bin/env", f"LD_LIBRARY_PATH={library_path}") if library_path and box is None else ()
    summons: list[StartCommand] = []
    for seat in seats:
        agent = (*libraries, interpreter, "-c", dial_back.COMMAND, ORDER_FILE, seat.key)
        task = box.run(agent) if box else agent
        argv = (pbsdsh, "-n", str(lines[seat.host.name]), "--", *task)
        summons.append(StartCommand(argv=argv, seats=(seat,)))
    return Dialed(
        name="pbs",
        summons=tuple(summons),
        seat_from=(),
        explain=lambda summons, code, text: explain_pbsdsh(summons, code, text, box),
        scheduler=SCHEDULER,
        pull_limit=PULL_LIMIT if box else 0.0,
    )


def attached(job_id: str, pbs_attach: str) -> str:
    """What stands before a command given to ssh so that PBS knows it as a part of the job and ends it with it."""
    return f"{shlex.quote(pbs_attach)} -j {shlex.quote(job_id)} -s"


def explain_pbsdsh(summons: StartCommand, code: int | None, text: str, box: Container | None = None) -> MusterError:
    """What pbsdsh's words mean when its agent has not come; what the task itself said is in the job's output."""
    host = summons.seats[0].name
    status = _STATUS.search(text)
    if status is None:
        last = text.splitlines()[-1:] or [f"it ended with code {code}"]
        return HostError(host, f"pbsdsh did not start an agent: {last[0]}", hint="try `--pbs-start ssh`")
    number = int(status[1])
    reason = code_reason(box, number) if box else None
    if reason is not None:
        return HostError(host, reason[0], hint=reason[1])
    python = next((word for word in summons.argv[4:] if word.startswith("/") and word != "/usr/bin/env"), "python3")
    meaning = {
        _NO_PROGRAM: (f"there is no {python}", "name a Python with `--python PATH`"),
        127: ("its shell does not find what it is to start", "its words are in the job's output"),
        dial_back.NO_ORDER: (
            "the job's folder is not to be seen there",
            "set XDG_STATE_HOME to a folder all hosts share, or use `--pbs-start ssh`",
        ),
        dial_back.OLD_PYTHON: (f"{python} is older than Python 3.9", "name another with `--python PATH`"),
        dial_back.NO_WAY: (
            "it cannot reach this host",
            "its words are in the job's output; is there a firewall between?",
        ),
    }
    words, hint = meaning.get(number, (f"the agent ended with code {number}", "its words are in the job's output"))
    return HostError(host, words, hint=hint)
