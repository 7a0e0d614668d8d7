"""From the raw facts of an agent to what a judge of hangs reads."""

from __future__ import annotations

from typing import Any

from messages import SELF_REPORT

from muster.controller.monitor.observation import groups_of, seen, works
from muster.controller.monitor.stack_text import clean, main_thread, short, training_thread, users_frame

STACK = """\
Thread 0x00007f7c58e734b0 pin_memory (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 355 in wait
  File "/home/me/env/lib/python3.12/site-packages/torch/utils/data/_utils/pin_memory.py", line 30 in do_one_step

Current thread 0x00007f7c58e734b1 (most recent call first):
  File "/home/me/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/env/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "<muster>/rank/torch_adapter.py", line 83 in init_process_group
  File "/home/me/model.py", line 12 in sync
  File "/home/me/train.py", line 88 in <module>
  File "<muster>/rank/script.py", line 116 in _run_target
  File "<string>", line 1 in <module>
"""


def facts(**more: Any) -> dict[str, Any]:
    return {
        "host": "a",
        "state": "S",
        "wchan": "",
        "cpu_seconds": 1.0,
        "io": 0,
        "switches": 0,
        "answered": True,
        "stack": STACK,
        "children": [],
        "recorder": {},
        "self_report": SELF_REPORT,
        **more,
    }


def child(pid: int, cpu: float) -> dict[str, Any]:
    return {"pid": pid, "cpu_seconds": cpu, "io": 0, "state": "S", "wchan": "", "command": "cc1", "stack": ""}


def test_the_main_thread_is_the_last_and_shows_none_of_muster():
    frames = main_thread(STACK)
    assert [frame.place for frame in frames] == [
        "distributed_c10d.py:3252",
        "c10d_logger.py:83",
        "model.py:12",
        "train.py:88",
    ]
    assert str(users_frame(frames)) == "sync (model.py:12)"
    assert str(frames[-1]) == "train.py:88"


def test_stacks_for_people_begin_with_the_main_thread():
    lines = clean(STACK).splitlines()
    assert lines[0] == "thread"
    assert lines[1].startswith('  File "/home/me/env')
    assert "muster" not in clean(STACK)
    assert lines[-3] == "thread pin_memory"


def test_a_program_that_is_all_installed_still_has_a_line():
    text = (
        "Thread 0x1 (most recent call first):\n"
        '  File "/env/lib/python3.12/site-packages/torch/nn/modules/module.py", line 5 in forward\n'
        '  File "/env/lib/python3.12/site-packages/theirs/train.py", line 7 in main\n'
        '  File "/usr/lib/python3.12/runpy.py", line 9 in _run_code\n'
    )
    assert str(users_frame(main_thread(text))) == "main (train.py:7)"


def test_a_program_that_trains_in_a_thread_is_seen_there():
    text = (
        "Thread 0x2 trainer (most recent call first):\n"
        '  File "/home/me/train.py", line 12 in fit\n\n'
        "Thread 0x1 MainThread (most recent call first):\n"
        '  File "/usr/lib/python3.12/threading.py", line 1169 in _wait_for_tstate_lock\n'
        '  File "/home/me/main.py", line 3 in <module>\n'
    )
    assert str(users_frame(training_thread(text))) == "fit (train.py:12)"


def test_no_stack_is_no_frame():
    assert main_thread("") == training_thread("") == ()
    assert users_frame(()) is None
    assert short(()) == []


def test_a_long_way_through_libraries_is_cut_on_the_screen():
    deep = "".join(f'  File "/usr/lib/python3.12/selectors.py", line {number} in select\n' for number in range(20))
    frames = main_thread(f"Thread 0x1 (most recent call first):\n{deep}" + '  File "/home/me/a.py", line 1 in f\n')
    lines = short(frames)
    assert len(lines) == 5
    assert lines[-1] == '  File "/home/me/a.py", line 1, in f'


# --- does it work? ------------------------------------------------------------------------------------------------


def test_a_rank_that_sleeps_does_not_work():
    assert not works([(0.0, facts()), (1.0, facts(cpu_seconds=1.01, io=900)), (2.0, facts(cpu_seconds=1.02, io=1800))])


def test_cpu_time_in_any_of_the_last_looks_is_work():
    assert works([(0.0, facts()), (1.0, facts(cpu_seconds=1.1)), (2.0, facts(cpu_seconds=1.1))])


def test_bytes_are_work():
    assert works([(0.0, facts()), (1.0, facts(io=1 << 20))])


def test_a_child_that_computes_is_work_also_if_it_is_new():
    assert works([(0.0, facts(children=[child(7, 5.0)])), (1.0, facts(children=[child(7, 5.5)]))])
    assert works([(0.0, facts()), (1.0, facts(children=[child(8, 0.5)]))])


def test_a_child_that_ended_takes_no_work_away():
    assert not works([(0.0, facts(children=[child(7, 5.0)])), (1.0, facts())])


def test_one_that_waits_for_the_cpu_works():
    assert works([(0.0, facts()), (1.0, facts(state="R"))])


def test_a_busy_gpu_is_work():
    assert works([(0.0, facts()), (1.0, facts())], gpu=0.9)
    assert not works([(0.0, facts()), (1.0, facts())], gpu=0.0)


def test_one_late_answer_does_not_count_against_a_rank():
    silent = facts(answered=False)
    assert seen(0, silent, [(0.0, facts()), (1.0, silent)], quiet=3).answered is True
    assert seen(0, silent, [(0.0, silent), (1.0, silent)], quiet=3).holds_lock
    stopped = facts(answered=False, state="T")
    assert not seen(0, stopped, [(0.0, stopped), (1.0, stopped)], quiet=3).holds_lock


# --- the recorder -------------------------------------------------------------------------------------------------


def record(number: int, **more: Any) -> dict[str, Any]:
    call = {"number": number, "op": "all_reduce", "sizes": [[4]], "types": ["Float"], "over": True, "time": 1.0}
    return {**call, "place": None, **more}


def test_the_recorder_is_read_by_group():
    place = ["/home/me/train.py", 88, "step"]
    told = {"0": {"ranks": [0, 1], "p2p": [], "calls": [record(7), record(8, over=False, place=place)]}}
    group = groups_of(told)["0"]
    assert (group.ranks, group.called) == ((0, 1), 8)
    assert group.pending is not None
    assert str(group.pending.place) == "step (train.py:88)"


def test_the_other_side_of_a_send_or_recv_is_a_number_in_its_group():
    told = {"1": {"ranks": [4, 6], "calls": [], "p2p": ["nccl:recv 0<-1", "nccl:coalesced"]}}
    assert groups_of(told)["1"].peers == (6,)


def test_a_re_created_group_counts_from_its_new_start():
    told = {"0": {"ranks": None, "p2p": [], "calls": [record(7, over=False), record(8), record(1), record(2)]}}
    group = groups_of(told)["0"]
    assert (group.called, group.pending) == (2, None)
