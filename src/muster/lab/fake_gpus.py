"""GPUs that are not there: character devices under the names that the NVIDIA driver gives its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.errors import LabError

MOST = 64


def gpus_of(names: Sequence[str], gpus: int | Mapping[str, int]) -> dict[str, int]:
    """How many GPUs each host has; hosts that a mapping does not name have none."""
    if not isinstance(gpus, Mapping):
        gpus = dict.fromkeys(names, gpus)
    if unknown := [name for name in gpus if name not in names]:
        raise LabError(f"there is no host `{unknown[0]}` to have GPUs", hint=f"the hosts are {', '.join(names)}")
    for name, count in gpus.items():
        if not 0 <= count <= MOST:
            raise LabError(f"{name} cannot have {count} GPUs", hint=f"give a number from 0 to {MOST}")
    return {name: gpus.get(name, 0) for name in names}
