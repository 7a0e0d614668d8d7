"""The process that starts the ranks of this host: started for a job, or kept from the last one if it still fits."""

from __future__ import annotations

from ..rank.preloaded import binds_threads
from ..shared import light_selectors as selectors
from .spawner_client import Spawner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..shared.host_state import FailureFacts
    from ..shared.replies import Prepared
    from ..shared.spawner_messages import ImportFailed, Ready, Stale, Target

_PREPARED: Prepared = {"unsafe": "", "error": "", "module": "", "missing": "", "traceback": ""}
"""The reply if there is no problem."""


class RankStarter:
    """Prepares a spawner, and answers the request for it."""

    def __init__(
        self, selector: selectors.Selector, send: Callable[[Mapping[str, object]], None], read: Callable[[], None]
    ) -> None:
        """`read` is called when the spawner has sent something."""
        self.spawner: Spawner | None = None
        self._selector = selector
        self._send = send
        self._read = read
        self._request: int | None = None
        self._start_zygote: Callable[[], None] = lambda: None
        """Starts the zygote of this job, if the kept one does not fit it."""

    @property
    def is_busy(self) -> bool:
        """Whether a zygote is importing."""
        return self._request is not None

    def prepare(self, target: Target, env: dict[str, str], request: int, *, keep: bool) -> Prepared | None:
        """Get a spawner for a job; with a zygote, the reply is sent after its imports.

        With `keep`, a new zygote can serve another job later.
        """

        def start_zygote() -> None:
            spawner = Spawner()
            spawner.start_zygote(target, env, keep=keep)
            self._use(spawner)

        binding = binds_threads(env)
        if not target["preload"] or binding:
            self.end()
            spawner = Spawner()
            spawner.start_plain(target, env)
            self._use(spawner)
            return {**_PREPARED, "unsafe": f"{binding} binds threads to CPUs" if target["preload"] else ""}
        self._start_zygote = start_zygote
        if self.spawner is not None and self.spawner.can_serve_next and not self.is_busy:
            self.spawner.serve_next(target, env)
        else:  # there is none, or the host is prepared again
            self.end()
            start_zygote()
        self._request = request
        return None

    def _use(self, spawner: Spawner) -> None:
        self.spawner = spawner
        self._selector.register(spawner.socket, selectors.EVENT_READ, self._read)

    def succeed(self, before: RankStarter) -> None:
        """Take over the zygote of the last job, if it can serve another one."""
        spawner = before.spawner
        if spawner is None or not spawner.can_serve_next:
            before.end()
            return
        self._selector.unregister(spawner.socket)
        before.spawner = None
        self._use(spawner)

    def end(self) -> None:
        """End the spawner, if there is one."""
        if self.spawner is not None:
            self._selector.unregister(self.spawner.socket)
            self.spawner.end()
            self.spawner = None

    def on_ready(self, message: Ready) -> None:
        """The imports are done, or were done for an earlier job."""
        self._reply({**_PREPARED, "unsafe": message["unsafe"]})

    def on_stale(self, message: Stale) -> None:
        """The kept zygote does not fit this job."""
        if not self.is_busy:
            return  # it was asked for nothing
        self._send({"t": "new_zygote", "why": message["why"]})
        self.end()
        try:
            self._start_zygote()
        except Exception as error:  # the controller decides what it means for the job
            self._reply({**_PREPARED, "error": f"{type(error).__name__}: {error}"})

    def on_import_failed(self, message: ImportFailed) -> None:
        """A module could not be imported; the zygote then exits, which is not to be reported as its death."""
        if not self.is_busy:
            return  # it was asked for nothing
        self.end()
        self._reply(
            {
                "unsafe": "",
                "module": message["module"],
                "missing": message["missing"],
                "error": message["error"],
                "traceback": message["traceback"],
            }
        )

    def on_gone(self, facts: Callable[[], FailureFacts | None]) -> None:
        """The spawner died; `facts` are the state of the host."""
        if self.spawner is not None:
            self._selector.unregister(self.spawner.socket)
            self.spawner.socket.close()
            self.spawner = None
        if self.is_busy:
            died: Prepared = {**_PREPARED, "error": "the process that imports torch died"}
            known = facts()
            self._reply(died if known is None else {**died, "facts": known})

    def _reply(self, reply: Prepared) -> None:
        if self._request is not None:
            self._send({"re": self._request, **reply})
            self._request = None
