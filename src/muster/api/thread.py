"""Runs a controller in a separate thread, because the caller may have an event loop or not be the main thread."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from muster.controller.attempt import Attempt
from muster.controller.controller import Controller
from muster.controller.diagnosis.verdict import Verdict

_LATER = (signal.SIGTERM, signal.SIGHUP)
"""Signals that would end this process at once: they stop the job first, then this process."""

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are forwarded to the ranks."""


class Running:
    """One job from start to end, as seen by the thread that waits for it."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.timed_out = False
        self._verdict: Verdict | None = None
        self._interruption: BaseException | None = None
        self._failure: BaseException | None = None
        self._caught: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: deque[Callable[[Controller], None]] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="muster-launch")

    def wait(self, timeout: float | None) -> Running:
        """Run the job to its end and return self; exceptions that interrupt the wait are kept for `finish`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._signals():
            self._thread.start()
            while not self._over.is_set():
                try:
                    self._over.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                    if deadline is not None and not self._over.is_set():
                        deadline, self.timed_out = None, True
                        self._ask(lambda controller: controller.stop_with_stacks(f"the timeout of {timeout:g} s"))
                except BaseException as error:  # a signal handler of the caller's raised it: a debugger, a test's limit
                    self._interruption = self._interruption or error
                    self._ask(lambda controller: controller.on_signal(signal.SIGINT))
            self._thread.join()
        return self

    @property
    def verdict(self) -> Verdict:
        """How the job ended."""
        assert self._verdict is not None
        return self._verdict

    @property
    def attempt(self) -> Attempt | None:
        """The last attempt at running the ranks, if there was one."""
        return self.controller.attempt

    def finish(self) -> None:
        """Raise the exception that interrupted the job, or deliver the signal that was to end this process."""
        if self._interruption is not None:
            raise self._interruption
        for number in self._caught:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            signal.raise_signal(number)
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = error
        finally:
            self._over.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._answer)
        self._verdict = await self.controller.run()

    def _ask(self, what: Callable[[Controller], None]) -> None:
        """Call a function with the controller in the controller's thread, as soon as that runs."""
        self._asked.append(what)
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                pass  # it has ended meanwhile

    def _answer(self) -> None:
        while self._asked:
            self._asked.popleft()(self.controller)

    @contextmanager
    def _signals(self) -> Generator[None]:
        """Forward signals to the job while it runs; only the main thread receives any."""
        replaced: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            # Take Ctrl-C from any earlier handler: asyncio.run would only cancel a task, and that task waits here.
            if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
                replaced[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_signal)
            handlers: dict[int, Callable[[int, FrameType | None], None]] = {signal.SIGTSTP: self._on_ctrl_z}
            handlers |= dict.fromkeys(_LATER, self._on_signal)
            handlers |= dict.fromkeys(_PASSED_ON, self._pass_on)
            for number, handler in handlers.items():
                if signal.getsignal(number) == signal.SIG_DFL:
                    replaced[number] = signal.signal(number, handler)
        try:
            yield
        finally:
            for number, handler in replaced.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._caught.append(number)
        self._ask(lambda controller: controller.on_signal(signal.Signals(number)))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._ask(lambda controller: controller.pass_on(signal.Signals(number)))

    def _on_ctrl_z(self, number: int, frame: FrameType | None) -> None:
        self._ask(lambda controller: controller.on_ctrl_z())
