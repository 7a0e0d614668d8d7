"""Versions, code, variables and limits: rows 23 to 33."""

from __future__ import annotations

from benchmarks.scoreboard.fault import Fault
from benchmarks.scoreboard.shims import (
    edit_torch_version,
    healthy_gpus,
    put_clock_ahead,
    put_fabric_manager,
    put_infiniband,
)
from benchmarks.scoreboard.stage import PROJECT, Stage

TRAIN = ("train.py",)


def _older_torch(stage: Stage) -> None:
    edit_torch_version(stage, "h2", "s/^__version__.*/__version__ = '2.12.0+cpu'/")


def _other_build(stage: Stage) -> None:
    edit_torch_version(stage, "h2", "s/^git_version.*/git_version = 'mine'/")


def _older_model(stage: Stage) -> None:
    stage.write("h2", f"{PROJECT}/model.py", "import torch  # of last week\n")


def _shadow(stage: Stage) -> None:
    stage.write("h2", f"{PROJECT}/random.py", "")


def _fabric(stage: Stage) -> None:
    healthy_gpus(stage, 8)
    for host in stage.lab.names:
        put_fabric_manager(stage, host, "failed" if host == "h2" else "active")


def _stale(stage: Stage) -> None:
    stage.write("h2", "/root/.bashrc", "export NCCL_IB_HCA=mlx5_0\n")


def _bound(stage: Stage) -> None:
    stage.sh("h2", "taskset -pc 0 $(cat /run/muster-lab/sshd.pid)")


def _locked(stage: Stage) -> None:
    healthy_gpus(stage, 2)
    for host in stage.lab.names:
        put_infiniband(stage, host)
    stage.sh("h2", "touch /run/shim/little-memlock")


def _files(stage: Stage) -> None:
    stage.sh("h2", "prlimit --nofile=128: --pid $(cat /run/muster-lab/sshd.pid)")


FAULTS = (
    Fault(row=23, title="another version of torch", at=("h2",), inject=_older_torch, not_run="pip needs the network"),
    Fault(
        row=23, title="another build of one version", at=("h2",), inject=_other_build, not_run="pip needs the network"
    ),
    Fault(row=24, title="older code on a host", at=("h2",), inject=_older_model, script=TRAIN),
    Fault(row=25, title="a file that hides a module", at=("h2",), inject=_shadow, script=TRAIN),
    Fault(row=26, title="fabric manager is dead", at=("h2",), inject=_fabric, gpus=8),
    Fault(row=27, title="stale NCCL variable", at=("h2",), inject=_stale),
    Fault(row=28, title="clock 7 s ahead", at=("h2",), inject=lambda stage: put_clock_ahead(stage, "h2")),
    Fault(row=29, title="OMP_NUM_THREADS=1", at=("h1", "h2", "h3"), env={"OMP_NUM_THREADS": "1"}),
    Fault(row=30, title="bound to one CPU", at=("h2",), inject=_bound),
    Fault(row=31, title="memlock 64 KB", at=("h2",), inject=_locked, gpus=2),
    Fault(row=32, title="128 open files", at=("h2",), inject=_files),
    Fault(
        row=33,
        title="/dev/shm of 64 MB",
        at=("h2",),
        inject=lambda stage: stage.sh("h2", "mount -o remount,size=64m /dev/shm"),
    ),
)
