"""The faults, in the order of the catalog."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.explanations.fault import Fault
from muster.lab import Lab

TWO_HOSTS = "h2:1,h3:1"


def _sh(lab: Lab, host: str, script: str) -> None:
    done = lab.run(host, ["sh", "-c", script], timeout=20)
    if done.returncode:
        raise RuntimeError(f"{host}: {script}\n{done.stdout}{done.stderr}")


def _small_disk(lab: Lab) -> None:
    _sh(lab, "h2", "mkdir -p /ckpt && mount -t tmpfs -o size=3m muster-ckpt /ckpt")


def _no_small_disk(lab: Lab) -> None:
    _sh(lab, "h2", "umount /ckpt")


def _small_shm(lab: Lab) -> None:
    _sh(lab, "h2", "mount -o remount,size=8m /dev/shm")


def _usual_shm(lab: Lab) -> None:
    _sh(lab, "h2", "mount -o remount,size=1g /dev/shm")


def _data_on_h3(lab: Lab) -> None:
    _sh(lab, "h3", "mkdir -p /data/set && touch /data/set/train.bin")


SIZES = (
    r"another rank sent \d+ bytes, but rank \d expected \d+ in all_reduce at script\.py:\d+"
    r"|ranks? .* calls? all_reduce of \d+ \w+ \(script\.py:\d+\)( as collective number 2,)? but "
)
"""Explanation from the rank that gloo ended, or from the calls of all ranks if enough of them reported."""

FAULTS: tuple[Fault, ...] = (
    Fault(
        row=33,
        title="/dev/shm of 8 MB, DataLoader",
        mode="shm",
        hosts="h2:2",
        before=_small_shm,
        after=_usual_shm,
        why=r"/dev/shm on h2 \(8 MB\) is full",
        fix=r"mount -o remount,size=8g /dev/shm|--shm-size 8g",
    ),
    Fault(
        row=34,
        title="another collective",
        mode="calls",
        named=r"rank \d on h2 failed first",
        why=r"ranks {others} were in all_reduce at script\.py:\d+, rank {culprit} in barrier at script\.py:\d+"
        r"|ranks {others} call all_reduce \(script\.py:\d+\) as collective number 2, but rank {culprit} on h2 calls b",
        fix=r"same collectives in the same order",
    ),
    Fault(
        row=35,
        title="another shape",
        mode="shapes",
        why=SIZES,
        fix=r"tensors of the same shape and dtype",
    ),
    Fault(
        row=35,
        title="another shape, and no error where it is",
        mode="silent",
        hosts="h2:2",
        named=r"rank {culprit} on h2 ended with exit code 0",
        why=r"rank {culprit} reached the end of its script .* or its tensor had another shape or dtype",
        fix=r"TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
    Fault(
        row=36,
        title="another dtype",
        mode="dtypes",
        why=SIZES,
        fix=r"tensors of the same shape and dtype",
    ),
    Fault(
        row=40,
        title="uneven inputs",
        mode="uneven",
        named=r"rank {culprit} on h2 ended with exit code 0",
        why=r"rank {culprit} reached the end of its script after 6 collectives, but rank \d continued to number 7",
        fix=r"same number of batches",
    ),
    Fault(
        row=41,
        title="sys.exit(0) on one rank",
        mode="exit",
        named=r"rank {culprit} on h2 ended with exit code 0",
        why=r"rank {culprit} called sys\.exit\(\) at script\.py:\d+",
        fix=r"exit on all ranks together",
    ),
    Fault(
        row=41,
        title="os._exit(0) on one rank",
        mode="_exit",
        named=r"rank {culprit} on h2 ended with exit code 0",
        why=r"rank {culprit} ended without an error before the end of its script",
        fix=r"os\._exit",
    ),
    Fault(
        row=42,
        title="rank 0 ends before the others",
        mode="store",
        culprit=0,
        named=r"rank {culprit} on h2 ended with exit code 0",
        why=r"rank 0 hosts the store",
        fix=r"dist\.destroy_process_group\(\)",
    ),
    Fault(
        row=43,
        title="another model, DDP",
        mode="model",
        script="model.py",
        culprit=2,
        named=r"rank \d on h2 failed first",
        why=r"the model differs between ranks: parameter 0 is \[\d, 4\] on rank (\d, but .* on rank )?{culprit}",
        fix=r"same arguments on all ranks",
    ),
    Fault(
        row=46,
        title="memory limit",
        mode="memory",
        hosts=TWO_HOSTS,
        torch=False,
        before=lambda lab: lab.limit_memory("h3", "96m"),
        after=lambda lab: lab.heal("h3"),
        named=r"rank 1 on h3 failed first.*out of memory, killed by the OOM killer",
        why=r"the OOM killer killed the rank because its (control group|container) on h3 reached its .* limit of 96 MB",
        fix=r"raise the (limit|memory limit of the container).*, or use a smaller batch",
    ),
    Fault(
        row=46,
        title="memory limit, met by a DataLoader worker",
        mode="worker_memory",
        hosts="h2:2",
        before=lambda lab: lab.limit_memory("h2", "1g"),
        after=lambda lab: lab.heal("h2"),
        why=r"the OOM killer killed a DataLoader worker of the rank because its .* on h2 reached its .* of 1 GB",
        fix=r"or use a smaller batch or fewer DataLoader workers",
    ),
    Fault(
        row=47,
        title="an exception, and louder ones after it",
        mode="raise",
        named=r"rank {culprit} on h2 failed first.*ValueError: bad sample in shard 7 \(script\.py:\d+\)",
        why=r"then failed because (its connection|their connections) to rank \d broke|then stopped by Muster",
    ),
    Fault(
        row=47,
        title="an exception reported 1.5 s after louder ones",
        mode="slow_raise",
        named=r"rank {culprit} on h2 failed first.*ValueError: bad sample in shard 7 \(script\.py:\d+\)",
        why=r"then failed because (its connection|their connections) to rank \d broke",
    ),
    Fault(
        row=47,
        title="an exception in a DataLoader worker",
        mode="sample",
        hosts="h2:2",
        why=r"DataLoader worker process 0 raised ValueError: bad sample 5 \(script\.py:\d+\)",
        fix=r"num_workers=0",
    ),
    Fault(
        row=50,
        title="a host loses power",
        mode="wait",
        hosts=TWO_HOSTS,
        torch=False,
        during=lambda lab: lab.power_off("h3"),
        after=lambda lab: lab.reboot("h3"),
        named=r"host h3 is lost",
        why=r"host h3 is lost: ",
        fix=r"check that it is up",
    ),
    Fault(
        row=51,
        title="disk full in torch.save",
        mode="save",
        before=_small_disk,
        after=_no_small_disk,
        why=r"the disk is full: /ckpt(/step-7\.pt)? on h2 has \d+ (bytes|KB) of 3 MB free",
        fix=r"du -xh /ckpt",
    ),
    Fault(
        row=51,
        title="disk full in write()",
        mode="write",
        culprit=0,
        hosts=TWO_HOSTS,
        torch=False,
        before=_small_disk,
        after=_no_small_disk,
        why=r"the disk is full: /ckpt(/state\.bin)? on h2 has \d+ (bytes|KB) of 3 MB free",
        fix=r"du -xh /ckpt",
    ),
    Fault(
        row=52,
        title="data missing on one host",
        mode="data",
        culprit=0,
        hosts=TWO_HOSTS,
        torch=False,
        before=_data_on_h3,
        why=r"/data/set/train\.bin does not exist on h2; of its path, only /",
        fix=r"muster check -H h2,h3 --data /data/set/train\.bin",
    ),
    Fault(
        row=0,
        title="SIGKILL by another process",
        mode="kill",
        hosts=TWO_HOSTS,
        torch=False,
        named=r"rank 1 on h3 failed first.*sent by neither Muster nor the OOM killer",
        why=r"the OOM killer did not run on h3; another process sent SIGKILL",
        fix=r"journalctl",
    ),
)

ORDINARY = Fault(
    row=0,
    title="an ordinary ValueError",
    mode="value",
    hosts=TWO_HOSTS,
    torch=False,
    named=r"rank 1 on h3 failed first",
)
"""A failure that needs no explanation and must not get one."""


def with_every_culprit(fault: Fault) -> tuple[Fault, ...]:
    """The fault with each of the three ranks as culprit, if any of them can be."""
    if fault.hosts != "h2:3" or fault.row == 42:
        return (fault,)
    return tuple(replace(fault, culprit=rank) for rank in range(3))
