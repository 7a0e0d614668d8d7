"""Which of the user's environment variables reach the ranks on other hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from muster.errors import UsageError

CARRIED = (
    "NCCL_*",
    "GLOO_*",
    "TORCH_*",
    "PYTORCH_*",
    "TORCHDYNAMO_*",
    "TORCHINDUCTOR_*",
    "TRITON_*",
    "OMP_*",
    "MKL_*",
    "KMP_*",
    "OPENBLAS_NUM_THREADS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUBLAS_*",
    "UCX_*",
    "FI_*",
    "HF_*",
    "HUGGING_FACE_HUB_TOKEN",
    "TRANSFORMERS_*",
    "TOKENIZERS_PARALLELISM",
    "WANDB_*",
    "MLFLOW_*",
    "COMET_*",
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "PYTHONFAULTHANDLER",
    "PYTHONUNBUFFERED",
    "TZ",
)
"""The default set. Paths (PATH, PYTHONPATH, LD_LIBRARY_PATH) are excluded: they describe this machine only."""

SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
"""Matches names of environment variables whose values are hidden."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def carried(env: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of the default set that are set on this machine."""
    return {name: value for name, value in env.items() if any(fnmatchcase(name, pattern) for pattern in CARRIED)}


def parse_env(options: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables given by `--env NAME=VALUE` and `--env NAME` (its value on this machine)."""
    wanted: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not _NAME.match(name):
            raise UsageError(
                f"--env {name}: invalid name of an environment variable",
                hint="write `--env NAME=VALUE`, or `--env NAME` for its value on this machine",
            )
        if not equals:
            if name not in env:
                raise UsageError(f"--env {name}: {name} is not set on this machine", hint=f"write `--env {name}=VALUE`")
            value = env[name]
        wanted[name] = value
    return wanted
