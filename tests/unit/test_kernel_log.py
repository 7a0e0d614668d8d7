"""What an agent reads in the kernel's log while ranks run."""

from __future__ import annotations

from pathlib import Path

from muster.agent.kernel_log import KernelLog

FALLEN = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def log(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"3,4711,37975249592,-;{line}\n" for line in lines)


def test_lines_about_hardware_since_the_start_of_the_ranks_are_found(tmp_path: Path):
    path = tmp_path / "kmsg"
    log(path, FALLEN)
    kernel = KernelLog(str(path))
    kernel.begin()
    assert kernel.lines() == []
    log(path, "usb 1-1: new high-speed USB device", FALLEN)
    assert kernel.lines() == [FALLEN]
    assert kernel.lines() == [FALLEN]  # for every rank that ends
    kernel.begin()
    assert kernel.lines() == []


def test_a_log_that_must_not_be_read_has_no_lines(tmp_path: Path):
    kernel = KernelLog(str(tmp_path / "none"))
    kernel.begin()
    assert kernel.lines() == []


def test_a_driver_that_logs_without_end_does_no_harm(tmp_path: Path):
    path = tmp_path / "kmsg"
    path.touch()
    kernel = KernelLog(str(path))
    kernel.begin()
    log(path, *[FALLEN + "x" * 500] * 1000)
    found = kernel.lines()
    assert len(found) == 32
    assert max(map(len, found)) == 300


def test_the_log_of_this_machine_can_be_read_or_is_left_alone():
    kernel = KernelLog()
    kernel.begin()
    assert kernel.lines() == []
