"""GPUs, disks and data: rows 44, 45, 48, 49, 51 and 52."""

from __future__ import annotations

from benchmarks.scoreboard.fault import Fault
from benchmarks.scoreboard.shims import gpu, healthy_gpus, put_gpus
from benchmarks.scoreboard.stage import PROJECT, Stage


def _twice(stage: Stage) -> None:
    healthy_gpus(stage, 2)
    stage.write("h2", "/root/.bashrc", "export CUDA_VISIBLE_DEVICES=0,0\n")


def _world(stage: Stage) -> None:
    stage.write("h2", "/root/.bashrc", "export WORLD_SIZE=7\n")


def _seven_of_eight(stage: Stage) -> None:
    healthy_gpus(stage, 8)
    put_gpus(stage, "h2", [gpu("h2", number) for number in range(8) if number != 3])


def _memory_errors(stage: Stage) -> None:
    healthy_gpus(stage, 2)
    put_gpus(stage, "h2", [gpu("h2", 0), gpu("h2", 1, **{"ecc.errors.uncorrected.volatile.total": "4"})])


def _hot(stage: Stage) -> None:
    healthy_gpus(stage, 2)
    hot = {"clocks_throttle_reasons.hw_thermal_slowdown": "Active", "temperature.gpu": "91"}
    put_gpus(stage, "h2", [gpu("h2", 0), gpu("h2", 1, **hot)])


def _two_kinds(stage: Stage) -> None:
    healthy_gpus(stage, 2)
    put_gpus(stage, "h2", [gpu("h2", number, name="NVIDIA A100-SXM4-80GB") for number in range(2)])


def _foreign(stage: Stage) -> None:
    healthy_gpus(stage, 2)
    pid = stage.background("h2", "exec sleep 600")
    process = {"gpu_uuid": "GPU-h2-0", "pid": str(pid), "process_name": "python", "used_memory": "20480"}
    put_gpus(stage, "h2", [gpu("h2", number) for number in range(2)], [process])


def _data(stage: Stage) -> None:
    for host in ("h1", "h3"):
        stage.write(host, "/data/set/one.bin", "1234")


FAULTS = (
    Fault(row=44, title="two ranks on one GPU", at=("h2",), inject=_twice, gpus=2),
    Fault(row=45, title="WORLD_SIZE left over", at=("h2",), inject=_world),
    Fault(row=48, title="7 of 8 GPUs answer", at=("h2",), inject=_seven_of_eight, gpus=8, not_run="a reboot"),
    Fault(row=48, title="memory errors", at=("h2",), inject=_memory_errors, gpus=2),
    Fault(row=48, title="throttled by heat", at=("h2",), inject=_hot, gpus=2, not_run="needs hands"),
    Fault(row=48, title="two kinds of GPU", at=("h2",), inject=_two_kinds, gpus=2),
    Fault(row=49, title="GPU busy with another process", at=("h2",), inject=_foreign, gpus=2),
    Fault(
        row=51, title="disk full", at=("h2",), inject=lambda stage: stage.lab.fill_disk("h2"), not_run="needs a choice"
    ),
    Fault(
        row=52,
        title="data missing on a host",
        at=("h2",),
        inject=_data,
        options=("--data", "/data/set"),
        script=("train.py", "--out", f"{PROJECT}/out"),
    ),
)
