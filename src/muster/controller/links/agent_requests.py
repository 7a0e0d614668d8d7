"""The types of the requests to an agent and of their replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from muster.shared import replies, requests


class AgentRequests(ABC):
    """The typed request interface of a link."""

    @overload
    async def request(
        self, do: Literal["renew"], *, limit: float, **fields: Unpack[requests.Renew]
    ) -> replies.Renewed: ...
    @overload
    async def request(
        self, do: Literal["memory"], *, limit: float, **fields: Unpack[requests.Memory]
    ) -> replies.MemoryUse: ...
    @overload
    async def request(
        self, do: Literal["compare"], *, limit: float, **fields: Unpack[requests.Compare]
    ) -> replies.Comparison: ...
    @overload
    async def request(
        self, do: Literal["unpack"], *, limit: float, **fields: Unpack[requests.UnpackCode]
    ) -> replies.Unpacked: ...
    @overload
    async def request(
        self, do: Literal["probe"], *, limit: float, **fields: Unpack[requests.RunProbes]
    ) -> replies.ProbeAnswers: ...
    @overload
    async def request(
        self, do: Literal["listen"], *, limit: float, **fields: Unpack[requests.Listen]
    ) -> replies.Listening: ...
    @overload
    async def request(
        self, do: Literal["dial"], *, limit: float, **fields: Unpack[requests.Dial]
    ) -> replies.DialResults: ...
    @overload
    async def request(self, do: Literal["hold"], *, limit: float, **fields: Unpack[requests.Hold]) -> replies.Held: ...
    @overload
    async def request(
        self, do: Literal["another_port"], *, limit: float, **fields: Unpack[requests.AnotherPort]
    ) -> replies.Port: ...
    @overload
    async def request(
        self, do: Literal["prepare"], *, limit: float, **fields: Unpack[requests.Prepare]
    ) -> replies.Prepared: ...
    @overload
    async def request(
        self, do: Literal["call"], *, limit: float, **fields: Unpack[requests.SendCall]
    ) -> replies.Problem: ...
    @overload
    async def request(
        self, do: Literal["start"], *, limit: float, **fields: Unpack[requests.Start]
    ) -> replies.Problem: ...
    @overload
    async def request(
        self, do: Literal["signal"], *, limit: float, **fields: Unpack[requests.SendSignal]
    ) -> replies.Done: ...
    @overload
    async def request(
        self, do: Literal["notices"], *, limit: float, **fields: Unpack[requests.WatchNotices]
    ) -> replies.Done: ...
    @overload
    async def request(
        self, do: Literal["deadline"], *, limit: float, **fields: Unpack[requests.Deadline]
    ) -> replies.Warned: ...
    @overload
    async def request(
        self, do: Literal["stacks"], *, limit: float, **fields: Unpack[requests.TakeStacks]
    ) -> replies.Stacks: ...
    @overload
    async def request(
        self, do: Literal["examine"], *, limit: float, **fields: Unpack[requests.Examine]
    ) -> replies.Examined: ...
    @overload
    async def request(
        self, do: Literal["stop"], *, limit: float, **fields: Unpack[requests.Stop]
    ) -> replies.Stopped: ...
    @overload
    async def request(
        self, do: Literal["stdin"], *, limit: float, **fields: Unpack[requests.SendStdin]
    ) -> replies.StdinTaken: ...
    @overload
    async def request(
        self, do: Literal["read_results"], *, limit: float, **fields: Unpack[requests.ReadResults]
    ) -> replies.Done: ...
    @overload
    async def request(
        self, do: Literal["more_results"], *, limit: float, **fields: Unpack[requests.MoreResults]
    ) -> replies.ResultPart: ...
    async def request(self, do: str, *, limit: float, **fields: object) -> object:
        """Send a request to the agent, and wait for its reply for at most `limit` seconds."""
        return await self._ask(do, limit, fields)

    @abstractmethod
    async def _ask(self, do: str, limit: float, fields: Mapping[str, object]) -> Any:
        """Send a request, and return its validated reply."""
