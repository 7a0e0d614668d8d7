"""When ranks that trained without each other get a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.controller.diagnosis.independent_ranks import HINT, warn
from muster.controller.diagnosis.verdict import Verdict
from muster.job import Job, Script
from muster.spec import RunSpec

DONE = Verdict(exit_code=0)
SCRIPT = Script(path="train.py", digest=[], text="import torch\n")
JOB = Job(id="j", spec=RunSpec(target="train.py", cwd="/"), hosts=(), carried={}, script=SCRIPT)


def test_a_script_for_one_gpu_on_two_ranks_gets_a_warning_and_no_other_exit_code():
    verdict = warn(DONE, 2, JOB)
    assert verdict.ok
    assert verdict.sentence == (
        "2 ranks trained independently: train.py never called init_process_group, so each did the same work"
    )
    assert verdict.notes == (f"hint: {HINT}",)


@pytest.mark.parametrize("text", ['lr = RATES[int(os.environ["RANK"])]', "args.local_rank", "SLURM_PROCID"])
def test_ranks_of_a_script_that_reads_its_rank_may_do_different_work(text: str):
    said = warn(DONE, 4, replace(JOB, script=replace(SCRIPT, text=text))).sentence
    assert said == "4 ranks trained independently: train.py never called init_process_group"


@pytest.mark.parametrize("alone", [0, 1])
def test_fewer_than_two_ranks_that_trained_are_no_reason_for_a_warning(alone: int):
    assert warn(DONE, alone, JOB) is DONE


def test_a_job_that_failed_keeps_its_verdict():
    failed = Verdict(exit_code=3, sentence="rank 0 on h1 failed first")
    assert warn(failed, 2, JOB) is failed
