"""Explains errors of CUDA and NCCL. Pure.

The texts come from public reports (named at each row), because the tests have no GPU to produce them.
"""

from __future__ import annotations

import re

from muster.controller.diagnosis import hardware_signs
from muster.controller.diagnosis.explain.case import Case, Explanation, Why
from muster.text import size_text

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_AMOUNT = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"

# torch up to 2.2 writes `capacty`.
_FULL = re.compile(
    rf"CUDA out of memory\. Tried to allocate {_AMOUNT}\. GPU (\d+) has a total capaci?ty of {_AMOUNT} "
    rf"of which {_AMOUNT} is free"
)
_OWN = re.compile(rf"this process has {_AMOUNT} memory in use")
_OTHERS = re.compile(rf"Process \d+ has {_AMOUNT} memory in use")
_RESERVED = re.compile(rf"{_AMOUNT} is reserved by PyTorch but unallocated")


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _gpu_full(case: Case) -> Explanation | None:
    """CUDA out of memory: which process uses the memory, as far as the message of torch shows.

    Symptom (row 49): CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity
    Source: pytorch #16417, murong-xu/CADS #4 (text of torch 2.5), FoundationVision/GenerateU #10
    """
    text = case.first.message or case.first.summary
    found = _FULL.search(text)
    if found is None:
        return None
    wanted, total = _bytes(found[1], found[2]), _bytes(found[4], found[5])
    own = [_bytes(*part) for part in _OWN.findall(text)]
    # Without a number for this process, the one `Process N` may be itself, seen from outside its container.
    others = sum(_bytes(*part) for part in _OTHERS.findall(text)) if own else 0
    reserved = sum(_bytes(*part) for part in _RESERVED.findall(text))
    used = f"this rank uses {size_text(own[0])} of {size_text(total)}" if own else f"all {size_text(total)} is in use"
    where = f"GPU {found[3]} on {case.first.host}"
    if others > total // 20:
        return Explanation(
            sentence=f"{where} is out of memory: {used}, other processes use {size_text(others)}",
            fix=f"find them (on {case.first.host}: nvidia-smi); if they are other ranks, give each its own GPU: "
            f"{_USE_LOCAL_RANK}",
            row=49,
        )
    if reserved >= wanted:
        return Explanation(
            sentence=f"{where} is out of memory: {used}, of which {size_text(reserved)} is free but fragmented",
            fix="run again with `--env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`",
        )
    return Explanation(
        sentence=f"{where} is out of memory: {used}, and the rank requested {size_text(wanted)} more",
        fix="use a smaller batch, mixed precision, activation checkpointing or FSDP, which shards the state over ranks",
    )


def _in_kernel_log(case: Case) -> Explanation | None:
    """The kernel of a host logged that hardware failed while its ranks ran.

    Symptom (row 48): CUDA error: unspecified launch failure, and an Xid in the kernel log
    Source: NVIDIA's catalog of Xids; NVIDIA/open-gpu-kernel-modules #1151 for a line of the log
    """
    if hardware_signs.is_ordinary(case.first):
        return None
    seen = {end.host: sign for end in case.ends if (sign := hardware_signs.in_kernel_log(end))}
    host = case.first.host if case.first.host in seen else next(iter(seen), "")
    if not host:
        return None
    return Explanation(
        sentence=f"{seen[host]} on {host}, according to its kernel log",
        fix=f"run without {host} (--avoid-bad) and check it: muster check --deep -H {host}",
        row=48,
    )


_LAST_ERROR = re.compile(r"^Last error:[ \t]*\n?[ \t]*(\S.*)$", re.MULTILINE)

_USE_LOCAL_RANK = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'

_TEXTS = (
    (
        44,
        r"Duplicate GPU detected : rank (\d+) and rank (\d+) both on CUDA device (\w+)",
        "ranks {0} and {1} use the same GPU (PCI bus ID {2})",
        f"before init_process_group(), call {_USE_LOCAL_RANK}",
    ),
    (
        48,
        r"uncorrectable ECC error encountered",
        "a GPU on {host} has defective memory (uncorrectable ECC error)",
        "run without {host} and check it: muster check -H {host}",
    ),
    (
        48,
        r"GPU is lost|Unable to determine the device handle for GPU|GPU has fallen off the bus",
        "a GPU of {host} fell off the bus",
        "reboot {host}, or run without it (--avoid-bad)",
    ),
    (
        31,
        r"(?s)ibv_reg_mr\w* failed.*Cannot allocate memory",
        "InfiniBand on {host} cannot lock enough memory (limit memlock)",
        "muster check -H {host} shows the limit and how to raise it",
    ),
)
"""Row, text, explanation and fix."""


def _plain_text(case: Case) -> Explanation | None:
    """A GPU that two ranks share or whose memory is defective, or InfiniBand that cannot lock memory.

    Symptom (row 44): Duplicate GPU detected : rank 3 and rank 0 both on CUDA device f000
    Source: NVIDIA/Megatron-LM #661, verl #161, Intellindust-AI-Lab/DEIMv2 #155 (NCCL 2.28.9)
    Symptom (row 48): CUDA error: uncorrectable ECC error encountered
    Source: the CUDA runtime's text for cudaErrorECCUncorrectable
    Symptom (row 48): Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.
    Source: the text of NVML and nvidia-smi for NVML_ERROR_GPU_IS_LOST
    Symptom (row 31): Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory
    Source: NVIDIA/nccl-tests #206
    """
    for row, text, sentence, fix in _TEXTS:
        found = re.search(text, case.first.text)
        if found:
            groups, host = found.groups(), case.first.host
            return Explanation(sentence=sentence.format(*groups, host=host), fix=fix.format(host=host), row=row)
    return None


def _nccl_reason(case: Case) -> Explanation | None:
    """The reason that NCCL gives, below two lines of general text.

    Symptom: torch.distributed.DistBackendError: NCCL error in: …, unhandled system error
    Source: torch's NCCLUtils adds ncclGetLastError below `Last error:`
    """
    text = case.first.message or case.first.summary
    found = _LAST_ERROR.search(text)
    if found is None or "NCCL" not in text or case.first.is_symptom:
        return None
    return Explanation(
        sentence=f"NCCL reports: {found[1].strip()}",
        fix="run again with `--env NCCL_DEBUG=INFO` and read the log",
    )


ROWS: tuple[Why, ...] = (_in_kernel_log, _gpu_full, _plain_text, _nccl_reason)
