"""Fake GPUs: character devices with the names that the NVIDIA driver uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.errors import LabError

MOST = 64


def gpus_of(names: Sequence[str], gpus: int | Mapping[str, int]) -> dict[str, int]:
    """Number of GPUs of each host; hosts missing from a mapping have none."""
    if not isinstance(gpus, Mapping):
        gpus = dict.fromkeys(names, gpus)
    if unknown := [name for name in gpus if name not in names]:
        raise LabError(f"unknown host `{unknown[0]}` in the number of GPUs", hint=f"the hosts are {', '.join(names)}")
    for name, count in gpus.items():
        if not 0 <= count <= MOST:
            raise LabError(f"number of GPUs of {name} must be from 0 to {MOST}, got {count}")
    return {name: gpus.get(name, 0) for name in names}
