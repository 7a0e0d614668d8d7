"""Reads torch's distributed checkpoints without running code from them: their `.metadata` is a pickle."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import os
import pickle
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

_DCP = "torch.distributed.checkpoint"
_ALLOWED = {
    *((f"{_DCP}.metadata", name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "ChunkStorageMetadata")),
    *((f"{_DCP}.metadata", name) for name in ("TensorStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING")),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
}
"""What the metadata of a checkpoint of tensors consists of, besides their dtypes."""


class TensorReader(dcp.FileSystemReader):
    """Reads checkpoints of tensors and nothing else; torch's own reader unpickles whatever it finds."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata, loaded with an allow-list; UnpicklingError if it contains anything else."""
        with open(os.path.join(self.path, ".metadata"), "rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError("its .metadata does not describe a checkpoint")
        for name, entry in metadata.state_dict_metadata.items():
            if type(entry) is not TensorStorageMetadata:  # torch would unpickle the contents of others
                raise pickle.UnpicklingError(f"{name} is not a tensor")
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """Refuses every name that is not part of a checkpoint's metadata."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return a class of the allow-list or a dtype."""
        if module_name == "torch" and isinstance(dtype := vars(torch).get(global_name), torch.dtype):
            return dtype
        if (module_name, global_name) in _ALLOWED:
            return super().find_class(module_name, global_name)
        raise pickle.UnpicklingError(
            f"its .metadata contains {module_name}.{global_name}, which is not part of a checkpoint"
        )
