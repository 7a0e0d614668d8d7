"""Asks hosts about their GPUs after a failure that a GPU may have caused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from muster.controller.diagnosis.hardware_signs import in_answer
from muster.controller.links.link import AgentLink
from muster.errors import HostError
from muster.shared.requests import Probe, Question

_SMI_LIMIT = 6.0
"""Seconds until nvidia-smi must have answered; it normally takes 0.1 s."""

_PROBE: Probe = {"name": "gpus", "probe": "nvidia.gpus", "limit": _SMI_LIMIT}

_NOTHING: Question = {"env": {}, "cwd": "/", "script": "", "code": [], "master": None, "paths": [], "peers": {}}
"""This probe needs to know nothing about the job."""


async def failed_gpus(links: Sequence[AgentLink]) -> dict[str, str]:
    """What is wrong with the GPUs of these hosts, by host; nothing where all respond, or there are none."""

    async def one(link: AgentLink) -> str:
        try:
            reply = await link.request("probe", limit=_SMI_LIMIT + 3, probes=[_PROBE], ask=_NOTHING)
        except HostError:
            return ""
        return in_answer(reply["answers"].get("gpus", {}))

    asked = [link for link in links if link.lost is None]  # more may be lost meanwhile
    answers = await asyncio.gather(*map(one, asked))
    return {link.name: sign for link, sign in zip(asked, answers, strict=True) if sign}
