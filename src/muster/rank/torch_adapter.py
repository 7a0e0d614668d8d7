"""Every private name of torch that Muster uses, in one place; `tests/lab/test_torch_adapter.py` tests them."""

from __future__ import annotations

import sys

from . import kept_errors
from .graph_capture import Captures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType
    from typing import Any

    from ..shared.reports import RecordedCall, RecordedGroup

    Entry = dict[str, Any]
    """A call in torch's flight recorder."""

C10D = "torch.distributed.distributed_c10d"
OPTIMIZER = "torch.optim.optimizer"

_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Flight recorders: gloo's (in future versions every backend's), and NCCL's own."""

_NCCL = "_dump_nccl_trace"
_FULL_RECORDERS = ("_dump_fr_trace", _NCCL)
"""The same with the recorded calls."""

_captures = Captures()


def collectives_begun() -> int:
    """How many collectives have been called; exact, whereas the count of finished ones lags slightly behind."""
    return sum(begun for begun, _ in group_numbers().values())


def group_numbers() -> dict[str, tuple[int, int]]:
    """By process group, the numbers of the last collective called and the last one finished, from the flight recorders.

    Groups are numbered in the order in which this process created them, so another rank's group 1 may be a different
    group. Sends and receives are counted once a collective follows them. Empty without collectives or a recorder.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")  # without it, there were no collectives
    if c10d is None:
        return {}
    import json

    found: dict[str, tuple[int, int]] = {}
    for name in _RECORDERS:
        dump: Callable[..., str | bytes] | None = vars(c10d).get(name)
        if dump is None:
            continue
        try:
            status: dict[str, dict[str, str]] = json.loads(dump(includeCollectives=False)).get("pg_status") or {}
            for group, state in status.items():
                begun, finished = int(state["last_enqueued_collective"]), int(state["last_completed_collective"])
                before = found.get(group, (0, 0))
                found[group] = max(before[0], begun), max(before[1], finished)
        except Exception as error:  # a changed recorder format must not disturb the script
            kept_errors.keep("reading the counters of the flight recorder", error)
    return {group: numbers for group, numbers in found.items() if numbers[0] > 0}


def why_unwatched() -> str:
    """Why the progress of collectives is not available in this process; empty if it is."""
    import json
    import os

    c10d = sys.modules.get("torch._C._distributed_c10d")
    torch = sys.modules.get("torch")
    dumps = [vars(c10d)[name] for name in _RECORDERS if name in vars(c10d)] if c10d is not None else []
    if not dumps:
        return f"torch {getattr(torch, '__version__', '')} has no flight recorder that Muster supports"
    try:
        known = any("pg_status" in json.loads(dump(includeCollectives=False)) for dump in dumps)
    except Exception:
        known = False
    if not known:
        version = getattr(torch, "__version__", "")
        return f"the flight recorder of torch {version} has a format that Muster does not support"
    return f"{_RECORDED}=0 disables torch's flight recorder" if os.environ.get(_RECORDED) == "0" else ""


def recorder_tail(length: int, is_users: Callable[[str], bool]) -> dict[str, RecordedGroup] | None:
    """The last collectives of each process group by its name, which is the same on all its ranks.

    Each has its number, operation, sizes, types, whether it has finished, when and possibly where it was called. Takes
    40 ms for a full recorder of 2000 calls, so it is used only if a hang is suspected. Empty without a recorder, None
    while a CUDA graph is captured.
    """
    # The lines of the calls would make torch import its compiler, a second of CPU that the script did not ask for.
    places = "torch._dynamo.convert_frame" in sys.modules
    found: dict[str, RecordedGroup] = {}
    collectives: dict[str, list[Entry]] = {}
    members = _members()
    for name in _FULL_RECORDERS:
        try:
            entries = _entries(name, places)
            if entries is None:
                return None
            for entry in _settled(entries) if name == _NCCL else entries:
                key = str(entry["process_group"][0])
                empty: RecordedGroup = {"id": str(entry["pg_id"]), "calls": [], "p2p": [], "ranks": members.get(key)}
                group = found.setdefault(key, empty)
                if not entry.get("is_p2p"):
                    collectives.setdefault(key, []).append(entry)
                elif not _over(entry):
                    group["p2p"].append(entry["profiling_name"])  # `nccl:recv 1<-0`; gloo records none
        except Exception as error:
            kept_errors.keep("reading the last collectives", error)
    for key, calls in collectives.items():
        # Keep unfinished calls however old they are, because the rank waits in them.
        old = [call for call in calls[:-length] if not _over(call)]
        found[key]["calls"] = [_call(call, is_users) for call in [*old[:length], *calls[-length:]]]
    return found


def _entries(name: str, places: bool) -> Sequence[Entry] | None:
    """All calls in a recorder, oldest first; None while a CUDA graph is captured."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    dump: Callable[..., bytes] | None = vars(c10d).get(name) if c10d is not None else None
    if dump is None:
        return ()
    from pickle import loads

    dumped = _captures.read(lambda: dump(includeStackTraces=places))
    # The recorder's own format is a pickle, created by this process.
    return loads(dumped).get("entries", ()) if dumped is not None else None


def hold_back_while_capturing() -> None:
    """Do not read recorders while a CUDA graph is captured, which would invalidate the capture (graph_capture.py)."""
    if not hasattr(sys.modules.get("torch._C._distributed_c10d"), _NCCL):
        return
    try:
        # torch.cuda.graph and torch.compile use this class; torch.accelerator's is newer.
        _captures.guard(vars(sys.modules["torch.cuda.graphs"])["CUDAGraph"])
        if "torch.accelerator.graphs" in sys.modules:
            _captures.guard(vars(sys.modules["torch.accelerator.graphs"])["Graph"])
    except (KeyError, AttributeError, TypeError):
        pass  # `recent_calls` then skips NCCL's recorder


def _settled(entries: Sequence[Entry]) -> list[Entry]:
    """NCCL's calls without the parts of coalesced collectives, and with calls that must be complete marked as such.

    torch never updates the state of a part (`_broadcast_oop` of an uneven all_gather, a send or recv of
    batch_isend_irecv), only that of the coalesced call that follows its parts with the same number. The collectives
    and batches of a group run in order, so those before a completed one are complete; single sends and recvs are not.
    """
    kept: list[Entry] = []
    over: set[int] = set()
    numbers: set[tuple[int, str, int]] = set()
    for entry in reversed(entries):
        group, is_p2p = entry["pg_id"], bool(entry.get("is_p2p"))
        key = "p2p_seq_id" if is_p2p else "collective_seq_id"
        number = (group, key, entry[key])
        is_part = number in numbers
        if not is_p2p or entry["profiling_name"].endswith("coalesced"):
            numbers.add(number)
        if not is_p2p or number in numbers:
            if _over(entry):
                over.add(group)
            elif group in over:
                entry["state"] = "completed"
        if is_p2p or not is_part:
            kept.append(entry)
    return kept[::-1]


def _over(entry: Entry) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _call(entry: Entry, is_users: Callable[[str], bool]) -> RecordedCall:
    users = (frame for frame in entry.get("frames") or () if is_users(frame["filename"]))
    return {
        "number": entry["collective_seq_id"],
        "op": entry["profiling_name"].rpartition(":")[2],
        "sizes": entry.get("input_sizes") or [],
        "types": entry.get("input_dtypes") or [],
        "over": _over(entry),
        "time": entry["time_created_ns"] / 1e9,
        "place": next(((frame["filename"], frame["line"], frame["name"]) for frame in users), None),
    }


def _members() -> dict[str, list[int]]:
    """The ranks of each process group that this process is in, by group name."""
    try:
        world: Any = vars(sys.modules[C10D])["_world"]
        ranks = world.pg_group_ranks
        return {name: sorted(ranks[group]) for group, name in world.pg_names.items()}
    except Exception as error:
        kept_errors.keep("reading the members of process groups", error)
        return {}


def peer_of(frame: FrameType) -> int | None:
    """The rank that a frame of torch's `send` or `recv` waits for; None for other frames."""
    code = frame.f_code
    key = {"recv": "src", "irecv": "src", "send": "dst", "isend": "dst"}.get(code.co_name)
    if key is None or frame.f_globals.get("__name__") != C10D:
        return None
    peer = frame.f_locals.get(key)
    return peer if isinstance(peer, int) else None


_RECORDED = "TORCH_FR_BUFFER_SIZE"


def recent_calls() -> dict[str, list[list[float]]]:
    """The recorded collectives by group name: number, time of the call, and duration in seconds if measured.

    NCCL measures durations with TORCH_NCCL_ENABLE_TIMING=1, gloo never does. NCCL's calls are skipped if captures of
    CUDA graphs are not tracked, and while one is active.
    """
    found: dict[str, list[list[float]]] = {}
    for name in _FULL_RECORDERS:
        if name == _NCCL and not _captures.is_guarded:
            continue  # reading twice a second would sooner or later collide with a capture
        try:
            for entry in _entries(name, places=False) or ():
                if not entry.get("is_p2p"):
                    call = [entry["collective_seq_id"], entry["time_created_ns"] / 1e9]
                    if entry.get("duration_ms") is not None:
                        call.append(entry["duration_ms"] / 1e3)
                    found.setdefault(str(entry["process_group"][0]), []).append(call)
        except Exception as error:  # a changed recorder format must not disturb the script
            kept_errors.keep("reading the times of collectives", error)
    return found


def count_steps(steps: list[int], made: deque[tuple[int, float, float]]) -> None:
    """Count the steps of all optimizers in `steps[0]`, and append number, begin and end of each to `made`.

    `steps[1]` counts steps of the training loop: in a loop that steps several optimizers, all of these are one step.
    """
    optimizer = sys.modules.get(OPTIMIZER)
    register: Callable[..., Any] | None = getattr(optimizer, "register_optimizer_step_post_hook", None)
    register_before: Callable[..., Any] | None = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    is_compiling: Callable[[], bool] | None = getattr(sys.modules.get("torch.compiler"), "is_compiling", None)
    if register is None or register_before is None or is_compiling is None:
        return
    from time import time

    begun = [0.0]
    stepped = set[int]()  # the optimizers that have stepped in this step of the loop

    # An error here would be raised from the user's `step`; without the hook, steps are merely not counted.
    def begin(*unused: Any) -> None:
        try:
            if not is_compiling():
                begun[0] = time()
        except Exception:
            pass

    def count(optimizer: Any, *unused: Any) -> None:
        try:
            if not is_compiling():  # otherwise a compiled optimizer would be recompiled for every number
                steps[0] += 1
                if not stepped or id(optimizer) in stepped:
                    steps[1] += 1
                    stepped.clear()
                stepped.add(id(optimizer))
                made.append((steps[0], begun[0], time()))
        except Exception:
            pass

    register_before(begin)
    register(count)


def count_all_steps(steps: list[int]) -> Callable[[], None]:
    """Count the steps of all optimizers in `steps[0]`, for a rank that has no process group; returns what ends it."""
    optimizer = sys.modules.get(OPTIMIZER)
    register: Callable[..., Any] | None = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None:
        return lambda: None

    # An error here would be raised from the user's `step`.
    def count(*unused: Any) -> None:
        try:
            if not sys.modules["torch.compiler"].is_compiling():
                steps[0] += 1
        except Exception:
            pass

    return register(count).remove


def count_saves(saves: list[int]) -> None:
    """Count in `saves[0]` the files that `torch.save` has written, to know whether there is a new checkpoint.

    Counted when torch drops its writer: a wrapper around the end of the writing would appear in tracebacks.
    """
    import weakref

    serialization = sys.modules.get("torch.serialization")
    writing: set[weakref.ref[Any]] = set()

    def written(ref: weakref.ref[Any]) -> None:
        writing.discard(ref)
        saves[0] += 1

    for name in ("_open_zipfile_writer_file", "_open_zipfile_writer_buffer"):
        writer: Any = getattr(serialization, name, None)
        enter: Callable[[Any], Any] | None = getattr(writer, "__enter__", None)
        if enter is None:
            continue

        def begin(self: Any, enter: Callable[[Any], Any] = enter) -> Any:
            try:
                if not hasattr(self, "buffer") or self.buffer.fileno() > 2:  # not into memory
                    writing.add(weakref.ref(self, written))
            except Exception:
                pass
            return enter(self)

        writer.__enter__ = begin


def reseed() -> None:
    """Give a forked rank fresh random state, as a new interpreter would have; `random` reseeds itself."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(None)


def set_threads(env: Mapping[str, str]) -> None:
    """Set the thread counts of torch and OpenBLAS, which read them when the zygote loaded them."""
    torch = sys.modules.get("torch")
    omp = _number(env.get("OMP_NUM_THREADS"))
    if torch is not None and omp:
        import os

        torch.set_num_threads(min(omp, len(os.sched_getaffinity(0))))  # torch's own limit
    blas = _number(env.get("OPENBLAS_NUM_THREADS")) or omp
    if "numpy" in sys.modules and blas:
        _set_openblas_threads(blas)


def read_debug_level() -> None:
    """Have torch.distributed read TORCH_DISTRIBUTED_DEBUG again."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and hasattr(distributed, "set_debug_level_from_env"):
        distributed.set_debug_level_from_env()


def _number(text: str | None) -> int:
    """The first number of `4` or `4,2` (nested levels); 0 if invalid, as in libgomp."""
    first = (text or "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _set_openblas_threads(count: int) -> None:
    import ctypes

    with open("/proc/self/maps") as file:
        libraries = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if "openblas" in line}
    for path in libraries:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue  # the file has been replaced since
        for prefix in ("", "scipy_"):
            for suffix in ("", "64_", "_64"):
                function = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if function is not None:
                    function(count)


def is_safe_to_fork() -> str:
    """Why a process that has imported torch must not fork ranks; empty if it may."""
    import os
    from threading import active_count

    threads = len(os.listdir("/proc/self/task"))
    if threads > 1 or active_count() > 1:
        return f"{threads} threads are running after the imports"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialized after the imports"
    return ""
