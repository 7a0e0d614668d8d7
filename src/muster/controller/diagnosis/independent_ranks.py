"""Warns about ranks that trained without each other: a script for one GPU was started on several. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from muster.controller.diagnosis.verdict import Verdict
from muster.job import Job

HINT = 'see "From one GPU to DDP" (docs/ddp.md)'

_KNOWS_ITS_RANK = re.compile(r"RANK\b|SLURM_PROCID|local_rank|global_rank")
"""Code of a script that may give each rank other work on purpose, such as a sweep."""


def warn(verdict: Verdict, alone: int, job: Job) -> Verdict:
    """The verdict with a warning, if the job succeeded and several ranks trained without communicating."""
    if not verdict.ok or alone < 2:
        return verdict
    name = job.spec.call.name if job.spec.call is not None else job.spec.target
    effect = ", so each did the same work"
    if job.script is None or _KNOWS_ITS_RANK.search(job.script.text):
        effect = ""
    sentence = f"{alone} ranks trained independently: {name} never called init_process_group{effect}"
    return replace(verdict, sentence=sentence, notes=(f"hint: {HINT}",))
