"""The MNIST recipe: its files, its own mp.spawn on unequal nodes, its checkpoints, and its errors for bad input."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import os
import pty
import re
import signal
import threading
from pathlib import Path

import pytest
from bare import reserved_port, script
from launching import Done, run_here
from recipes import KEEP, Command, write_idx, write_mnist, wrong

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

MNIST = "muster.recipes.mnist"
ACCURACY = re.compile(r"accuracy: (0\.\d{4}|1\.0000)")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mnist")
    write_mnist(folder, 300, 50)
    return folder


def accuracy(line: str) -> float:
    match = ACCURACY.fullmatch(line)
    assert match, line
    return float(match[1])


def test_it_learns_from_idx_files_packed_or_not(python, data, tmp_path):
    argv = ["--epochs", 2, "--batch_size", 10, "--log_every", 10]
    plain = python.run(MNIST, "--data", data, *argv, "--metrics", tmp_path / "m", "--plot", tmp_path / "p.svg")
    assert (plain.code, plain.err) == (0, "")
    assert accuracy(plain.last) > 0.95
    for file in data.iterdir():
        (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    packed = python.run(MNIST, "--data", tmp_path, *argv)
    # The same images, the same seed, the same losses.
    assert re.findall(r"loss (\S+)", packed.out) == re.findall(r"loss (\S+)", plain.out) != []
    rows = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 20, 30, 40, 50, 60, 60]
    assert rows[0].keys() == {"time", "step", "epoch", "loss", "images_per_s", "images_per_s_step"}
    assert rows[-1]["accuracy"] == accuracy(plain.last)
    assert (tmp_path / "p.svg").read_text().count("<polyline") == 2


def test_synthetic_digits_need_no_files_and_can_be_learned(python):
    done = python.run(MNIST, "--synthetic", 1000, "--epochs", 2, "--batch_size", 20, "--share", "measured")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("measured shares: ")
    assert accuracy(done.last) > 0.9


def test_data_that_cannot_be_used_is_one_sentence(python, data, tmp_path):
    wrong(
        python.run(MNIST, "--data", tmp_path / "none"),
        "none has no train-images-idx3-ubyte.gz, and the download failed",
    )
    write_mnist(tmp_path, 20, 10)
    images = tmp_path / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-100])
    wrong(python.run(MNIST, "--data", tmp_path), "train-images-idx3-ubyte has 15,580 bytes of data instead of 15,680")
    images.write_bytes(b"\x89PNG, a picture")
    wrong(python.run(MNIST, "--data", tmp_path), "train-images-idx3-ubyte is not an idx file of bytes")
    images.write_bytes(b"")
    wrong(python.run(MNIST, "--data", tmp_path), "train-images-idx3-ubyte is not an idx file of bytes")
    images.unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(whole)[:-50])
    wrong(python.run(MNIST, "--data", tmp_path), f"cannot read {tmp_path}/train-images-idx3-ubyte.gz")
    images.write_bytes(whole)
    write_idx(tmp_path / "train-labels-idx1-ubyte", (19,), bytes(19))
    wrong(python.run(MNIST, "--data", tmp_path), "has 20 images but 19 labels")
    wrong(
        python.run(MNIST, "--data", data, "--batch_size", 301),
        "a batch of 301 samples is larger than the data set, which has 300",
    )
    wrong(python.run(MNIST, "--data", data, "--share", "8,2"), "got 2 shares for 1 rank")
    wrong(python.run(MNIST, "--data", data, "--share", "half"), "invalid --share half")
    write_idx(tmp_path / "train-images-idx3-ubyte", (20, 10, 10), bytes(2000))
    write_idx(tmp_path / "train-labels-idx1-ubyte", (20,), bytes(20))
    wrong(python.run(MNIST, "--data", tmp_path), "does not have MNIST's images of 28x28 pixels with labels from 0 to 9")
    images.write_bytes(whole)
    write_idx(tmp_path / "train-labels-idx1-ubyte", (20,), bytes([255] * 20))
    wrong(python.run(MNIST, "--data", tmp_path), "does not have MNIST's images of 28x28 pixels with labels from 0 to 9")
    damaged = tmp_path / "runs" / "step-00000001"
    damaged.mkdir(parents=True)
    (damaged / "complete.json").write_text('{"files": null, "ranks": 1, "about": {}}')
    argv = ["--synthetic", 20, "--batch_size", 10, "--epochs", 1, "--model_dir", damaged.parent, "--resume"]
    resumed = python.run(MNIST, *argv)
    assert (resumed.code, "cannot read complete.json" in resumed.err) == (0, True), resumed.err


@pytest.mark.parametrize(
    ("flag", "value", "limit"),
    [
        ("--lr", "-1", "must be above 0, got -1"),
        ("--lr", "nan", "must be a finite number, got nan"),
        ("--made_up", "-5", "must be at least 1, got -5"),
        ("--synthetic", "0", "must be at least 1, got 0"),
        ("--seed", "9" * 40, f"must be at most {2**63 - 1}, got 9999"),
        ("--seed", "9" * 5000, "must be a whole number, got 9999"),
        ("--timeout", "0", "must be above 0, got 0"),
        ("--timeout", "-1", "must be above 0, got -1"),
        ("--timeout", "1e300", "must be at most"),
        ("--epochs", "0", "must be at least 1, got 0"),
        ("--epochs", "-1", "must be at least 1, got -1"),
        ("--batch_size", "x", "must be a whole number, got x"),
        ("--keep", "0", "must be at least 1, got 0"),
        ("--nodes", "0", "must be at least 1, got 0"),
        ("--master-port", "99999", "must be at most 65535, got 99999"),
    ],
)
def test_a_flag_out_of_its_limits_is_one_sentence(python, flag, value, limit):
    ended = python.run(MNIST, flag, value)
    usage, sentence = ended.err.splitlines()
    assert (ended.code, usage) == (2, "usage: mnist [options]; --help shows them")
    assert sentence.startswith("mnist: error: argument ")
    assert f"{flag}" in sentence
    assert limit in sentence


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_the_checkpoints_alone(python, data, tmp_path):
    argv = ["--data", data, "--model_dir", tmp_path / "runs", "--save_every", 5, "--log_every", 5, "--batch_size", 25]
    first = python.run(MNIST, *argv, "--epochs", 1)
    assert first.code == 0, first.err
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    wrong(python.run(MNIST, *argv, "--epochs", 1), "already has checkpoints of a run, up to step 12")
    wrong(python.run(MNIST, *argv, "--epochs", 4, "--lr", "1e30", "--resume"), "the loss is nan at step", code=125)
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()} == before


def test_missing_files_are_downloaded_whole_and_checked_or_not_at_all(warm, tmp_path):
    content = b"the file"
    served = tmp_path / "served"
    served.mkdir()
    (served / "good.gz").write_bytes(content)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(served))

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    md5 = hashlib.md5(content).hexdigest()
    code = f"""
from pathlib import Path
from muster.recipes._mnist.mnist_files import fetch
into = Path({str(tmp_path / "into")!r})
assert fetch({base!r} + "good.gz", into / "good.gz", {md5!r}) == ""
assert (into / "good.gz").read_bytes() == {content!r}
assert "has the wrong MD5 sum" in fetch({base!r} + "good.gz", into / "bad.gz", "0")
assert "404" in fetch({base!r} + "absent.gz", into / "absent.gz", "0")
assert "refused" in fetch("http://127.0.0.1:9/", into / "nobody.gz", "0")
assert [path.name for path in into.iterdir()] == ["good.gz"]
"""
    try:
        done = Command(warm / "python3", "-c", code).end()
    finally:
        server.shutdown()
        server.server_close()
    assert (done.code, done.err) == (0, "")


def test_by_itself_on_two_nodes_of_unequal_size(warm, data):
    argv = [warm / "python3", "-m", MNIST, "-n", 2, "-g", "2,1", "--share", "2,1,1", "--master-addr", "127.0.0.1"]
    argv += ["--data", data, "--epochs", 3, "--batch_size", 10]
    with reserved_port() as port:
        nodes = [
            Command(*argv, "-i", 0, "--master-port", port),
            Command(*argv, "-i", 1, MASTER_PORT=str(port)),
        ]
        first, second = (node.end() for node in nodes)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert (first.err, second.err, second.out) == ("", "", "")
    assert accuracy(first.last) > 0.9


def test_a_node_that_never_comes_or_a_wrong_address_is_named_in_time(warm):
    argv = [warm / "python3", "-m", MNIST, "-n", 2, "-g", "1,1", "--synthetic", 100, "--timeout", 2]
    with reserved_port() as port:
        nodes = [
            Command(*argv, "-i", 0, "--master-addr", "127.0.0.1", "--master-port", port),
            Command(*argv, "-i", 1, "--master-addr", "no-such-host.invalid"),
        ]
        alone, lost = (node.end() for node in nodes)
    assert (alone.code, lost.code) == (125, 125), alone.err + lost.err
    assert re.match(
        r"error: rank 1 of 2 did not reach rank 0 at 127.0.0.1:\d+ within 2 s\nhint: -i 0 has rank 0, -i 1 has rank 1",
        alone.err,
    )
    assert re.match(r"error: rank 1 on \S+ could not reach rank 0 at no-such-host.invalid:29500 within 2 s: ", lost.err)
    assert alone.err.count("\n") == lost.err.count("\n") == 2


def test_nodes_that_make_no_sense_are_refused_at_once(python):
    wrong(python.run(MNIST, "-n", 2, "-g", "2,1"), "the address of node 0 is unknown")
    wrong(python.run(MNIST, "-n", 3, "-g", "2,1"), "invalid -n 3 -g 2,1")
    wrong(python.run(MNIST, "-g", "two"), "invalid -g two")
    wrong(python.run(MNIST, "-n", 2, "-g", 2, "-i", 2, "--master-addr", "a"), "-i must be from 0 to 1, got 2")


def test_a_launcher_and_spawning_together_are_refused(tmp_path, kept):
    done = run_here(tmp_path, *KEEP, "--quiet", "-m", MNIST, "-g", "2", state=kept)
    assert done.code == 2
    assert "error: muster run has already started this process" in done.err


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path

marker = Path(sys.argv[1])


def kill():
    while not marker.exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "0":
    threading.Thread(target=kill, daemon=True).start()
import runpy
sys.argv[1:] = sys.argv[2:]
runpy.run_module("muster.recipes.mnist", run_name="__main__", alter_sys=True)
"""


def test_a_killed_and_resumed_run_ends_with_the_loss_of_one_that_was_not(tmp_path, kept):
    argv = ["--synthetic", "600", "--epochs", "2", "--batch_size", "10", "--save_every", "10", "--log_every", "10"]

    def run(folder: str, *more: str) -> Done:
        words = [*argv, "--model_dir", str(tmp_path / folder), *more]
        return run_here(tmp_path, *KEEP, "--nproc", "2", "--quiet", *words, state=kept, OMP_NUM_THREADS="1")

    argv = ["-m", MNIST, *argv]
    whole = run("whole")
    assert whole.code == 0, whole.said
    argv = [script(tmp_path, KILLED), str(tmp_path / "runs" / "step-00000010" / "complete.json"), *argv[2:]]
    killed = run("runs")
    assert killed.code == 128 + signal.SIGKILL, killed.said
    argv = ["-m", MNIST, *argv[2:]]
    resumed = run("runs", "--resume")
    assert resumed.code == 0, resumed.said
    assert re.match(r"resumed at step [1-5]0,", resumed.lines(0)[0]), resumed.said
    # Every line from there on, the last one and the accuracy included.
    losses = [re.findall(r"step (\d+)  loss (\S+)", done.out) for done in (whole, resumed)]
    assert losses[0][-1][0] == "60"
    assert losses[1] == losses[0][-len(losses[1]) :] != []
    assert float(losses[0][-1][1]) > 0
    assert resumed.lines(0)[-1] == whole.lines(0)[-1]
    assert accuracy(whole.lines(0)[-1]) > 0.9


@pytest.mark.skipif(not os.environ.get("MUSTER_MNIST"), reason="MUSTER_MNIST=DIR names the folder of the real MNIST")
def test_the_real_digits_are_recognised_in_99_of_100(python):
    done = python.run(MNIST, "--data", os.environ["MUSTER_MNIST"])
    assert done.code == 0, done.err
    assert accuracy(done.last) >= 0.99


def test_a_terminal_gets_a_bar_and_the_lines_that_stay(warm, data):
    main_end, terminal = pty.openpty()
    argv = ["-m", MNIST, "--data", data, "--epochs", "2", "--batch_size", "10", "--log_every", "5"]
    process = Command(warm / "python3", *argv, stderr=terminal, TERM="xterm")
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(main_end, 4096):
            shown += part
    except OSError:
        pass  # EIO: nobody has the terminal open any longer
    done = process.end()
    os.close(main_end)
    assert done.code == 0
    assert accuracy(done.last) > 0.5
    assert "loss" not in done.out, "what the bar shows is not printed as well"
    frames = [frame for frame in shown.decode().split("\r\033[K") if frame]
    assert re.match(r"epoch 1/2 \[=+ +\] +8%  loss \d\.\d{4}  [\d,]+ images/s  \d:\d\d:\d\d left$", frames[0]), frames
    assert re.match(r"epoch 2/2 \[=+\] 100%", frames[-1]), frames
