"""State dicts as tensors: `take_apart` extracts the tensors from a tree, `put_together` restores the tree."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from muster.errors import MusterError

if TYPE_CHECKING:
    from torch import Tensor

REST = "muster.rest"
"""The name of the packed remainder, everything that is not a tensor."""

_SLOT = "muster.tensor"


def take_apart(tree: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a tree of dicts, lists and tuples by dotted names, plus one tensor with the rest."""
    tensors: dict[str, Tensor] = {}
    rest = _lift(tree, "", tensors)
    tensors[REST] = pack(rest)
    return tensors


def put_together(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Undo `take_apart`."""
    return _set_in(unpack(tensors[REST]), tensors)


def pack(value: object) -> Tensor:
    """Convert numbers, strings, tensors and containers of them to a tensor of bytes."""
    import torch

    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def unpack(packed: Tensor) -> Any:
    """Undo `pack`."""
    import torch

    # weights_only: numbers, strings, tensors and containers, but no code from a file.
    return torch.load(io.BytesIO(packed.cpu().numpy().tobytes()), weights_only=True)


def _lift(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {_SLOT: name}
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {key: _lift(each, f"{name}.{key}".lstrip("."), tensors) for key, each in pairs}
    if isinstance(value, (list, tuple)):
        parts = [_lift(each, f"{name}.{i}", tensors) for i, each in enumerate(cast("list[Any]", value))]
        return parts if isinstance(value, list) else tuple(parts)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise MusterError(f"cannot save {name}: it is a {type(value).__name__}, not a tensor, number or string")


def _set_in(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        if _SLOT in entries:
            return tensors[entries[_SLOT]]
        return {key: _set_in(each, tensors) for key, each in entries.items()}
    if isinstance(value, (list, tuple)):
        parts = [_set_in(each, tensors) for each in cast("list[Any]", value)]
        return parts if isinstance(value, list) else tuple(parts)
    return value
