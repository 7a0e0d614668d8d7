"""What torch, numpy and Python really say when a job fails, as they said it.

Produced with torch 2.13.0+cpu on gloo, Python 3.11 and Linux 6.18 on 2026-11-15, but for those of CUDA and NCCL, which
are from public reports, named at each.
"""

from __future__ import annotations

GLOO = "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
PACKAGES = "/opt/env/lib/python3.11/site-packages"

CLOSED = (
    f"[{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:20644. This is typically caused by a remote worker "
    "crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
)
RESET = (
    f"[{GLOO}/pair.cc:537] Read error [127.0.0.1]:5262: Connection reset by peer. This is typically caused by a remote "
    "worker hanging or bugs in the application. Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
)
RECV_TIMEOUT = f"[{GLOO}/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"
SEND_TIMEOUT = f"[{GLOO}/unbound_buffer.cc:129] Timed out waiting 4000ms for send operation to complete"


def in_collective(name: str, line: int, words: str) -> str:
    """The traceback of a rank that failed in a collective."""
    return (
        "Traceback (most recent call last):\n"
        f'  File "/home/me/train.py", line {line}, in <module>\n'
        f"    dist.{name}(t)\n"
        f'  File "{PACKAGES}/torch/distributed/c10d_logger.py", line 83, in wrapper\n'
        "    return func(*args, **kwargs)\n"
        "           ^^^^^^^^^^^^^^^^^^^^^\n"
        f'  File "{PACKAGES}/torch/distributed/distributed_c10d.py", line 3252, in {name}\n'
        "    work.wait()\n"
        f"RuntimeError: {words}\n"
    )


# --- sizes, types and calls that differ ----------------------------------------------------------------------------

SIZES_ABORT = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    f"  what():  [enforce fail at {GLOO}/pair.cc:456] op.preamble.length <= op.nbytes. 4000 vs 1000. Received data "
    "size doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
    "Fatal Python error: Aborted\n"
    "Thread 0x00007f538effd6c0 (most recent call first):\n"
    '  File "/root/.pyenv/versions/3.11.7/lib/python3.11/threading.py", line 982 in run\n'
    '  File "/root/.pyenv/versions/3.11.7/lib/python3.11/threading.py", line 1002 in _bootstrap\n'
    "Thread 0x00007f53b7408b80 (most recent call first):\n"
    f'  File "{PACKAGES}/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
    f'  File "{PACKAGES}/torch/distributed/c10d_logger.py", line 83 in wrapper\n'
    '  File "/home/me/train.py", line 9 in <module>'
)


def _fingerprint(rank: int, op: str, shape: str, dtype: str) -> str:
    options = (
        "TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )
    return (
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType={op}, "
        f"TensorShape={shape}, TensorDtypes={dtype}, TensorDeviceTypes={options})"
    )


def detail(one: tuple[str, str, str], two: tuple[str, str, str], aspects: str) -> str:
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL says of two calls that differ."""
    return (
        f"Detected mismatch between collectives on ranks. {_fingerprint(0, *one)}, but {_fingerprint(1, *two)}."
        f"Collectives differ in the following aspects: \t {aspects}"
    )


DETAIL_SHAPES = detail(("ALLREDUCE", "[4]", "Float"), ("ALLREDUCE", "[2]", "Float"), "Tensor Tensor shapes: 4vs 2")
DETAIL_TYPES = detail(
    ("ALLREDUCE", "[3]", "Float"), ("ALLREDUCE", "[3]", "Double"), "Tensor Tensor dtypes: Floatvs Double"
)
DETAIL_CALLS = detail(("ALLREDUCE", "[1]", "Float"), ("BROADCAST", "[1]", "Float"), "Op type: ALLREDUCEvs BROADCAST")
MONITORED = "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 4000 ms"

# --- the model -----------------------------------------------------------------------------------------------------

MODEL_SHAPE = (
    "[1]: params[0] in this process with sizes [5, 4] appears not to match sizes of the same param in process 0."
)
MODEL_COUNT = (
    "DDP expects same model across all ranks, but Rank 1 has 2 params, while rank 0 has inconsistent 1 params."
)
UNUSED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that "
    "your module has parameters that were not used in producing loss."
)

# --- disks ---------------------------------------------------------------------------------------------------------

TORN_MESSAGE = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
TORN_TRACE = (
    "Traceback (most recent call last):\n"
    f'  File "{PACKAGES}/torch/serialization.py", line 1312, in _save\n'
    "    zip_file.write_record(name, storage, num_bytes)\n"
    "RuntimeError: basic_ios::clear: iostream error\n"
    "\nDuring handling of the above exception, another exception occurred:\n\n"
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 7, in <module>\n'
    '    torch.save({"w": big}, path)\n'
    f'  File "{PACKAGES}/torch/serialization.py", line 834, in __exit__\n'
    "    self.file_like.write_end_of_file()\n"
    f"RuntimeError: {TORN_MESSAGE}\n"
)
ENOSPC = "[Errno 28] No space left on device"
LEGACY_ENOSPC = "write(): fd 3 failed with No space left on device"
NUMPY_SHORT = "2000000 requested and 1310688 written"
QUOTA = "[Errno 122] Disk quota exceeded: '/home/me/out.bin'"
DCP = (
    "CheckpointException ranks:dict_keys([0])\nTraceback (most recent call last): (RANK 0)\n"
    f'  File "{PACKAGES}/torch/distributed/checkpoint/filesystem.py", line 346, in _write_item\n'
    f"    torch.save(data, transform_to)\nRuntimeError: {TORN_MESSAGE}\n"
)

# --- shared memory and DataLoader workers --------------------------------------------------------------------------


def worker_raised(kind: str, words: str) -> str:
    """What a rank says of an exception in a DataLoader worker."""
    return (
        f"Caught {kind} in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        f'  File "{PACKAGES}/torch/utils/data/_utils/worker.py", line 374, in _worker_loop\n'
        "    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]\n"
        '  File "/home/me/data.py", line 7, in __getitem__\n'
        "    return self.read(i)\n"
        f"{kind}: {words}\n"
    )


SHM_FULL = worker_raised(
    "RuntimeError",
    "unable to allocate shared memory(shm) for file </torch_29795_182217010_0>: No space left on device (28)",
)
BAD_SAMPLE = worker_raised("ValueError", "bad sample 5")


def worker_died(how: str) -> str:
    """The traceback of a rank that lost a DataLoader worker."""
    return (
        "Traceback (most recent call last):\n"
        f'  File "{PACKAGES}/torch/utils/data/_utils/signal_handling.py", line 73, in handler\n'
        "    _error_if_any_worker_fails()\n"
        f"RuntimeError: DataLoader worker (pid 30105) {how}\n"
        "\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 24, in main\n'
        "    for batch in loader:\n"
        f'  File "{PACKAGES}/torch/utils/data/dataloader.py", line 1304, in _try_get_data\n'
        "    raise RuntimeError(\n"
        "RuntimeError: DataLoader worker (pid(s) 30105) exited unexpectedly\n"
    )


WORKER_DIED = "DataLoader worker (pid(s) 30105) exited unexpectedly"
KILLED = "is killed by signal: Killed. "
BUS_ERROR = (
    "is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to "
    "raise your shared memory limit."
)
SEGMENTATION_FAULT = "is killed by signal: Segmentation fault. "
NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "400000000000000 bytes. Error code 12 (Cannot allocate memory)"
)

# --- CUDA and NCCL, from public reports ----------------------------------------------------------------------------

# the words of murong-xu/CADS #4, with other figures
CUDA_FRAGMENTED = (
    "CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 31.47 GiB of which 2.73 GiB is "
    "free. Including non-PyTorch memory, this process has 28.73 GiB memory in use. Of the allocated memory 19.08 GiB "
    "is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
# pytorch #16417
CUDA_FULL = (
    "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is "
    "free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of the allocated memory 22.90 GiB "
    "is allocated by PyTorch, and 14.87 MiB is reserved by PyTorch but unallocated."
)
# FoundationVision/GenerateU #10: the one process named is the rank itself, seen from outside its container
CUDA_FULL_FROM_OUTSIDE = (
    "CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 MiB is "
    "free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by PyTorch, and "
    "330.42 MiB is reserved by PyTorch but unallocated."
)
# both sentences of torch's text at once, with figures of our own
CUDA_SHARED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.13 GiB is "
    "free. Process 4711 has 60.02 GiB memory in use. Including non-PyTorch memory, this process has 18.00 GiB memory "
    "in use. Of the allocated memory 17.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but "
    "unallocated."
)
# NVIDIA/Megatron-LM #661
NCCL_DUPLICATE = (
    "NCCL error in: /opt/pytorch/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1727, invalid usage (run "
    "with NCCL_DEBUG=WARN for details), NCCL version 2.19.3\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
    "Duplicate GPU detected : rank 3 and rank 0 both on CUDA device f000"
)
NCCL_SYSTEM = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled system error (run with NCCL_DEBUG=INFO "
    "for details), NCCL version 2.20.5\nncclSystemError: System call (e.g. socket, malloc) or external library call "
    "failed or device error. \nLast error:\nsocketStartConnect: Connect to 10.0.0.2<43519> failed : Software caused "
    "connection abort"
)
# NVIDIA/nccl-tests #166
NCCL_SHM = (
    "ubuntu:9621:9691 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes"
)
# NVIDIA/Megatron-LM #1207
WATCHDOG = (
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds "
    "before timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'"
)
