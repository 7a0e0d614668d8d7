"""Which host is to blame for a failed attempt, and which is not, with the texts that CUDA, Python and kernels print."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest
from explaining import GB, MB, disk, end, shm

from muster.controller.diagnosis.bad_host import BadHost, bad_host_of, is_cleared
from muster.controller.diagnosis.hardware_signs import in_answer
from muster.controller.diagnosis.rank_end import RankEnd
from muster.controller.diagnosis.verdict import Verdict, hung, judge

FALLEN = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
CONTAINED = "NVRM: Xid (PCI:0000:86:00): 94, pid=2211, name=python, Contained: SM (0x1). RST: No, D-RST: No"
GSP = "NVRM: Xid (PCI:0000:3b:00): 119, pid=812, name=python, Timeout after 45s of waiting for RPC from GPU0 GSP!"
DBE = "NVRM: Xid (PCI:0000:3b:00): 48, pid=812, DBE (double bit error) on partition 1, subpartition 0"
REMAP = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."
ILLEGAL = (  # an H200 with an illegal write, on 2026-11-16
    "NVRM: Xid (PCI:0000:00:06): 31, pid=479, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE "
    "GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
)
EXCEPTION = (
    "NVRM: Xid (PCI:0000:3b:00): 13, pid=812, Graphics Exception: ESR 0x504730=0x0 0x504734=0x20 0x504728=0xc81eb60"
)
CLEANUP = "NVRM: Xid (PCI:0000:3b:00): 43, pid=812, name=python, Ch 00000010"
PREEMPTED = "NVRM: Xid (PCI:0000:3b:00): 45, pid=812, name=python, Ch 00000010"
POISON = "Memory failure: 0x1f3a2c: Sending SIGBUS to python:812 due to hardware memory corruption"

GPUS = ("0000:18:00.0", "0000:2a:00.0", "0000:2b:00.0", "0000:3b:00.0")

ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)
ECC = f"CUDA error: uncorrectable ECC error encountered{ADVICE}"
LAUNCH = f"CUDA error: unspecified launch failure{ADVICE}"
ACCESS = f"CUDA error: an illegal memory access was encountered{ADVICE}"
ASSERT = f"CUDA error: device-side assert triggered{ADVICE}"
UNKNOWN = f"CUDA error: unknown error{ADVICE}"
OOM = "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 79.15 GiB of which 3 GiB is free."
LOST = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"
CLOSED = (
    "[pair.cc:553] Connection closed by peer [10.0.0.2]:20644. This is typically caused by a remote worker crashing."
)
NCCL_TIMEOUT = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7) ran for 600000 milliseconds"


def peer(rank: int = 1, **more: Any) -> RankEnd:
    """A rank on another host that was stopped because of the failure."""
    return end(rank, -signal.SIGTERM, stopped=True, time=11.0, **more)


def judged(*ends: RankEnd) -> Verdict:
    return judge(ends, [], start=0.0)


def blamed(*ends: RankEnd, earlier: Any = (), stuck: Any = ()) -> BadHost | None:
    return bad_host_of(judged(*ends), ends, earlier, stuck=stuck)


# --- GPUs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (ECC, "a GPU had an uncorrectable memory error (ECC)"),
        (LOST, "a GPU fell off the bus"),
        (f"CUDA error: uncorrectable NVLink error detected during the execution{ADVICE}", "a GPU had a failing NVLink"),
    ],
)
def test_a_message_that_only_a_failed_gpu_causes_blames_its_host(message: str, why: str):
    assert blamed(end(0, 1, message), peer()) == BadHost(host="h1", why=why)


def test_a_message_that_all_hosts_report_blames_none():
    assert blamed(end(0, 1, LOST), end(1, 1, LOST)) is None


def test_source_code_that_quotes_such_a_message_blames_nobody():
    shown = f'Traceback (most recent call last):\n  File "train.py", line 3\n    if "{LOST}" in text:\nKeyError: 7\n'
    assert blamed(end(0, 1, "7", kind="KeyError", traceback=shown), peer()) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (FALLEN, "GPU 3 fell off the bus (Xid 79)"),
        (CONTAINED, "the GPU at 0000:86:00 had an uncorrectable memory error (Xid 94)"),
        (GSP, "GPU 3 stopped responding (Xid 119)"),
        (DBE, "GPU 3 had an uncorrectable memory error (Xid 48)"),
        (REMAP, "the GPU at 0000:10:1c had bad memory rows and needs a reset (Xid 63)"),
        (POISON, "its memory was defective (hardware memory corruption)"),
    ],
)
def test_an_xid_that_means_hardware_blames_its_host(line: str, why: str):
    assert blamed(end(0, 1, LAUNCH, kernel=(line,), gpus=GPUS), peer()) == BadHost(host="h1", why=why)


def test_of_several_xids_the_plainest_cause_is_reported():
    kernel = (GSP, ILLEGAL, FALLEN)
    found = blamed(end(0, 1, LAUNCH, kernel=kernel, gpus=GPUS), peer())
    assert found is not None
    assert found.why == "GPU 3 fell off the bus (Xid 79)"


@pytest.mark.parametrize("line", [ILLEGAL, EXCEPTION, CLEANUP, PREEMPTED])
@pytest.mark.parametrize("message", [ACCESS, LAUNCH, ASSERT])
def test_an_xid_that_programs_cause_blames_nobody(line: str, message: str):
    assert blamed(end(0, 1, message, kernel=(line,), gpus=GPUS), peer()) is None


def test_an_xid_on_another_host_than_that_of_the_rank_that_timed_out_blames_that_host():
    waited = end(0, -signal.SIGABRT, last_words=NCCL_TIMEOUT)
    found = blamed(waited, peer(1, kernel=(FALLEN,), gpus=GPUS))
    assert found is not None
    assert (found.host, found.why) == ("h2", "GPU 3 fell off the bus (Xid 79)")


def test_an_xid_beside_an_ordinary_exception_blames_nobody():
    assert blamed(end(0, 1, "bad sample in shard 7", kind="ValueError", kernel=(REMAP,)), peer()) is None
    assert blamed(end(0, 1, OOM, kernel=(REMAP,)), peer()) is None


def test_hosts_that_share_a_kernel_are_not_blamed_for_what_it_logged():
    assert blamed(end(0, 1, LAUNCH, kernel=(FALLEN,)), peer(1, kernel=(FALLEN,))) is None


def test_a_hang_is_blamed_on_the_host_with_the_failed_gpu():
    ends = [peer(0), peer(1, kernel=(GSP,), gpus=GPUS)]
    found = bad_host_of(hung("rank 1 on h2 does not arrive", [1], progress=3), ends, [])
    assert found is not None
    assert found.host == "h2"


SMI_LOST = (
    "Unable to determine the device handle for GPU1: 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"
)


@pytest.mark.parametrize(
    ("outcome", "sign"),
    [
        ({"hung": 6.0}, ""),
        ({"value": {"problem": SMI_LOST, "devices": 2, "gpus": []}}, "a GPU fell off the bus, according to nvidia-smi"),
        ({"value": {"problem": "", "devices": 8, "gpus": [{}] * 2}}, ""),
        ({"value": {"problem": "Driver/library version mismatch", "devices": 8, "gpus": []}}, ""),
        ({"value": None}, ""),
        ({"value": {"problem": 3, "devices": "8", "gpus": 7}}, ""),
        ({"error": "OSError"}, ""),
        ({}, ""),
    ],
)
def test_the_answer_of_nvidia_smi_shows_lost_gpus(outcome: dict[str, Any], sign: str):
    assert in_answer(outcome) == sign


def test_lost_gpus_on_several_hosts_blame_nobody():
    ends = [end(0, 1, LAUNCH), peer()]
    lost = {"h1": "a GPU fell off the bus", "h2": "a GPU fell off the bus"}
    assert bad_host_of(judged(*ends), ends, [], gpus=lost) is None
    assert bad_host_of(judged(*ends), ends, [], gpus={"h2": lost["h2"]}) == BadHost(host="h2", why=lost["h2"])


# --- disks --------------------------------------------------------------------------------------------------------

FULL = "[Errno 28] No space left on device: '/ckpt/step.pt'"
TORN = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"


@pytest.mark.parametrize("message", [FULL, TORN])
def test_a_full_disk_of_its_own_blames_a_host(message: str):
    found = blamed(end(0, 1, message, kind="OSError", disks=(disk(kind="ext4"),)), peer())
    assert found == BadHost(host="h1", why="the disk of /ckpt was full (20 MB)", kind="full")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "9p", "ceph", ""])
def test_a_full_file_system_that_hosts_may_share_blames_nobody(kind: str):
    assert blamed(end(0, 1, FULL, kind="OSError", disks=(disk(kind=kind),)), peer()) is None


def test_a_full_disk_that_is_not_the_one_in_the_message_blames_nobody():
    shared = disk(kind="nfs4")
    tmp = disk("/tmp", "/tmp", kind="tmpfs")
    assert blamed(end(0, 1, FULL, kind="OSError", disks=(shared, tmp)), peer()) is None


def test_the_disk_in_the_message_counts_and_not_one_whose_path_is_part_of_it():
    cwd, shared = disk("/", "/", kind="ext4"), disk("/mnt/all/step.pt", "/mnt/all", kind="nfs4")
    absolute = "[Errno 28] No space left on device: '/mnt/all/step.pt'"
    relative = "[Errno 28] No space left on device: './all/step.pt'"
    for message in (absolute, relative):
        assert blamed(end(0, 1, message, kind="OSError", disks=(shared, cwd)), peer()) is None


def test_a_quota_blames_nobody():
    message = "[Errno 122] Disk quota exceeded: '/ckpt/step.pt'"
    assert blamed(end(0, 1, message, kind="OSError", disks=(disk(kind="ext4"),)), peer()) is None


def test_a_full_disk_on_every_host_blames_nobody():
    ends = [end(rank, 1, FULL, kind="OSError", disks=(disk(kind="ext4"),)) for rank in (0, 1)]
    assert blamed(*ends) is None


def test_a_full_shm_blames_nobody():
    message = "unable to write to file </torch_812_1>: No space left on device (28)"
    full = disk("/dev/shm/torch_812_1", "/dev/shm", kind="tmpfs")
    assert blamed(end(0, 1, message, disks=(full,)), peer()) is None


def test_a_disk_that_the_kernel_made_read_only_blames_its_host():
    message = "[Errno 30] Read-only file system: '/ckpt/step.pt'"
    found = blamed(end(0, 1, message, kind="OSError", disks=(disk(free=GB, kind="ext4", failed=True),)), peer())
    assert found == BadHost(host="h1", why="the kernel made the disk of /ckpt read-only after an error")


@pytest.mark.parametrize(("kind", "failed"), [("ext4", False), ("overlay", True), ("squashfs", True)])
def test_a_disk_that_is_read_only_on_purpose_blames_nobody(kind: str, failed: bool):
    message = "[Errno 30] Read-only file system: '/ckpt/step.pt'"
    disks = (disk(free=GB, kind=kind, failed=failed),)
    assert blamed(end(0, 1, message, kind="OSError", disks=disks), peer()) is None


def test_an_io_error_of_a_file_on_a_local_disk_blames_its_host():
    message = "[Errno 5] Input/output error: '/data/train.bin'"
    local = disk("/data/train.bin", "/data/train.bin", free=GB, kind="xfs", point="/data")
    found = blamed(end(0, 1, message, kind="OSError", disks=(local,)), peer())
    assert found == BadHost(host="h1", why="the disk of /data had I/O errors")
    assert blamed(end(0, 1, message, kind="OSError", disks=(replace(local, kind="nfs4"),)), peer()) is None
    of_terminal = "[Errno 5] Input/output error"
    assert blamed(end(0, 1, of_terminal, kind="OSError", disks=(local,)), peer()) is None


# --- the kernel ---------------------------------------------------------------------------------------------------


def test_a_process_that_one_host_cannot_end_blames_that_host():
    found = blamed(end(0, 1, "bad sample", kind="ValueError"), peer(), stuck=["h2"])
    assert found == BadHost(host="h2", why="a process was blocked in the kernel (disk or driver)")


def test_a_rank_that_did_not_end_blames_its_host():
    found = blamed(end(0, 1, "bad sample", kind="ValueError"), stuck=["h2"])
    assert found is not None
    assert found.host == "h2"


def test_processes_that_no_host_can_end_wait_for_a_file_server():
    assert blamed(end(0, 1, "bad sample", kind="ValueError"), peer(), stuck=["h1", "h2"]) is None


# --- the same host twice ------------------------------------------------------------------------------------------

ROOMY = shm(free=30 * GB, total=32 * GB)
TWICE = "its ranks failed first twice while the other hosts were fine"


def segfault(rank: int = 0, host: str = "h1", **more: Any) -> RankEnd:
    return end(rank, -signal.SIGSEGV, host=host, shm=ROOMY, **more)


def test_a_host_whose_ranks_crash_first_twice_is_suspected():
    found = blamed(segfault(0, done=70), peer(2), earlier=[judged(segfault(1, done=7), peer(2))])
    assert found is not None
    assert (found.host, found.why, found.is_proven) == ("h1", TWICE, False)


def test_a_host_on_which_the_same_rank_has_two_errors_of_cuda_is_suspected():
    before = judged(end(0, 1, UNKNOWN, done=7), peer())
    assert blamed(end(0, 1, UNKNOWN, done=70), peer(), earlier=[before]) is not None


@pytest.mark.parametrize("message", ["bad sample", "Connection to wandb.ai failed", OOM, ASSERT, ACCESS, LAUNCH])
def test_a_script_that_fails_on_rank_0_twice_does_not_blame_the_host_of_rank_0(message: str):
    before = judged(end(0, 1, message, done=7, place="train.py:8"), peer())
    now = end(0, 1, message, done=70, place="train.py:8")
    assert blamed(now, peer(), earlier=[before]) is None


def test_an_exception_that_moves_between_the_ranks_of_a_host_blames_nobody():
    before = judged(end(0, 1, "bad sample", host="h1", done=7), peer(2))
    assert blamed(end(1, 1, "bad sample", host="h1", done=70), peer(2), earlier=[before]) is None


def test_a_crash_that_returns_at_the_same_place_is_the_scripts_unless_it_is_at_the_start():
    assert blamed(segfault(done=7), peer(), earlier=[judged(segfault(done=7), peer())]) is None
    assert blamed(segfault(done=0), peer(), earlier=[judged(segfault(done=0), peer())]) is not None


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGABRT])
def test_ranks_that_were_killed_twice_blame_nobody(status: int):
    before = judged(end(0, status, done=7), peer())
    assert blamed(end(0, status, done=70), peer(), earlier=[before]) is None


def test_a_bus_error_with_a_small_shm_blames_nobody():
    small = shm(free=0, total=64 * MB)
    before = judged(end(0, -signal.SIGBUS, shm=small, done=7), peer())
    assert blamed(end(0, -signal.SIGBUS, shm=small, done=70), peer(), earlier=[before]) is None


def test_failures_on_two_hosts_blame_nobody():
    assert blamed(segfault(0, "h1", done=70), peer(1), earlier=[judged(segfault(1, "h2", done=7), peer(0))]) is None


def test_a_host_is_not_blamed_while_another_fails_by_itself():
    before = judged(segfault(0, done=7), peer(2))
    other = end(2, 1, "bad sample", time=10.5)
    assert blamed(segfault(1, done=70), other, earlier=[before]) is None
    echo = end(2, 1, CLOSED, time=10.5)
    assert blamed(segfault(1, done=70), echo, earlier=[before]) is not None


def test_the_only_host_is_not_suspected():
    assert blamed(segfault(0, done=70), earlier=[judged(segfault(0, done=7))]) is None


def test_a_suspected_host_is_cleared_if_its_replacement_fails_in_the_same_way():
    suspect = blamed(segfault(0, done=70), peer(2), earlier=[judged(segfault(1, done=7), peer(2))])
    assert suspect is not None
    assert is_cleared(suspect, judged(segfault(0, "h9", done=90), peer(2)))
    assert not is_cleared(suspect, judged(end(0, 1, "bad sample", host="h9"), peer(2)))
    assert not is_cleared(suspect, Verdict(exit_code=0))


def test_a_host_with_failed_hardware_is_not_cleared_by_a_later_failure():
    proven = blamed(end(0, 1, ECC), peer())
    assert proven is not None
    assert not is_cleared(proven, judged(end(0, 1, ECC, host="h9"), peer()))


def test_a_job_that_succeeded_blames_nobody():
    assert blamed(end(0, 0, kernel=(FALLEN,)), end(1, 0)) is None


# --- what the verdict says ----------------------------------------------------------------------------------------


def test_the_verdict_reports_what_the_kernel_logged():
    verdict = judged(end(0, 1, LAUNCH, kernel=(FALLEN,), gpus=GPUS), peer())
    assert verdict.why == "GPU 3 fell off the bus (Xid 79) on h1, according to its kernel log"
    assert verdict.fix == "run without h1 (--avoid-bad) and check it: muster check --deep -H h1"
    assert judged(end(0, 1, "bad sample", kernel=(FALLEN,)), peer()).why == ""


def test_the_verdict_reports_a_lost_gpu_and_a_failed_disk():
    assert judged(end(0, 1, LOST), peer()).why == "a GPU of h1 fell off the bus"
    message = "[Errno 30] Read-only file system: '/ckpt/step.pt'"
    failed = disk(free=GB, kind="ext4", failed=True, point="/ckpt")
    verdict = judged(end(0, 1, message, kind="OSError", disks=(failed,)), peer())
    assert verdict.why == "the kernel made the disk of /ckpt read-only after an error on h1"
