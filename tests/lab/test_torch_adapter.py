"""Every private name of torch that Muster touches does what Muster thinks it does, in this version of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import run_here
from recipes import Command
from waiting import patience

pytestmark = pytest.mark.torch

LOADED = """
import inspect, os, sys, time, torch, torch.distributed as dist
from muster.rank import torch_adapter, torch_groups

assert torch_adapter.is_safe_to_fork() == "", torch_adapter.is_safe_to_fork()
assert torch_adapter.group_numbers() == {}

calls = []
note = lambda: calls.append(dist.is_initialized())
torch_groups.Hooks(note, note).install()
from torch.distributed import init_process_group
init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
assert calls == [False, True], calls
assert dist.init_process_group.__name__ == "init_process_group"

for number in (1, 2, 3):
    dist.all_reduce(torch.ones(1))
    assert torch_adapter.collectives_begun() == number, torch_adapter.collectives_begun()
    limit = time.monotonic() + 30
    while torch_adapter.group_numbers()["0"][1] < number and time.monotonic() < limit:
        time.sleep(0.01)
    assert torch_adapter.group_numbers() == {"0": (number, number)}, torch_adapter.group_numbers()
assert torch_adapter.why_unwatched() == "", torch_adapter.why_unwatched()
tail = torch_adapter.recorder_tail(2, lambda file: True)
assert tail is not None
group = tail["0"]
assert (group["id"], group["ranks"]) == ("0", [0]), group
reported = [[call[name] for name in ("number", "op", "sizes", "types", "over")] for call in group["calls"]]
assert reported == [[number, "all_reduce", [[1]], ["Float"], True] for number in (2, 3)], reported
for function, peer in ((dist.recv, "src"), (dist.irecv, "src"), (dist.send, "dst"), (dist.isend, "dst")):
    code = inspect.unwrap(function).__code__  # whose frame tells whom a rank waits for
    assert code.co_name == function.__name__ and peer in code.co_varnames, code
assert "torch._dynamo.convert_frame" not in sys.modules  # the lines of calls would have had torch import its compiler
dist.destroy_process_group()

import io, tempfile
saves = [0]
torch_adapter.count_saves(saves)
with tempfile.TemporaryDirectory() as folder:
    torch.save({"a": torch.ones(2)}, os.path.join(folder, "a.pt"))
    assert saves == [1], saves
    with open(os.path.join(folder, "b.pt"), "wb") as file:
        torch.save({"b": torch.ones(2)}, file)
    assert saves == [2], saves
    torch.save({}, io.BytesIO())  # not a checkpoint
    assert saves == [2], saves
    assert torch.load(os.path.join(folder, "a.pt"))["a"].sum() == 2

before = torch.initial_seed()
torch_adapter.reseed()
assert torch.initial_seed() != before

torch_adapter.set_threads({"OMP_NUM_THREADS": "1"})
assert torch.get_num_threads() == 1
torch_adapter.set_threads({"OMP_NUM_THREADS": "nonsense"})
assert torch.get_num_threads() == 1
torch_adapter.set_threads({"OMP_NUM_THREADS": "100000"})
assert torch.get_num_threads() == len(os.sched_getaffinity(0))

import threading
threading.Thread(target=threading.Event().wait, args=(5,), daemon=True).start()
assert "threads" in torch_adapter.is_safe_to_fork()
"""

NOT_LOADED = """
import sys
from muster.rank import torch_adapter, torch_groups

assert torch_adapter.group_numbers() == {}
calls = []
torch_groups.Hooks(lambda: calls.append(0), lambda: calls.append(1)).install()
assert "torch" not in sys.modules
finders = len(sys.meta_path)
import torch.distributed as dist
assert len(sys.meta_path) == finders - 1
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
assert calls == [0, 1]
dist.destroy_process_group()
"""

RECORDED = """
import os, time, torch, torch.distributed as dist
from collections import deque
from muster.rank import torch_adapter

os.environ["TORCH_FR_BUFFER_SIZE"] = "64"
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
group = dist.new_group([0])
begin = time.time()
for _ in range(150):
    dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1), group=group)
(name, calls), (other, others) = torch_adapter.recent_calls().items()
assert len(calls) + len(others) == 64, (len(calls), len(others))
assert [number for number, _ in others] == [1]
numbers, times = zip(*calls)
assert list(numbers) == list(range(88, 151)), numbers
assert begin <= times[0] and list(times) == sorted(times) and times[-1] <= time.time()
steps, made = [0, 0], deque(maxlen=2)
torch_adapter.count_steps(steps, made)
weight = torch.zeros(1, requires_grad=True)
for optimiser in (torch.optim.SGD([weight], 0.1), torch.optim.Adam([weight], 0.1)):
    for _ in range(2):
        weight.sum().backward()
        optimiser.step()
assert steps[0] == 4 and [number for number, _, _ in made] == [3, 4], (steps, made)
assert begin < made[0][1] < made[0][2] <= made[1][1] < made[1][2] <= time.time(), made
several = [torch.optim.SGD([weight], 0.1) for _ in range(4)]  # as one per layer, or as a GAN has
steps[1] = 0
for _ in range(10):
    weight.sum().backward()
    for optimiser in several:
        optimiser.step()
assert steps[0] == 44 and steps[1] in (9, 10), steps
dist.destroy_process_group()
"""

CAPTURED = """
import pickle, sys, torch, torch.distributed, torch.cuda.graphs
from muster.rank import torch_adapter

c10d = sys.modules["torch._C._distributed_c10d"]
everything = lambda: (torch_adapter.recent_calls(), torch_adapter.recorder_tail(8, lambda file: True))
call = {"process_group": ("0", ""), "pg_id": 0, "collective_seq_id": 1, "profiling_name": "nccl:all_reduce",
        "state": "scheduled", "time_created_ns": 1_000_000_000}
c10d._dump_nccl_trace = lambda includeStackTraces: pickle.dumps({"entries": [call]})
class CUDAGraph:  # torch's own cannot be made without CUDA
    def capture_begin(self, pool=None, capture_error_mode="global", check_input_liveness=False):
        pass
    def capture_end(self):
        pass
real, torch.cuda.graphs.CUDAGraph = torch.cuda.graphs.CUDAGraph, CUDAGraph
recent, tail = everything()
assert recent == {} and tail["0"]["calls"][0]["number"] == 1  # not as long as captures are not seen
torch_adapter.hold_back_while_capturing()
recent, tail = everything()
assert recent == {"0": [[1, 1.0]]} and tail["0"]["calls"][0]["number"] == 1, (recent, tail)
graph = CUDAGraph()
graph.capture_begin(capture_error_mode="relaxed")
assert everything() == ({}, None), everything()
graph.capture_end()
assert everything() == (recent, tail)

from torch.accelerator.graphs import Graph
for kind in (real, Graph):
    assert callable(kind.capture_begin) and callable(kind.capture_end)
assert Graph.capture_begin.__code__.co_filename == torch_adapter._captures.guard.__code__.co_filename
"""

STRANGE = """
import sys, torch
from collections import deque
from muster.rank import torch_adapter

fails = [False]
def is_compiling():
    if fails[0]:
        raise RuntimeError("of another torch")
    return False
steps, made = [0, 0], deque(maxlen=2)
known = torch.compiler.is_compiling
del torch.compiler.is_compiling  # torch.compiler is older than this function
torch_adapter.count_steps(steps, made)
torch.compiler.is_compiling = is_compiling
torch_adapter.count_steps(steps, made)
torch.compiler.is_compiling = known
optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
optimiser.step()
fails[0] = True
optimiser.step()
assert steps == [1, 1], steps
"""

MESH = """
import importlib.util, os, sys, types
import torch.distributed as dist
from torch.distributed import device_mesh
from muster.rank import torch_adapter, torch_groups

spec = importlib.util.find_spec("this")
spec.loader = importlib.util.LazyLoader(spec.loader)
lazy = sys.modules["this"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lazy)
sys.modules["no_module"] = object()
other = sys.modules["other"] = types.ModuleType("other")
other.init_process_group = print
calls = []
torch_groups.Hooks(lambda: calls.append(0), lambda: calls.append(1)).install()
assert other.init_process_group is print
assert type(lazy) is not types.ModuleType  # it was not loaded, which would have printed the Zen of Python
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
device_mesh.init_device_mesh("cpu", (1,))
assert calls == [0, 1], calls
assert dist.init_process_group is device_mesh.init_process_group
dist.destroy_process_group()
"""

WATCHED = """
import threading
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

init_device_mesh("cpu", (2,))
print("muster-progress" in [thread.name for thread in threading.enumerate()])
dist.barrier()  # rank 0 keeps the store in which the other still looks for it
dist.destroy_process_group()
"""

# Each world has a store of its own: in one that rank 0 keeps, a quick rank could meet that of the world before.
REFUSED = """
import os, threading
import torch, torch.distributed as dist

start = threading.Thread.start
def refuse(thread):
    if thread.name == "muster-progress":
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = refuse
for world in ("first", "second"):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{world}", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
print("trained")
"""


@pytest.mark.parametrize("program", [LOADED, NOT_LOADED], ids=["torch imported before", "torch imported after"])
def test_the_private_names_of_torch_are_as_muster_needs_them_when_a_zygote_starts(program: str):
    # As the zygote is started: no thread pool while torch is imported.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=patience(110), check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "program", [RECORDED, MESH, CAPTURED, STRANGE], ids=["calls recorded", "a mesh", "a graph", "another torch"]
)
def test_the_private_names_of_torch_are_as_muster_needs_them(program: str, warm: Path):
    done = Command(warm / "python3", "-c", program).end()
    assert (done.code, done.err) == (0, "")


def test_a_rank_that_cannot_be_watched_runs_all_the_same_and_says_so_once(tmp_path: Path):
    (tmp_path / "train.py").write_text(REFUSED)
    done = run_here(tmp_path, "--nproc", "2", "--no-check", "train.py")
    assert done.code == 0, done.said
    assert done.lines(0) == done.lines(1) == ["trained"], done.said
    reported = "muster: hang and straggler detection is disabled for this job: RuntimeError: can't start new thread"
    assert done.err.splitlines().count(reported) == 1, done.said
    assert "Traceback" not in done.said


@pytest.mark.parametrize("options", [[], ["--no-zygote"]], ids=["forked", "fresh"])
def test_a_script_that_begins_with_a_device_mesh_is_watched(tmp_path: Path, options: list[str]):
    (tmp_path / "train.py").write_text(WATCHED)
    done = run_here(tmp_path, "--nproc", "2", "--no-check", *options, "train.py")
    assert done.code == 0, done.said
    assert done.lines(0) == done.lines(1) == ["True"], done.said
