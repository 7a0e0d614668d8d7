"""The agent's main loop: handles requests of the controller and sends events of this host."""

from __future__ import annotations

import os
import resource
import time

from ..rank.kept_errors import traceback_of
from ..shared import bootstrap, machine, processes
from ..shared import light_selectors as selectors
from ..shared import light_signal as signal
from ..shared.wire import GREETING, LAST_GRACE, VERSION, ProtocolError, encode
from . import code_sync
from .channel import Pipes, Tls
from .connectivity import Dialing
from .controller_session import ControllerSession, clock, place
from .guard import Guard
from .job_exit import LOST_CONTROLLER, exit_with_job
from .local_ranks import LocalRanks
from .master_port import MasterPort
from .rank_hold import RankHold
from .rank_sessions import RankSessions
from .rank_stdin import inherited
from .usage_reports import UsageReports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn, TypedDict

    from ..shared import replies, requests
    from ..shared.events import Up
    from .check_probes import Probing
    from .notices import Notices
    from .slow_rank_probe import Examination

    class Config(TypedDict):
        """The configuration that is sent with the agent."""

        job: str
        scheduler: str
        attach: Sequence[str]
        """The command that makes the session of a process part of the scheduler's job; its pid follows."""
        orphaned: str
        """A shell command to run at the end if the controller has been lost; empty for none."""
        exits_with_job: bool
        """Whether the agent's exit code is that of the job; otherwise it is 0."""


_SPAWNER_LIMIT = 1.0
"""Seconds to wait for the killed spawner at the end."""


def main(config: Config) -> NoReturn:
    """Serve one controller until it ends the job, goes silent or disconnects; leaves no process behind."""
    dialed = bootstrap.own_channel()
    channel = Pipes(0, 1) if dialed is None else Tls(dialed)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # a stray print must not reach the channel
    os.close(null)
    processes.adopt_orphans()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # three pipes per rank
    agent = Agent(channel, config, soft)
    agent.run()
    if agent.is_orphan and config["orphaned"]:
        os.execv("/bin/sh", ["sh", "-c", config["orphaned"]])
    if config["exits_with_job"]:
        agent.session.hang_up()
        exit_with_job(agent.code, at_once=agent.is_terminated)
    os._exit(0)  # shutting the interpreter down takes 5 ms, and there is nothing left to flush


class Agent:
    """The agent of one job on one host."""

    def __init__(self, channel: Pipes | Tls, config: Config, nofile: int) -> None:
        self._parent = os.getppid()
        self.scheduler: str = config["scheduler"]
        """The batch system whose signals are meant for the ranks; empty if there is none."""
        self.selector = selectors.Selector()
        self.session = ControllerSession(channel, self.selector, self.on_request, self.end)
        self.ending = False
        self.why_ended = ""
        self.code = LOST_CONTROLLER
        """The exit code of the job, once the controller has sent it."""
        self.is_terminated = False
        """Whether SIGTERM came."""
        self.is_orphan = False
        """Whether contact with the controller was lost for good."""
        self._config = config
        self._nofile = nofile
        self._begin_job(config["job"], inherited())

    def _begin_job(self, job: str, stdin: int) -> None:
        """Forget everything about the last job, if there was one."""
        self.job = job
        self.guard = Guard(self.send)
        self.ranks = LocalRanks(self.selector, self.send, self.session.send, self._nofile, self.guard, stdin)
        self.sessions = RankSessions(self._config["attach"], self.guard.note)
        self.ranks.on_started = self.sessions.add
        # PBS signals only the sessions on the first host of a job, in which the controller runs too.
        self.ranks.signals.is_direct = bool(self._config["attach"]) and os.environ.get("PBS_NODENUM") == "0"
        self.hold = RankHold(self.ranks)
        self.dialing = Dialing(self.selector, self.send)
        self.grace = LAST_GRACE
        self.port = MasterPort(self.selector, self.ranks)
        self.unpacking: code_sync.Unpacking | None = None
        self.probing: Probing | None = None
        self.results = code_sync.Results(self.selector, self.session.send, self.job)
        self.examination: Examination | None = None
        self.usage = UsageReports(self.selector, self.send, self.guard)
        self.notices: Notices | None = None
        self.handlers: dict[str, Callable[[Any, int], Mapping[str, object] | None]] = {
            "session": self.do_session,
            "ping": self.do_ping,
            "renew": self.do_renew,
            "memory": self.ranks.memory,
            "compare": self.do_compare,
            "unpack": self.do_unpack,
            "probe": self.do_probe,
            "listen": self.port.listen,
            "dial": self.dialing.begin,
            "hold": self.port.hold,
            "another_port": self.port.another,
            "prepare": self.do_prepare,
            "call": self.ranks.take_call,
            "start": self.do_start,
            "signal": self.do_signal,
            "notices": self.do_notices,
            "deadline": self.ranks.deadline.announce,
            "stacks": self.ranks.look,
            "examine": self.do_examine,
            "stop": self.do_stop,
            "stdin": self.ranks.stdin.take,
            "read_results": self.results.begin,
            "more_results": self.results.more,
            "bye": self.do_bye,
        }
        """The handler of each request, called with its fields and id; returns None if it replies later or never."""

    # --- the loop -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until there is a reason to exit, then end every process of the job."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGHUP, self.on_hangup)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: self.ranks.pass_on(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.selector.register(wake_read, selectors.EVENT_READ, lambda: self.on_wake(wake_read))
        try:
            up: Up = {"t": "up", "protocol": VERSION, "place": place(), **machine.facts()}
            self.session.begin(GREETING, encode(up))
            while not self.ending:
                self.turn()
        except Exception as error:
            error_text = f"{type(error).__name__}: {error}"
            self.send({"t": "failed", "error": error_text, "traceback": traceback_of(error)})
            self.session.flush()
            raise
        finally:
            self.stop_everything()

    def turn(self) -> None:
        """Wait for events, at most until the next timer, and handle them."""
        busy = self.ranks.is_busy or self.dialing.busy or self.sessions.is_busy or self.probing or self.examination
        self.session.flush()
        ready = self.selector.select(0.02 if busy else self.ranks.prompts.patience)
        now = clock()  # for both decisions about the lease: a stop of the agent between them is not silence
        self.hold.follow(self.session.lease, now, is_ending=self.ending)
        for key, _ in ready:
            if self.selector.get_map().get(key.fd) is key:  # an earlier handler of this turn may have closed it
                key.data()
        self.session.step()
        self.ranks.pause(self.session.is_full())
        self.ranks.step()
        self.sessions.step()
        self.dialing.step()
        if self.probing is not None:
            self.probing.step()
            if self.probing.is_over:
                self.probing = None
        self.examine()
        self.usage.step(self.ranks.ranks.values())
        if self.notices is not None:
            self.notices.step()
        if self.session.lease.is_over(now):
            self.is_orphan = True
            self.end(f"no contact with the controller for {self.session.lease.seconds:g} s")

    def examine(self) -> None:
        """Continue an examination of the ranks, if one is running."""
        if self.examination is not None:
            try:
                self.examination.step()
            except Exception as error:
                self.guard.failed("why a rank is slow", error)
                self.examination.give_up()
            if self.examination.is_over:
                self.examination = None

    def end(self, why: str = "") -> None:
        """Leave the loop; `why` is for the debug log if the controller did not request it."""
        self.ending = True
        self.why_ended = self.why_ended or why

    def on_sigterm(self, number: int, frame: object) -> None:
        """Forward a scheduler's SIGTERM, which warns the ranks of a later SIGKILL, or take it as a notice, or exit."""
        self.is_terminated = True
        if self.scheduler and self.ranks.pass_on(number):
            return
        if self.notices is None or not self.notices.on_sigterm():
            self.end("SIGTERM")

    def on_hangup(self, number: int, frame: object) -> None:
        """Exit, because the connection was closed or the parent process died; but a scheduler's SIGHUP is forwarded."""
        is_orphan = os.getppid() != self._parent
        if is_orphan or not (processes.IGNORES_HANGUP or (self.scheduler and self.ranks.pass_on(number))):
            self.end("SIGHUP")

    def stop_everything(self) -> None:
        """End everything: ranks get a short grace period, then all descendants are killed, the spawner last."""
        if self.why_ended:
            self.guard.note(f"the agent exits: {self.why_ended}")
        self.end_helpers()
        # Replacements may start at the end of the lease.
        self.ranks.stop(None, max(0.0, min(self.grace, LAST_GRACE, self.session.lease.end - clock())))
        while self.ranks.stopping is not None:
            self.turn()
        self.session.flush()
        if self.ranks.spawner is not None:
            # The agent's exit means that everything has ended, so neither a dying store nor a zygote may outlive it.
            self.ranks.spawner.end_store()
            processes.end(self.ranks.spawner.pid, _SPAWNER_LIMIT)

    def end_helpers(self) -> None:
        """End what runs beside the ranks."""
        if self.probing is not None:
            self.probing.drop()
        self.results.end()
        if self.notices is not None:
            self.notices.end()
            self.notices = None
        self.usage.end()

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message to the controller."""
        self.session.send(encode(message))

    def on_wake(self, fd: int) -> None:
        """Handle a signal: discard its byte, and reap children that have exited."""
        try:
            os.read(fd, 4096)
        except BlockingIOError:
            pass
        for pid, status, _ in processes.reap():
            self.sessions.on_exit(pid, status)
            if self.unpacking is not None and pid == self.unpacking.child:
                self.send({"re": self.unpacking.request, **self.unpacking.outcome(status)})
                self.unpacking = None

    def on_request(self, message: Any) -> None:
        """Handle one request, or refuse it if it violates the protocol."""
        from ..shared.protocol import validate  # here, so that it does not delay the first message
        from ..shared.requests import REQUESTS

        try:
            number = message["id"]
        except (LookupError, TypeError):
            number = None
        if type(number) is not int:
            raise ProtocolError(f"a request has no id: {ascii(message)[:60]}")
        try:
            validate(message, REQUESTS, "do")
        except ProtocolError as error:
            self.send({"re": number, "refused": str(error)})
            return
        try:
            reply = self.handlers[message["do"]](message, number)
        except ProtocolError:
            raise
        except Exception as error:  # the controller decides what a request that failed means for the job
            self.guard.note(f"the request `{message['do']}` failed", traceback_of(error))
            reply = {"refused": f"{type(error).__name__}: {error}"}
        if reply is not None:
            self.send({"re": number, **reply})

    # --- requests -------------------------------------------------------------------------------------------

    def do_session(self, message: requests.Session, number: int) -> None:
        """Learn how long to keep the ranks without contact, and how the controller can connect again."""
        self.session.agree(message)

    def do_ping(self, message: requests.Ping, number: int) -> None:
        """Answer with this host's clock, from which the controller computes the offset."""
        self.session.on_ping(message)
        self.send({"t": "pong", "sent": message["sent"], "time": time.time(), "got": self.session.got})
        self.session.answered()

    def do_renew(self, message: requests.Renew, number: int) -> replies.Renewed:
        """Forget the last job, whose ranks have ended, and get ready for another one, or stay idle."""
        if self.ranks.is_used or self.unpacking is not None:
            raise ProtocolError("the last job is not over")
        self.end_helpers()
        self.dialing.end()
        self.port.release()
        if message["environ"] is not None:
            os.environ.clear()
            os.environ.update(message["environ"])
        self.session.lease.seconds = message["lease"]
        stdin = self.session.given.pop() if message["stdin"] and self.session.given else 0
        before = self.ranks
        self._begin_job(message["job"], stdin)
        self.ranks.succeed(before)
        return {"facts": machine.facts(), "zygote": self.ranks.spawner is not None}

    def do_compare(self, message: requests.Compare, number: int) -> replies.Comparison:
        """Check whether the user's code is on this host."""
        found = code_sync.compare(message["cwd"], message["script"], message["digest"])
        if message["imports"] and found["cwd"]:
            found["missing"] = code_sync.first_missing(message["imports"], message["cwd"], message["script"])
        return found

    def do_unpack(self, message: requests.UnpackCode, number: int) -> replies.Unpacked | None:
        """Receive a piece of the working directory; after the last one, a child unpacks it before the reply is sent."""
        try:
            self.unpacking = self.unpacking or code_sync.Unpacking(self.job)
            self.unpacking.add(message["piece"])
            if message["last"]:
                self.unpacking.finish(number)
                return None
        except OSError as error:
            return {"problem": str(error), "folder": ""}
        return {"problem": "", "folder": ""}

    def do_probe(self, message: requests.RunProbes, number: int) -> None:
        """Run probes on this host; the reply is sent when each has an outcome."""
        from .check_probes import Probing  # here, because not every job needs it

        self.probing = Probing(self.selector, self.send, number, message, self.ranks.nofile)

    def do_prepare(self, message: requests.Prepare, number: int) -> replies.Prepared | None:
        """Start the process that will start the ranks."""
        self.grace = message["grace"]
        reply = self.ranks.prepare(message, number)
        self.guard.note(f"process {self.ranks.spawner and self.ranks.spawner.pid} will start the ranks")
        return reply

    def do_start(self, message: requests.Start, number: int) -> replies.Problem:
        """Start this host's ranks of a new attempt."""
        self.usage.begin(of_host=message["leader"])
        self.port.stop_answering()
        if message["store"]:
            self.port.start_store()
        return self.ranks.start(message)

    def do_signal(self, message: requests.SendSignal, number: int) -> replies.Done:
        """Send a signal to the ranks."""
        self.ranks.signals.signal(message["number"])
        return {}

    def do_notices(self, message: requests.WatchNotices, number: int) -> replies.Done:
        """Watch for notices that this host is about to go away."""
        from .notices import Notices  # here, because most jobs do not need it

        self.notices = Notices(self.selector, self.send, self.ranks, message)
        return {}

    def do_examine(self, message: requests.Examine, number: int) -> replies.Examined | None:
        """Examine the ranks from outside for some time; the reply is sent at the end."""
        from .slow_rank_probe import NOTHING, Examination  # here, because most jobs do not need it

        if self.examination is not None:
            self.examination.give_up()
        ranks = [rank for rank in self.ranks.ranks.values() if rank.number in message["ranks"]]
        try:
            self.examination = Examination(self.send, number, ranks, message["seconds"], self.usage.gpus)
        except Exception as error:
            self.guard.failed("why a rank is slow", error)
            return NOTHING
        return None

    def do_stop(self, message: requests.Stop, number: int) -> None:
        """End all ranks and what they started."""
        self.usage.end()
        self.ranks.stop(number, message["grace"], interrupt=message["interrupt"])

    def do_bye(self, message: requests.Bye, number: int) -> None:
        """The job is over."""
        self.code = message["code"]
        self.end()
