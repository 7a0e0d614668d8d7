"""muster.Checkpoints in real ranks: killed at any moment, resumed by more or fewer of them, never overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bare import script
from launching import Done, run_here
from recipes import KEEP, Command

from muster.training.checkpoint_folders import find_complete

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

HERE = Path(__file__).parent


def test_fifty_kills_at_random_moments_lose_an_interval_at_most_and_nothing_of_the_result(warm, tmp_path):
    """killing.py checks each attempt; it ends with an error if a resumed run differs from one that nobody killed."""
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # no warnings of the rank that is killed last
    done = Command(warm / "python3", HERE / "killing.py", tmp_path, "50", "1", **quiet).end()
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert result["killed"] == 50
    assert result["finished"] >= 1
    assert len(set(result["reached"])) > 3, "the kills did not come at different moments"


# Trains on numbers that identify the samples used, and writes them to a file per rank.
TRAIN = """
import sys, torch, muster
from pathlib import Path

root, resume, stop = Path(sys.argv[1]), sys.argv[2] == "resume", int(sys.argv[3])
with muster.init() as world, muster.Checkpoints(root / "saved", world, keep=3, about={"size": 4}) as checkpoints:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    torch.manual_seed(world.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    batches = muster.Batches(120, 5, world, seed=1)
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    step = checkpoints.begin(state, resume=resume)
    def show(words):
        print(f"{words} weights {model.weight.sum().item():.6f}, draws {torch.rand(1).item():.6f}", flush=True)

    show(f"from {step} at {batches.position}:")
    for batch in batches:
        optimizer.zero_grad()
        (model(torch.ones(5, 4)).square().mean() * batch.weight).backward()
        optimizer.step()
        with (root / f"seen-{world.rank}").open("a") as seen:
            seen.write(" ".join(map(str, batch.indices.tolist())) + "\\n")
        step += 1
        if step == stop:
            break
    checkpoints.save(step, state)
    checkpoints.wait()
    show(f"to {step} at {batches.position}:")
"""


def train(folder: Path, kept: Path, ranks: int, resume: str, stop: int) -> Done:
    argv = (script(folder, TRAIN), str(folder), resume, str(stop))
    return run_here(folder, *KEEP, "--nproc", str(ranks), "--quiet", *argv, state=kept)


def test_a_run_resumes_with_the_same_or_another_number_of_ranks_and_sees_each_sample_once(tmp_path, kept):
    first = train(tmp_path, kept, 2, "new", 3)
    assert first.code == 0, first.said
    assert all(first.lines(rank)[0].startswith("from 0 at 0: ") for rank in range(2))
    second = train(tmp_path, kept, 2, "resume", 4)
    assert second.code == 0, second.said
    for rank in range(2):  # the weights, and the generator of each rank
        assert second.lines(rank)[0] == first.lines(rank)[-1].replace("to", "from", 1)
    assert second.lines(0)[0] != second.lines(1)[0], "both draw the same"
    third = train(tmp_path, kept, 3, "resume", 5)
    assert third.code == 0, third.said
    for rank in range(2):
        assert third.lines(rank)[0] == second.lines(rank)[-1].replace("to", "from", 1)
    weights = third.lines(0)[0].split(", ")[0]
    assert weights.startswith("from 4 at 40: weights")
    assert third.lines(2)[0].startswith(weights)
    last = train(tmp_path, kept, 1, "resume", 99)
    assert last.code == 0, last.said
    assert last.lines(0)[0].startswith("from 5 at 55: ")
    seen = [int(word) for rank in range(3) for word in (tmp_path / f"seen-{rank}").read_text().split()]
    assert sorted(seen) == list(range(120))
    found, _ = find_complete(tmp_path / "saved")
    assert [(complete.step, complete.ranks) for complete in found] == [(4, 2), (5, 3), (18, 1)]


REFUSALS = """
import os, pickle, resource, signal, subprocess, sys, warnings
warnings.simplefilter("error")
from pathlib import Path
import torch, muster
from muster.training.checkpoint_folders import find_complete, mark_complete
from torch.nn import BatchNorm1d, Linear, Sequential

root = Path(sys.argv[1])


def steps():
    return [complete.step for complete in find_complete(root)[0]]


def refuses(words, kind, work):
    before = steps()
    try:
        work()
    except muster.MusterError as error:
        assert type(error) is kind and words in str(error), (type(error), error)
        assert "\\n" not in str(error) and error.report().startswith("error: ")
    else:
        raise AssertionError(f"not refused: {words}")
    assert steps() == before, (steps(), before)


with muster.init() as world:
    def begin(resume=True, about={}, **state):
        return muster.Checkpoints(root, world, about=about).begin(state, resume=resume)

    model = Sequential(Linear(4, 4), BatchNorm1d(4))
    state = {"model": model, "batches": muster.Batches(100, 5, world)}
    saved = muster.Checkpoints(root, world, keep=2, about={"arch": "small"})
    assert saved.begin(state, resume=True) == 0
    for step in (1, 2, 3):
        saved.save(step, state)
    saved.save(3, state)  # the same step again is no news
    saved.wait()
    assert steps() == [2, 3]

    large, wrong, bad = {"arch": "large"}, muster.UsageError, muster.MusterError
    refuses("already has checkpoints of a run, up to step 3", wrong, lambda: begin(resume=False, **state))
    refuses("saved with arch small, but this run has arch large", wrong, lambda: begin(about=large, **state))
    other = Sequential(Linear(4, 5))
    refuses("different model: its 0.weight is 4x4, but 5x4 in this run", wrong, lambda: begin(model=other))
    refuses("different model: it also has 1.weight", wrong, lambda: begin(model=Sequential(Linear(4, 4))))
    other = Sequential(Linear(4, 4), BatchNorm1d(4), Linear(4, 4))
    refuses("different model: it has no 2.weight", wrong, lambda: begin(model=other))
    refuses("has no optimizer", wrong, lambda: begin(optimizer=torch.optim.SGD(model.parameters())))
    refuses("of length 100, but this run has 50", wrong, lambda: begin(batches=muster.Batches(50, 5, world)))
    refuses("with seed 0, but this run has 3", wrong, lambda: begin(batches=muster.Batches(100, 5, world, seed=3)))
    refuses("keep must be at least 1, got 0", wrong, lambda: muster.Checkpoints(root, world, keep=0))

    with torch.no_grad():
        model[0].weight[2, 2] = float("nan")
    refuses("the model has NaN or inf values after step 4 (0.weight)", bad, lambda: saved.save(4, state))
    with torch.no_grad():
        model[0].weight.fill_(1.0)

    # Strides are not saved: what is loaded lies in memory as the parameters do.
    convolution = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(convolution.parameters(), lr=0.1, momentum=0.9)
    convolution(torch.randn(2, 3, 8, 8)).sum().backward()
    sgd.step()
    with muster.Checkpoints(root / "strides", world) as strides:
        strides.save(1, {"sgd": sgd})
        strides.wait()
        momentum = sgd.state[convolution.weight]["momentum_buffer"].clone()
        sgd.state.clear()
        strides.begin({"sgd": sgd}, resume=True)
    loaded = sgd.state[convolution.weight]["momentum_buffer"]
    assert torch.equal(loaded, momentum) and loaded.stride() == convolution.weight.stride()

    # A disk that takes no more: no file may grow beyond this.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    saved.save(5, state)
    refuses("step-00000005: ", bad, saved.wait)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    saved.save(6, state)
    saved.close()
    assert steps() == [3, 6], steps()

    # Another run that writes to the same folder.
    hold = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    pipe = subprocess.PIPE
    other = subprocess.Popen([sys.executable, "-c", hold, root / "lock"], stdin=pipe, stdout=pipe)
    other.stdout.readline()
    refuses("another run is writing checkpoints", wrong, lambda: muster.Checkpoints(root, world).save(7, state))
    other.communicate(b"\\n")

    # A truncated file is skipped, and replaced when the run comes to that step again.
    file = root / "step-00000006" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-10])
    assert begin(**state) == 3
    with muster.Checkpoints(root, world) as again:
        again.save(6, state)
    assert steps() == [3, 6]
    file.write_bytes(bytes(len(file.read_bytes())))  # of the right size, and rotten
    refuses("step-00000006: ", bad, lambda: begin(**state))

    # Code in the metadata, or in an entry that is not a tensor, is not run.
    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {root}/exploded",)

    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

    metadata = root / "step-00000006" / ".metadata"
    hidden = {"model": BytesStorageMetadata()}
    for content, words in (
        (Bomb(), "contains posix.system, which is not part of a checkpoint"),
        ({"a": [Bomb()]}, "contains posix.system, which is not part of a checkpoint"),
        (Metadata(state_dict_metadata=hidden), "BytesStorageMetadata, which is not part of a checkpoint"),
        ({"torch": 1}, "its .metadata does not describe a checkpoint"),
    ):
        metadata.write_bytes(pickle.dumps(content))
        (metadata.parent / "complete.json").unlink()
        mark_complete(metadata.parent, ranks=1, about={})
        refuses(words, bad, lambda: begin(**state))
    assert not (root / "exploded").exists()
print("all refused")
"""


def test_what_does_not_fit_is_refused_in_one_sentence_and_nothing_is_overwritten(warm, tmp_path):
    done = Command(warm / "python3", script(tmp_path, REFUSALS), tmp_path / "saved").end()
    assert done.code == 0, done.err
    assert done.out == "all refused\n"
    assert "step-00000006 is damaged: __0_0.distcp has" in done.err
    assert "; skipped" in done.err


# With a directory of its own, rank 1 is like a rank on a host that does not share the file system of rank 0.
SHARDED = """
import sys, torch, muster
from pathlib import Path
from torch.distributed.fsdp import fully_shard

root, mine = Path(sys.argv[1]), sys.argv[2]
try:
    with muster.init() as world:
        model = torch.nn.Linear(4, 4)
        fully_shard(model)
        checkpoints = muster.Checkpoints(root / (f"{mine}{world.rank}" if mine else "shared"), world)
        checkpoints.begin({"model": model}, resume=True)
        checkpoints.save(1, {"model": model})
        checkpoints.close()
except muster.MusterError as error:
    sys.stderr.write(error.report())
    sys.exit(error.exit_code)
"""


def test_ranks_of_a_sharded_model_that_do_not_share_the_directory_neither_save_nor_hang(tmp_path, kept):
    path = script(tmp_path, SHARDED)

    def run(mine: str) -> Done:
        return run_here(tmp_path, *KEEP, "--nproc", "2", "--quiet", path, str(tmp_path), mine, state=kept)

    saved = run("own")
    assert saved.code == 2, saved.said
    assert "does not see" in saved.said
    assert find_complete(tmp_path / "own0") == ([], [])
    assert run("").code == 0
    shutil.rmtree(tmp_path / "own0")
    (tmp_path / "shared").rename(tmp_path / "own0")
    resumed = run("own")
    assert resumed.code == 2, resumed.said
    assert "does not see" in resumed.said
