"""A valid message of every kind, and a short way to give one to a subscriber."""

from __future__ import annotations

from typing import Any

from muster.controller.events import EventStream, Guard
from muster.controller.links.link import AgentLink
from muster.shared.wire import VERSION

Fields = dict[str, Any]

RECORDED: Fields = {"number": 1, "op": "all_reduce", "sizes": [[2, 3]], "types": ["Float"], "over": False, "time": 1.0}
RECORDER: Fields = {
    "0": {"id": "0", "calls": [{**RECORDED, "place": ["t.py", 3, "f"]}], "p2p": ["nccl:recv 1<-0"], "ranks": [0, 1]}
}
MEETING: Fields = {"at": "10.0.0.1:29500", "size": 2, "rank": None}
PROCESS: Fields = {
    "state": "S",
    "wchan": "futex",
    "cpu_seconds": 1.5,
    "io": 3,
    "switches": 4,
    "command": "python",
    "stack": "",
}
SELF_REPORT: Fields = {
    "groups": {"0": [2, 1]},
    "steps": 3,
    "moved": 1.0,
    "place": "t.py:3 in f",
    "joining": False,
    "peer": None,
    "work": None,
    "meeting": MEETING,
}
GPU: Fields = {"index": 0, "name": "H100", "use": 0.5, "memory_used": None, "throttled": ""}
USE: Fields = {
    "cpu": 1.0,
    "cpu_wait": 0,
    "cpus": 4,
    "disk": 0.0,
    "read": 12,
    "throttled": 0.0,
    "throttles": 0.0,
    "quota": None,
    "neighbor": {"pid": 7, "name": "stress", "cpu": 0.9, "on": 3},
}
DISK: Fields = {
    "path": "/a/b",
    "folder": "/a",
    "free": 1,
    "total": 2,
    "inodes": None,
    "kind": "ext4",
    "point": "/",
    "failed": False,
}
FACTS: Fields = {
    "memory": {"group_kills": None, "host_kills": 1, "limit": None, "peak": None, "total": 4},
    "inside": "",
    "disks": [DISK],
    "shm": None,
    "kernel": ["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."],
    "gpus": ["0000:3b:00.0"],
}
UP: Fields = {
    "t": "up",
    "protocol": VERSION,
    "place": "boot net",
    "time": 1.0,
    "python": "/usr/bin/python3",
    "version": [3, 11],
    "torch": None,
    "cpus": 4,
    "gpus": 0,
    "visible": None,
    "omp": None,
    "interfaces": [{"name": "eth0", "addresses": ["10.0.0.1"], "loopback": False}],
}

ASK: Fields = {
    "env": {},
    "cwd": "/code",
    "script": "t.py",
    "code": ["t.py"],
    "master": None,
    "paths": [],
    "peers": {"b": ["10.0.0.2"]},
}

REQUESTS: dict[str, Fields] = {
    "session": {"lease": 5.0, "name": "muster-1", "secret": "s", "boxed": False, "wait": 6.0},
    "ping": {"sent": 1.0, "got": 1, "clock": 2.0, "heard": 1.5},
    "renew": {"job": "j", "lease": 20.0, "environ": {"A": "1"}, "stdin": False},
    "memory": {},
    "compare": {"cwd": "/code", "script": "t.py", "digest": [1, 2], "imports": ["torch"]},
    "unpack": {"piece": "AA==", "last": True},
    "probe": {"probes": [{"name": "cpus", "probe": "process_limits.cpus", "limit": 3.0}], "ask": ASK},
    "listen": {"port": 0, "nonce": "abc"},
    "dial": {"targets": [{"host": "b", "address": "10.0.0.2", "port": 1, "nonce": "abc"}]},
    "hold": {"whom": "store"},
    "another_port": {"port": 0},
    "prepare": {
        "env": {"A": "1"},
        "cwd": "/code",
        "preload": ["torch"],
        "kind": "script",
        "target": "t.py",
        "args": ["-x"],
        "path": [["/a"], []],
        "grace": 5,
        "keep": False,
    },
    "call": {"piece": "AA==", "last": False},
    "start": {"ranks": [{"rank": 0, "env": {"RANK": "0"}}], "leader": True, "store": False, "fed": None},
    "signal": {"number": 10},
    "notices": {"command": "aws", "sigterm": True},
    "deadline": {"time": 1.5, "signal": 10},
    "stacks": {"deep": True},
    "examine": {"ranks": [0], "seconds": 1.5},
    "stop": {"grace": 5.0, "interrupt": False},
    "stdin": {"piece": "", "last": True},
    "read_results": {"what": "find", "names": ["out/*.pt"]},
    "more_results": {},
    "bye": {"code": 0},
}

REPLIES: dict[str, Fields] = {
    "renew": {
        "facts": {name: value for name, value in UP.items() if name not in ("t", "protocol", "place")},
        "zygote": True,
    },
    "memory": {"bytes": 3},
    "compare": {"cwd": True, "script": "same", "missing": ""},
    "unpack": {"problem": "", "folder": "/code"},
    "probe": {"answers": {"cpus": {"value": 4, "seconds": 0.1}, "disk": {"hung": 3.0}}},
    "listen": {"problem": "", "owner": None, "port": 1, "own_name": ["10.0.0.1"]},
    "dial": {"results": [{"host": "b", "address": "10.0.0.2", "port": 1, "nonce": "abc", "problem": ""}]},
    "hold": {"port": 1},
    "another_port": {"problem": "taken", "owner": "pid 3", "port": 0},
    "prepare": {"unsafe": "", "error": "", "module": "", "missing": "", "traceback": "", "facts": FACTS},
    "call": {"problem": ""},
    "start": {"problem": ""},
    "signal": {},
    "notices": {},
    "deadline": {"ranks": [0, 1], "unheard": [1]},
    "stacks": {
        "ranks": {
            "0": {
                **PROCESS,
                "answered": True,
                "self_report": SELF_REPORT,
                "recorder": RECORDER,
                "children": [{"pid": 9, **PROCESS}],
            }
        }
    },
    "examine": {"ranks": {"0": USE}, "queues": {"10.0.0.2": 100}, "gpus": [GPU]},
    "stop": {"left": [12]},
    "stdin": {"closed": False},
    "read_results": {},
    "more_results": {
        "files": [{"path": "out/a.pt", "size": 3, "mtime_ns": 1}],
        "path": "",
        "piece": "",
        "problem": "",
        "over": False,
    },
}

EVENTS: dict[str, Fields] = {
    "up": UP,
    "pong": {"sent": 1.0, "time": 2.0, "got": 3},
    "new_zygote": {"why": "torch has changed"},
    "failed": {"error": "OSError: x", "traceback": ""},
    "unseen": {"what": "where a rank is", "why": "OSError", "traceback": ""},
    "out": {"rank": 0, "stream": 1, "text": "x\n"},
    "prompt": {"rank": 0, "stream": 1},
    "exit": {
        "rank": 0,
        "status": -9,
        "time": 1.0,
        "rss": 3,
        "stopped_at": None,
        "stdin": False,
        "facts": FACTS,
    },
    "signal": {"number": 15, "ranks": [0]},
    "notice": {"left": 30.0, "why": "SIGTERM"},
    "broken": {},
    "storeless": {"pid": 3, "status": -9},
    "gauges": {
        "time": 1.0,
        "host": {"load": 0.5, "memory_used": 1, "memory_total": 2, "gpus": [GPU]},
        "ranks": {
            "0": {
                "pid": 3,
                "state": "S",
                "cpu": None,
                "cpu_seconds": 1,
                "memory": 4,
                "gpu_memory": None,
                "read_bytes": 0,
                "write_bytes": 0,
            }
        },
    },
}

REPORTS: dict[str, Fields] = {
    "exception": {
        "summary": "ValueError: bad",
        "message": "bad",
        "done": 2,
        "traceback": "...",
        "place": "t.py:3",
        "groups": {"0": [2, 1]},
        "calls": RECORDER,
        "paths": ["/a"],
    },
    "sysexit": {"place": "t.py:3", "text": ""},
    "left": {"how": "end", "place": "", "groups": {}},
    "progress": {
        "done": 2,
        "first": True,
        "waiting": None,
        "saves": 1,
        **{name: SELF_REPORT[name] for name in ("groups", "moved")},
    },
    "arrivals": {"at": 1.0, "groups": {"0": [[1, 0.5], [2, 0.25, 0.1]]}, "steps": [[1, 0.5, 0.25]]},
    "unwatched": {"why": "torch has no flight recorder", "traceback": ""},
    "log": {"text": "started rank 0, process 4711"},
    "late": {"names": ["OMP_NUM_THREADS"]},
    "held": {"limit": 60.0},
    "released": {},
    "piece": {"piece": "AA=="},
    "returned": {},
    "raised": {},
    "sampling": {"thread": 12},
    "imports_torch": {},
    "answer": {
        "deep": True,
        "taken": False,
        "stack": "...",
        "recorder": None,
        **{name: value for name, value in SELF_REPORT.items() if name != "work"},
    },
    "marked": {},
    "moved": {"moved": True, "stuck": False},
}

ORDERS: dict[str, Fields] = {"rank": {"rank": 0, "env": {}}, "store": {}, "next": {}}
NEWS: dict[str, Fields] = {
    "stale": {"why": "torch has changed"},
    "ready": {"unsafe": ""},
    "import_failed": {"module": "torch", "missing": "torch", "error": "ModuleNotFoundError", "traceback": ""},
    "started": {"rank": 0, "pid": 3},
    "store_started": {"pid": 3},
    "storeless": {"pid": 3, "status": 1},
    "ended": {"rank": 0, "status": 0, "time": 1.0, "rss": 3},
    "stray": {"number": 15},
}


def publish(subscriber: Any, link: AgentLink, event: Fields) -> None:
    """Give an event to a subscriber as the stream of a job does, but with its errors."""
    events = EventStream(Guard(print))
    subscriber.subscribe(events, "")
    events.publish(link, event)
