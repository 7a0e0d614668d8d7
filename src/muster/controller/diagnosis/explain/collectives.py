"""Failures of collectives: different models, shapes or calls, a rank that leaves or does not arrive. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from muster.controller.diagnosis.explain.case import Case, Explanation, Why, at, collective_of, users_place
from muster.text import count, rank_list

_DETAIL = "run again with `--env TORCH_DISTRIBUTED_DEBUG=DETAIL`, which shows the call and the shape on both ranks"

# --- the model ----------------------------------------------------------------------------------------------------

_COUNT_DIFFERS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
_SHAPE_DIFFERS = re.compile(
    r"params\[(\d+)\] in this process with sizes (\[[\d, ]*\]) appears not to match .*process (\d+)"
)


def _model_differs(case: Case) -> Explanation | None:
    """DDP compares the parameters of all ranks when it is created.

    Symptom (row 43): params[0] in this process with sizes [5, 4] appears not to match sizes of … in process 0
    Source: torch 2.13 with DDP on gloo, 2026-11-15
    """
    text = case.first.message or case.first.summary
    counts, shapes = _COUNT_DIFFERS.search(text), _SHAPE_DIFFERS.search(text)
    if counts is not None:
        what = f"rank {counts[1]} has {counts[2]} parameters, rank {counts[3]} has {counts[4]}"
    elif shapes is not None:
        what = f"parameter {shapes[1]} is {shapes[2]} on rank {case.first.rank}, but another shape on rank {shapes[3]}"
    else:
        return None
    return Explanation(
        sentence=f"the model differs between ranks: {what}",
        fix="build it from the same arguments on all ranks: look for sizes that depend on the data of a rank (number "
        "of classes, vocabulary) or for different versions of the code",
        row=43,
    )


# --- calls and shapes ---------------------------------------------------------------------------------------------

_PRINT = (
    r"CollectiveFingerPrint\(SequenceNumber=(\d+), OpType=(\w+)(?:, TensorShape=(\[[\d, ]*\]), TensorDtypes=(\w+))?"
)
_FINGERPRINTS = re.compile(
    rf"Rank (\d+) is running collective: {_PRINT}.*?but Rank (\d+) is running collective: {_PRINT}"
)


def _named_by_torch(case: Case) -> Explanation | None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL compares every call and reports both, in one line of 700 characters.

    Symptom (row 34): Detected mismatch between collectives on ranks. Rank 0 is running collective: …
    Source: torch 2.13 with TORCH_DISTRIBUTED_DEBUG=DETAIL on gloo, 2026-11-15
    """
    found = _FINGERPRINTS.search(case.first.message or case.first.summary)
    if found is None:
        return None
    one, number, op, shape, dtype, two, _, other_op, other_shape, other_dtype = found.groups()
    if op != other_op:
        return Explanation(
            sentence=f"rank {one} called {op}, but rank {two} called {other_op} (collective number {number})",
            fix=_SAME_CALLS,
            row=34,
        )
    return Explanation(
        sentence=f"the tensors passed to {op} differ: {dtype} {shape} on rank {one}, "
        f"{other_dtype} {other_shape} on rank {two}",
        fix=_SAME_SHAPES,
        row=35 if shape != other_shape else 36,
    )


_SAME_CALLS = "call the same collectives in the same order on all ranks: look for an `if rank == …` around one of them"

_SAME_SHAPES = (
    "use tensors of the same shape and dtype on all ranks: drop_last=True for the last batch, padding, one precision"
)

_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")


def _sizes_differ(case: Case) -> Explanation | None:
    """gloo aborts the process when a peer sends more bytes than this call expects.

    Symptom (row 35): op.preamble.length <= op.nbytes. 4000 vs 1000. Received data size doesn't match expected size
    Source: torch 2.13 on gloo, 2026-11-15: shapes and dtypes give the same text
    """
    found = _SIZES.search(case.first.text)
    if found is None:
        return None
    call = collective_of(case.first)
    if len(case.ends) == 2:
        # The data was sent for this very call, so the only other rank was in its own call of that number.
        other = next(((end, its) for end in case.waiting if (its := collective_of(end)) is not None), None)
        if call and other and other[1].name != call.name:
            return _different_calls({at(call): [case.first.rank], at(other[1]): [other[0].rank]})
    where = f" in {at(call)}" if call else ""
    return Explanation(
        sentence=f"another rank sent {found[1]} bytes, but rank {case.first.rank} expected {found[2]}{where}: the "
        "tensors differ in shape or dtype, or the ranks called different collectives",
        fix=f"{_DETAIL}; then {_SAME_SHAPES}",
        row=35,
    )


def _different_calls(by_call: Mapping[str, Sequence[int]], number: int | None = None) -> Explanation:
    """`ranks 0, 2 were in all_reduce at train.py:12, rank 1 in barrier at train.py:9`, the largest group first."""
    (call, most), *others = sorted(by_call.items(), key=lambda item: (-len(item[1]), min(item[1])))
    clauses = [f"{rank_list(most)} {'was' if len(most) == 1 else 'were'} in {call}"]
    clauses += [f"{rank_list(ranks)} in {call}" for call, ranks in others]
    as_number = f", all as their collective number {number}" if number else ""
    return Explanation(sentence=f"{', '.join(clauses)}{as_number}", fix=_SAME_CALLS, row=34)


# --- a rank that does not arrive ----------------------------------------------------------------------------------

_WAITED = re.compile(r"Timed out waiting (\d+)ms|ran for (\d+) milliseconds before timing out")

_STALE = 3.0
"""Seconds after which the last progress report of a rank is surely newer than the call that others waited in."""


def _nobody_came(case: Case) -> Explanation | None:
    """Ranks that waited in a collective until the timeout of their process group; gloo names no rank.

    Symptom (row 34): Timed out waiting 4000ms for recv operation; Watchdog caught collective operation timeout
    Source: torch 2.13 on gloo, 2026-11-15; NVIDIA/Megatron-LM #1207 for the text of NCCL
    """
    found = _WAITED.search(case.first.text)
    if found is None:
        return None
    seconds = int(found[1] or found[2]) / 1000
    if (different := _calls_of_one_number(case)) is not None:
        return different
    known = [end for end in case.ends if end.begun is not None]
    call = collective_of(case.first)
    me = f"rank {case.first.rank}"
    least = min((end.begun or 0 for end in known), default=0)
    late = [end for end in known if end.begun == least < (case.first.begun or 0)]
    if late and len(known) == len(case.ends) and seconds >= _STALE and not any(end.is_symptom for end in late):
        where = at(call) if call else "a collective"
        return Explanation(
            sentence=f"{rank_list([end.rank for end in late])} had called {count(least, 'collective')} and "
            f"did not reach number {case.first.begun}, {where}, where {me} waited for {seconds:g} s",
            fix=_look(seconds),
            row=37,
        )
    where = f" in {at(call)}" if call else ""
    return Explanation(
        sentence=f"{me} waited{where} for {seconds:g} s, the timeout of its process group; could not determine which "
        "rank did not arrive or called another collective",
        fix=_look(seconds),
        row=37,
    )


def _look(seconds: float) -> str:
    """How to find out more before the timeout of the process group."""
    sooner = max(1, min(10, int(seconds / 2)))
    return f"run again with `--hang-after {sooner}`: Muster then reports where every rank is before that timeout"


def _calls_of_one_number(case: Case) -> Explanation | None:
    """Ranks that failed in different calls with the same number, in the only process group of each rank."""
    inside = [(end, call) for end in case.waiting if end.begun and (call := collective_of(end)) is not None]
    for number in {end.begun for end, _ in inside}:
        by_call: dict[str, list[int]] = {}
        for end, call in inside:
            if end.begun == number:
                by_call.setdefault(at(call), []).append(end.rank)
        if len({words.split()[0] for words in by_call}) > 1:
            return _different_calls(by_call, number)
    return None


def _echo_of_different_calls(case: Case) -> Explanation | None:
    """The same, if the first failure is a rank that only lost its connection.

    Symptom (row 34): Connection closed by peer, while another rank timed out in another collective
    Source: torch 2.13 on gloo, 2026-11-15
    """
    return _calls_of_one_number(case) if case.first.is_echo else None


# --- a rank that leaves -------------------------------------------------------------------------------------------

_STORE = re.compile(r"^torch\.distributed\.Dist(Network|Store)Error|TCPStore|recvValue failed|sendBytes failed")

_END_TOGETHER = "end all ranks together: call dist.barrier() and dist.destroy_process_group() as the last lines"


def _left_early(case: Case) -> Explanation | None:
    """A rank ended with exit code 0 while others still needed it; gloo calls that `a remote worker crashing`.

    Symptom (row 41): Connection closed by peer. This is typically caused by a remote worker crashing
    Source: torch 2.13 on gloo, 2026-11-15, and a rank that ended with exit code 0
    """
    early, first = case.early, case.first
    if early is None:
        return None
    call = collective_of(first)
    where = f", {at(call)}" if call else ""
    if early.rank == 0 and _STORE.search(first.summary):
        return Explanation(
            sentence="rank 0 hosts the store (TCPStore) where ranks find each other, and rank 0 had already ended",
            fix=_END_TOGETHER,
            row=42,
        )
    if early.left == "exit":
        return Explanation(
            sentence=f"rank {early.rank} called sys.exit()" + (f" at {early.place}" if early.place else ""),
            fix="exit on all ranks together: decide on one rank and broadcast the decision, or raise an error",
            row=41,
        )
    if early.left != "end":
        return Explanation(
            sentence=f"rank {early.rank} ended without an error before the end of its script: something called "
            "os._exit(0) or exit(0) in C",
            fix="look for os._exit in the script and in the modules it imports",
            row=41,
        )
    if early.begun is not None and first.begun is not None and early.begun < first.begun:
        return Explanation(
            sentence=f"rank {early.rank} reached the end of its script after {count(early.begun, 'collective')}, but "
            f"rank {first.rank} continued to number {first.begun}{where}: rank {early.rank} probably had fewer batches",
            fix="use the same number of batches on all ranks: DistributedSampler(..., drop_last=True), or "
            "`with torch.distributed.algorithms.join.Join([model]):` around the loop",
            row=40,
        )
    return Explanation(
        sentence=f"rank {early.rank} reached the end of its script while rank {first.rank} was still in a collective"
        f"{where}: it left before its peers had finished, or its tensor had another shape or dtype",
        fix=f"{_END_TOGETHER}; {_DETAIL}",
        row=42,
    )


# --- an exception in an exception ---------------------------------------------------------------------------------

_WORKER = re.compile(r"Caught \w+ in (DataLoader worker process \d+)\.\s+Original Traceback", re.DOTALL)


def _worker_raised(case: Case) -> Explanation | None:
    """An exception of a DataLoader worker; its first line is about the worker, not about the error.

    Symptom (row 47): ValueError: Caught ValueError in DataLoader worker process 0.
    Source: torch 2.13, torch/_utils.py, ExceptionWrapper
    """
    text = case.first.traceback or case.first.message  # long messages are truncated
    found = _WORKER.search(text)
    lines = [line for line in text.splitlines() if line[:1].strip()]
    if found is None or not lines:
        return None
    place = users_place(text)
    return Explanation(
        sentence=f"{found[1]} raised {lines[-1].strip()}" + (f" ({place})" if place else ""),
        fix="set num_workers=0 to load the data in the rank itself, where a debugger can stop",
        row=47,
    )


ROWS: tuple[Why, ...] = (
    _model_differs,
    _named_by_torch,
    _sizes_differ,
    _left_early,
    _nobody_came,
    _echo_of_different_calls,
    _worker_raised,
)
