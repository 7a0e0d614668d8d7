"""Failures of a machine explained: each row with the texts torch really says, and silence where nothing is known."""

from __future__ import annotations

import re
import signal

import failure_texts as texts
import pytest
from explaining import GB, MB, ROOM, disk, end, nothing_is_said, shm, why

from muster.controller.diagnosis.explain import ROWS
from muster.controller.diagnosis.explain.host_failures import killed_importer
from muster.controller.diagnosis.failure_facts import Disk, Memory
from muster.controller.diagnosis.rank_end import RankEnd
from muster.shared.host_state import FailureFacts, MemoryFacts

# --- silence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ValueError", "bad sample in shard 7"),
        ("KeyError", "'loss'"),
        ("AssertionError", ""),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x4 and 5x3)"),
        ("RuntimeError", texts.UNUSED),
        ("TypeError", "cannot allocate more than one killed worker"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'peer.csv'"),
        ("RuntimeError", "CUDA error: device-side assert triggered"),
    ],
)
def test_an_ordinary_exception_needs_no_explanation(kind: str, message: str):
    facts = {"memory": Memory(group_kills=0, total=24 * GB), "disks": (disk(**ROOM),), "shm": disk(**ROOM)}
    assert nothing_is_said(end(message=message, kind=kind, **facts))


def test_a_full_disk_that_the_error_is_not_about_is_not_blamed():
    assert nothing_is_said(end(message="bad sample", kind="ValueError", disks=(disk(),), shm=disk()))


def test_memory_kills_elsewhere_on_the_host_are_not_blamed_for_an_exception():
    assert nothing_is_said(end(message="bad sample", kind="ValueError", memory=Memory(group_kills=3, host_kills=3)))


@pytest.mark.parametrize("status", [3, -signal.SIGSEGV, -signal.SIGTERM, -signal.SIGABRT])
def test_an_exit_code_or_a_crash_without_words_is_not_explained(status: int):
    assert nothing_is_said(end(status=status, memory=Memory(group_kills=0, total=24 * GB)))


def test_every_row_says_what_it_is_recognised_by_and_where_that_was_learnt():
    notes = [re.findall(r"Symptom(?: \(row (\d+)\))?: .+\n +Source: .+", row.__doc__ or "") for row in ROWS]
    assert all(notes)
    assert {int(number) for note in notes for number in note if number} >= {33, 34, 35, 41, 43, 46, 47, 51, 52}


@pytest.mark.parametrize(
    "text",
    [
        "No module named 'muster'",
        "/bin/python: Error while finding module specification for 'muster.recipes.hello' "
        "(ModuleNotFoundError: No module named 'muster')",
    ],
)
def test_a_rank_whose_python_has_no_muster_gets_the_advice_to_install_it(text: str):
    found = why(end(message=text, kind="ModuleNotFoundError"))
    assert found.sentence == "the Python on h1 has no Muster"
    assert found.fix == "install Muster there, or use torch.distributed directly"
    assert nothing_is_said(end(message="No module named 'mustermann'", kind="ModuleNotFoundError"))


# --- row 46: memory ------------------------------------------------------------------------------------------------


def test_the_limit_of_a_container_that_was_reached_is_named_with_what_the_rank_held():
    found = why(
        end(
            status=-9,
            memory=Memory(group_kills=1, host_kills=1, limit=64 * MB, peak=64 * MB, total=24 * GB),
            inside="container",
            rss=61 * MB,
        )
    )
    assert found.sentence == (
        "the OOM killer killed the rank because its container on h1 reached its memory limit of 64 MB. The rank itself "
        "used up to 61 MB"
    )
    assert '--container-args "--memory' in found.fix
    assert found.row == 46


@pytest.mark.parametrize(
    ("inside", "owner", "words"),
    [
        ("slurm", "its Slurm job", "sbatch"),
        ("pbs", "its PBS job", "qsub"),
        ("", "its control group", "raise the limit"),
    ],
)
def test_the_fix_for_a_memory_limit_is_that_of_who_set_it(inside: str, owner: str, words: str):
    found = why(end(status=-9, memory=Memory(group_kills=1, limit=8 * GB, peak=8 * GB, total=24 * GB), inside=inside))
    assert owner in found.sentence
    assert words in found.fix


def test_a_host_without_memory_is_distinguished_from_a_limit_that_was_not_reached():
    found = why(end(status=-9, memory=Memory(group_kills=1, limit=20 * GB, peak=3 * GB, total=24 * GB)))
    assert found.sentence.startswith("the OOM killer killed the rank because h1 ran out of memory (24 GB in total)")
    assert "fewer ranks on that host" in found.fix


def test_where_no_group_is_counted_the_count_of_the_host_serves():
    found = why(end(status=-9, memory=Memory(group_kills=None, host_kills=1, total=24 * GB)))
    assert "h1 ran out of memory" in found.sentence


def test_a_kill_counted_on_the_host_but_not_in_the_control_group_is_reported_as_probable():
    found = why(end(status=-9, memory=Memory(group_kills=0, host_kills=1, total=24 * GB)))
    assert "probably the rank" in found.sentence


def test_a_kill_by_somebody_else_is_not_called_a_want_of_memory_when_the_counters_did_not_move():
    found = why(end(status=-9, memory=Memory(group_kills=0, host_kills=0, limit=64 * MB, peak=64 * MB, total=24 * GB)))
    assert found.sentence.startswith("the OOM killer did not run on h1; another process sent SIGKILL")
    assert "journalctl" in found.fix
    assert found.row == 0


@pytest.mark.parametrize("memory", [None, Memory(total=24 * GB)])
def test_a_kill_without_any_facts_is_said_to_be_unknown(memory: Memory | None):
    found = why(end(status=-9, memory=memory))
    assert "could not determine" in found.sentence
    assert not found.fix


def test_a_rank_that_muster_killed_is_not_explained():
    assert nothing_is_said(end(status=-9, stopped=True, memory=Memory(group_kills=1)))


def test_a_dataloader_worker_killed_by_the_kernel_is_distinguished_from_other_kills():
    moved = Memory(group_kills=1, limit=GB, peak=GB, total=24 * GB)
    trace = texts.worker_died(texts.KILLED)
    found = why(end(message=texts.WORKER_DIED, traceback=trace, memory=moved))
    assert found.sentence.startswith("the OOM killer killed a DataLoader worker of the rank because its control group")
    assert nothing_is_said(end(message=texts.WORKER_DIED, traceback=trace, memory=Memory(group_kills=0)))
    crashed = texts.worker_died(texts.SEGMENTATION_FAULT)
    assert nothing_is_said(end(message=texts.WORKER_DIED, traceback=crashed, memory=moved))


@pytest.mark.parametrize(("kind", "message"), [("RuntimeError", texts.NO_MEMORY), ("MemoryError", "")])
def test_memory_that_was_refused_is_reported_with_how_much_was_wanted(kind: str, message: str):
    found = why(
        end(message=message, kind=kind, summary=f"{kind}: {message}" if message else kind, memory=Memory(total=24 * GB))
    )
    assert found.sentence == (
        f"out of memory: h1 refused to allocate {'364 TB of ' if message else ''}memory (the host has 24 GB)"
    )


# --- row 51: disks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "trace"),
    [
        (texts.TORN_MESSAGE, texts.TORN_TRACE),
        (texts.ENOSPC, ""),
        (texts.LEGACY_ENOSPC, ""),
        (texts.NUMPY_SHORT, ""),
        (texts.DCP, ""),
    ],
)
def test_a_full_disk_is_named_whatever_the_words_of_the_writer(message: str, trace: str):
    found = why(end(message=message, traceback=trace, disks=(disk(path="/work", folder="/work", **ROOM), disk())))
    assert found.sentence == "the disk is full: /ckpt on h1 has 0 bytes of 20 MB free"
    assert "du -xh /ckpt" in found.fix
    assert found.row == 51


def test_a_disk_without_inodes_is_distinguished_from_one_without_space():
    found = why(end(message=texts.ENOSPC, disks=(disk(inodes=0, **ROOM),)))
    assert "/ckpt on h1 has no free inodes, although 200 GB is free" in found.sentence
    assert "df -i /ckpt" in found.fix


def test_a_torn_file_on_a_disk_with_room_is_said_to_be_unknown():
    found = why(end(message=texts.TORN_MESSAGE, traceback=texts.TORN_TRACE, disks=(disk(**ROOM),)))
    assert "(there is room now: /ckpt on h1 has 200 GB of 900 GB free)" in found.sentence


def test_no_space_left_is_believed_even_if_there_is_room_again():
    found = why(end(message=texts.ENOSPC, disks=(disk(**ROOM),)))
    assert found.sentence.startswith("a disk of h1 was full; could not determine which")


@pytest.mark.parametrize(
    "words",
    ["No space left on device", "write failed: unexpected pos 704 vs 598", "DataLoader worker killed by signal"],
)
def test_what_was_written_long_before_an_exception_is_not_its_cause(words: str):
    facts = {"disks": (disk(),), "shm": shm(0, 64 * MB), "memory": Memory(group_kills=1)}
    assert nothing_is_said(end(message="bad sample", kind="ValueError", last_words=f"warning: {words}", **facts))


def test_a_limit_of_inotify_is_no_full_disk():
    assert nothing_is_said(end(message="[Errno 28] inotify watch limit reached", kind="OSError", disks=(disk(),)))


def test_a_quota_that_is_used_up_is_no_full_disk():
    assert why(end(message=texts.QUOTA, kind="OSError", disks=(disk(**ROOM),))).sentence == (
        "your disk quota for /ckpt on h1 is exceeded"
    )


# --- row 33: shared memory -----------------------------------------------------------------------------------------


def test_a_full_shared_memory_is_reported_although_the_error_is_that_of_a_worker():
    # When the rank has ended its segments are gone: the free space of now proves nothing.
    found = why(end(message=texts.SHM_FULL, shm=shm(15 * MB, 16 * MB), disks=(disk(**ROOM),)))
    assert found.sentence == "/dev/shm on h1 (16 MB) is full"
    assert "mount -o remount,size=8g /dev/shm" in found.fix
    assert found.row == 33


def test_a_semaphore_without_room_is_the_shared_memorys():
    trace = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in '
        f"__init__\n    sl = self._semlock = _multiprocessing.SemLock(\nOSError: {texts.ENOSPC}\n"
    )
    found = why(end(message=texts.ENOSPC, kind="OSError", traceback=trace, shm=shm(0, 64 * MB), disks=(disk(**ROOM),)))
    assert found.sentence == "/dev/shm on h1 (64 MB) is full"


def test_in_a_container_the_fix_for_shared_memory_is_an_option_of_the_container():
    found = why(end(message=texts.SHM_FULL, shm=shm(15 * MB, 16 * MB), inside="container"))
    assert '--container-args "--shm-size 8g"' in found.fix


def test_a_bus_error_is_the_shared_memorys_only_where_that_is_small_or_full():
    trace = texts.worker_died(texts.BUS_ERROR)
    small = why(end(message=texts.WORKER_DIED, traceback=trace, shm=shm(60 * MB, 64 * MB)))
    assert "/dev/shm on h1 (64 MB) is small" in small.sentence
    full = why(end(message=texts.WORKER_DIED, traceback=trace, shm=shm(0, 64 * GB)))
    assert "/dev/shm on h1 (64 GB) is full" in full.sentence
    neither = why(end(message=texts.WORKER_DIED, traceback=trace, shm=shm(60 * GB, 64 * GB)))
    assert "could not determine" in neither.sentence
    assert not neither.fix


def test_a_rank_that_dies_of_a_bus_error_itself_is_explained_in_the_same_way():
    found = why(end(status=-signal.SIGBUS, shm=shm(60 * MB, 64 * MB)))
    assert found.row == 33
    mapped = why(end(status=-signal.SIGBUS, shm=shm(60 * GB, 64 * GB), disks=(disk(),)))
    assert "a mapped file on a full disk" in mapped.sentence


def test_nccl_without_shared_memory_says_so_in_its_warnings():
    found = why(end(message=texts.NCCL_SYSTEM, last_words=texts.NCCL_SHM, shm=shm(0, 64 * MB)))
    assert found.sentence == "/dev/shm on h1 (64 MB) is full"


# --- row 52: files that a host lacks -------------------------------------------------------------------------------

NO_FILE = "[Errno 2] No such file or directory: '/data/set/train.bin'"


def lacks(rank: int, host: str) -> RankEnd:
    missing = Disk(path="/data/set/train.bin", folder="/data", **ROOM)
    return end(rank, message=NO_FILE, kind="FileNotFoundError", host=host, disks=(missing,))


def test_a_file_that_one_host_lacks_is_reported_with_the_command_that_compares_all():
    found = why(lacks(1, "h2"), end(0, -15, host="h1", stopped=True))
    assert found.sentence == "/data/set/train.bin does not exist on h2; of its path, only /data exists"
    assert "muster check -H h1,h2 --data /data/set/train.bin" in found.fix


def test_a_file_that_all_hosts_lack_is_an_ordinary_mistake():
    assert nothing_is_said(lacks(1, "h2"), lacks(0, "h1"))
    assert nothing_is_said(lacks(1, "h1"), end(0, -15, host="h1", stopped=True))


def test_a_file_that_is_there_after_all_is_not_called_missing():
    there = Disk(path="/data/set/train.bin", folder="/data/set/train.bin", **ROOM)
    first = end(1, message=NO_FILE, kind="FileNotFoundError", host="h2", disks=(there,))
    assert nothing_is_said(first, end(0, -15, host="h1", stopped=True))


def test_a_zygote_that_the_oom_killer_ended_before_the_ranks_started_is_explained():
    memory: MemoryFacts = {"group_kills": 1, "host_kills": 1, "limit": 256 * MB, "peak": 256 * MB, "total": 8 * GB}
    facts: FailureFacts = {"memory": memory, "inside": "pbs", "disks": [], "shm": None, "kernel": [], "gpus": []}
    error = killed_importer("h2", facts)
    assert error.message == (
        "h2: the OOM killer killed the process that imports torch because its PBS job on h2 reached its memory limit "
        "of 256 MB"
    )
    assert "request more memory (`muster submit --mem 64G`" in (error.hint or "")
    facts = {**facts, "memory": {**memory, "group_kills": 0, "host_kills": 0}}
    assert killed_importer("h2", facts).message == "h2: the process that imports torch was killed"
