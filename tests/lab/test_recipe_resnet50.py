"""The ResNet recipe: model, data, steps, checkpoints, evaluation, and errors for bad input."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from bare import ENV, script
from launching import run_here
from PIL import Image
from recipes import KEEP, Command, Ended, Interpreter, write_cifar, wrong

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

RESNET = "muster.recipes.resnet50"
# The stem for large images makes small ones tiny, and the tests short.
SMALL = ("--arch", "resnet18", "--stem", "7x7", "--batch_size", "20", "--log_every", "2", "--num_epochs", "2")


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cifar")
    write_cifar(folder, 80, 37)
    return folder


MODEL = """
import torch
from muster.recipes.resnet50.model import BLOCKS, ResNet

counts = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032, "resnet101": 44_549_160,
          "resnet152": 60_192_808}
for arch, count in counts.items():
    with torch.device("meta"):
        model = ResNet(arch, classes=1000)
    assert sum(p.numel() for p in model.parameters()) == count, arch
    expected = ["conv1", "bn1"]
    deep = arch not in ("resnet18", "resnet34")
    for stage, blocks in enumerate(BLOCKS[arch], start=1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            expected += [f"{name}.{kind}{i}" for i in (1, 2, 3)[: 2 + deep] for kind in ("conv", "bn")]
            if block == 0 and (deep or stage > 1):
                expected += [f"{name}.downsample.0", f"{name}.downsample.1"]
    expected.append("fc")
    names = list(model.state_dict())
    assert list(dict.fromkeys(name.rpartition(".")[0] for name in names)) == expected, arch

with torch.device("meta"):
    model = ResNet("resnet50", classes=1000)
assert len(model.state_dict()) == 320
block = model.layer2[0]
assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))           # v1.5
shapes = {}
def keep(name): return lambda module, inputs, output: shapes.__setitem__(name, tuple(output.shape[1:]))
for name in ("conv1", "maxpool", "layer1", "layer4"):
    getattr(model, name).register_forward_hook(keep(name))
model(torch.zeros(1, 3, 224, 224, device="meta"))
assert shapes == {"conv1": (64, 112, 112), "maxpool": (64, 56, 56), "layer1": (256, 56, 56), "layer4": (2048, 7, 7)}
small = ResNet("resnet18", classes=10, stem="3x3")
small.layer4.register_forward_hook(keep("layer4"))
assert small(torch.zeros(2, 3, 32, 32)).shape == (2, 10) and shapes["layer4"] == (512, 4, 4)
# A block begins as its shortcut.
x = torch.rand(2, 64, 8, 8)
assert torch.equal(small.layer1[0].eval()(x), x)

# Cutouts of random boxes and of the middle, and images as they were packed.
import random
from muster.recipes.resnet50.imagenet import middle_box, random_box
assert middle_box(400, 256) == (88.0, 16.0, 312.0, 240.0)
for i in range(200):
    left, top, right, bottom = random_box(300 + i, 200, random.Random(i))
    assert 0 <= left < right <= 300 + i and 0 <= top < bottom <= 200 + 1e-9
    width, height = right - left, bottom - top
    assert 0.07 < width * height / (300 + i) / 200 < 1.0001 and 0.74 < width / height < 1.51
print("as torchvision's")
"""


def test_the_model_has_the_names_sizes_and_strides_of_torchvision(warm, tmp_path):
    done = Command(warm / "python3", script(tmp_path, MODEL)).end()
    assert (done.err, done.out) == ("", "as torchvision's\n")


@pytest.fixture(scope="module")
def trained(
    python: Interpreter, cifar: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[object], Ended]:
    """Where a run has saved what it has learned, its flags, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    argv = [*SMALL, "--data", cifar, "--metrics", "m", "--plot", "m/plot.svg", "--save_every", 3]
    return folder, argv, python.run(RESNET, *argv, folder=folder)


def test_it_trains_on_cifar_saves_and_evaluates_every_test_image(python, trained):
    tmp_path, argv, first = trained
    assert (first.code, first.err) == (0, "")
    assert "resnet18 with a 7x7 stem on CIFAR-10: 80 images, 10 classes; 1 rank on cpu (gloo), float32" in first.out
    assert "step: plain, not fused: it needs a GPU of compute capability 9.0 or newer\n" in first.out
    assert "epoch 2: accuracy" in first.out
    assert "on 37 images" in first.out
    # A share of 37 images, not of a padded number of them.
    accuracy = float(re.fullmatch(r"accuracy: (\d\.\d{4})", first.last)[1])
    assert abs(accuracy * 37 - round(accuracy * 37)) < 0.002
    saved = tmp_path / "saved_models"
    assert sorted(path.name for path in saved.iterdir()) == [
        "lock",
        "resnet_distributed.pth",
        "step-00000006",
        "step-00000008",
    ]
    rows = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["accuracy"] == pytest.approx(accuracy, abs=1e-4)
    assert (tmp_path / "m" / "plot.svg").read_text().count("<polyline") == 3

    wrong(python.run(RESNET, *argv, folder=tmp_path), "saved_models already has checkpoints of a run, up to step 8")
    other = [word.replace("resnet18", "resnet50") if isinstance(word, str) else word for word in argv]
    wrong(
        python.run(RESNET, *other, "--resume", folder=tmp_path),
        "saved with arch resnet18, but this run has arch resnet50",
    )
    ended = python.run(RESNET, *argv, "--resume", folder=tmp_path)
    assert "from step 8" in ended.out
    assert ended.last == first.last, "nothing was left to train, and the same is measured"
    more = python.run(RESNET, *argv, "--resume", "--num_epochs", 3, folder=tmp_path)
    assert "from step 8" in more.out
    assert "epoch 3/3  step 12" in more.out
    assert more.code == 0


def test_weights_alone_are_taken_up_too_as_the_original_script_did(python, warm, cifar, trained, tmp_path):
    (tmp_path / "two").mkdir()
    code = f"weights = torch.load({str(trained[0] / 'saved_models' / 'resnet_distributed.pth')!r}).items()"
    code = f"import torch; {code}; torch.save({{'module.' + k: v for k, v in weights}}, 'two/w.pth')"
    assert Command(warm / "python3", "-c", code, folder=tmp_path).end().code == 0
    again = ["--data", cifar, "--model_dir", "two", "--model_filename", "w.pth", "--resume", "--learning_rate", "1e-9"]
    second = python.run(RESNET, *SMALL, *again, "--num_epochs", 1, folder=tmp_path)
    assert "with the weights of two/w.pth" in second.out, second.err
    argv = [word.replace("resnet18", "resnet34") for word in SMALL]
    (tmp_path / "three").mkdir()
    (tmp_path / "two" / "w.pth").rename(tmp_path / "three" / "w.pth")
    wrong(
        python.run(RESNET, *argv, *again, "--model_dir", "three", folder=tmp_path), "three/w.pth has a different model"
    )


def test_a_run_of_two_ranks_accumulates_shares_and_counts_each_image(cifar, tmp_path, kept):
    argv = [*SMALL, "--data", cifar, "--accumulate", "2", "--share", "3,1", "--batch_size", "10", "--schedule", "step"]
    argv += ["--num_epochs", "1"]
    done = run_here(tmp_path, *KEEP, "--nproc", "2", "--quiet", "-m", RESNET, *map(str, argv), state=kept)
    assert (done.code, done.err) == (0, ""), done.said
    assert "2 ranks on cpu (gloo), float32, batch 40, peak learning rate 0.4" in done.out
    assert "on 37 images" in done.out
    assert done.lines(1) == []
    damaged = tmp_path / "damaged"
    write_cifar(damaged, 40, 10)
    file = damaged / "cifar-10-batches-py" / "data_batch_2"
    file.write_bytes(file.read_bytes()[:1000])
    argv = [*SMALL, "--data", "damaged", "--model_dir", "x"]
    done = run_here(tmp_path, *KEEP, "--nproc", "2", "--quiet", "-m", RESNET, *argv, state=kept)
    assert done.code == 2
    assert done.err.count("] error: damaged/cifar-10-batches-py/data_batch_2 is damaged") == 1, done.said
    assert not (tmp_path / "x").exists()


def test_small_images_get_the_small_stem_by_default(python, tmp_path):
    write_cifar(tmp_path, 8, 2)
    argv = ["--data", tmp_path, "--arch", "resnet18", "--batch_size", 8, "--num_epochs", 1]
    done = python.run(RESNET, *argv, folder=tmp_path)
    assert "resnet18 with a 3x3 stem on CIFAR-10" in done.out, done.err


def test_synthetic_images_need_no_data_and_leave_nothing_behind(python, tmp_path):
    argv = [
        "--use_syn",
        "--steps_syn",
        3,
        "--batch_size",
        2,
        "--image_size",
        32,
        "--arch",
        "resnet18",
        "--num_epochs",
        2,
    ]
    done = python.run(RESNET, *argv, "--log_every", 2, "--optimizer", "adamw", "--no-channels_last", folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "step: plain, not fused" in done.out
    assert "on synthetic: 6 images, 1000 classes" in done.out
    assert "accuracy" not in done.out
    # 6 steps of 2 images, the first 2 steps left out as a warm-up: the rate counts every step that it times.
    steps, rate, whole = re.search(
        r"images/s: ([\d.]+) in the steps, ([\d.]+) end to end \(the last (\d+)", done.out
    ).groups()
    assert int(whole) == 4
    assert float(steps) >= float(rate) > 0
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_one_sentence(python, cifar, tmp_path):
    wrong(python.run(RESNET, "--data", tmp_path / "none"), "data directory", "none does not exist")
    wrong(python.run(RESNET, "--data", tmp_path), "has neither cifar-10-batches-py nor train/CLASS")
    wrong(
        python.run(RESNET, "--data", cifar, "--step", "fused", folder=tmp_path),
        "the fused step cannot run on rank 0: it needs a GPU of compute capability 9.0 or newer",
    )
    wrong(
        python.run(RESNET, "--data", cifar, "--batch_size", 81, *SMALL[:2], folder=tmp_path),
        "a batch of 81 samples is larger than the data",
    )
    batches = write_cifar(tmp_path, 40, 10)
    (batches / "test_batch").rename(batches / "elsewhere")
    wrong(python.run(RESNET, "--data", tmp_path), "test_batch is missing")
    with (batches / "test_batch").open("wb") as file:
        pickle.dump({b"data": os.system, b"labels": []}, file)
    wrong(
        python.run(RESNET, "--data", tmp_path),
        "test_batch is damaged: it contains posix.system, which is not part of CIFAR-10",
    )
    with (batches / "test_batch").open("wb") as file:
        pickle.dump({b"data": numpy.zeros((2, 3072), numpy.uint8), b"labels": [3, 255]}, file, protocol=2)
    wrong(python.run(RESNET, "--data", tmp_path), "test_batch is damaged: it does not have bytes with labels from 0 to")
    (tmp_path / "m").mkdir()
    for damage in (b"no weights", b"", pickle.dumps([1], protocol=2)):
        (tmp_path / "m" / "w.pth").write_bytes(damage)
        weights = ["--model_dir", tmp_path / "m", "--model_filename", "w.pth", "--resume"]
        wrong(python.run(RESNET, *SMALL, "--data", cifar, *weights), "cannot read the weights in ", "w.pth")
    (batches / "test_batch").write_bytes(b"no pickle")
    wrong(python.run(RESNET, "--data", tmp_path), "test_batch is damaged")
    nan = python.run(RESNET, *SMALL, "--data", cifar, "--learning_rate", "1e30", "--num_epochs", 8, folder=tmp_path)
    wrong(nan, "the loss is nan at step", code=125)


def test_folders_of_images_are_decoded_by_workers(python, tmp_path):
    for part, count in (("train", 6), ("val", 3)):
        for label, name in enumerate(("ant", "bee")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                picture = Image.new("RGB", (70 + 9 * i, 60), (200 * label, 40, 255 - 200 * label))
                picture.save(tmp_path / part / name / f"{i}.{('jpeg', 'png')[i % 2]}")
    argv = ["--arch", "resnet18", "--image_size", 32, "--batch_size", 4, "--num_epochs", 2, "--log_every", 1]
    argv += ["--workers", 2, "--stem", "7x7"]
    done = python.run(RESNET, *argv, "--data", tmp_path, "--model_dir", tmp_path / "m")
    assert (done.code, done.err) == (0, "")
    assert "on ImageNet: 12 images, 2 classes" in done.out
    assert "on 6 images" in done.out
    # Crops depend on the seed, the epoch and the image: neither on workers nor on what was drawn before.
    again = python.run(RESNET, *argv, "--workers", 0, "--data", tmp_path, "--model_dir", tmp_path / "n")
    assert re.findall(r"loss (\S+)", again.out) == re.findall(r"loss (\S+)", done.out)
    broken = tmp_path / "train" / "bee" / "0.jpeg"
    broken.write_bytes(broken.read_bytes()[:300])
    wrong(python.run(RESNET, *argv, "--data", tmp_path, "--model_dir", tmp_path / "o"), "cannot read ", "0.jpeg")
    (tmp_path / "val" / "cat").mkdir()
    wrong(python.run(RESNET, *argv, "--data", tmp_path), "val has a class cat that is missing in train")


def test_a_copy_of_the_folder_runs_as_it_is(warm, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "muster", "recipes", "copy", "resnet50", "--to", tmp_path], check=True, env=ENV
    )
    argv = ["--use_syn", "--steps_syn", 1, "--batch_size", 2, "--image_size", 32, "--arch", "resnet18"]
    done = Command(warm / "python3", "-m", "resnet50", *argv, "--num_epochs", 1, folder=tmp_path).end()
    assert (done.code, done.err) == (0, "")
    assert "images/s: " in done.out


def test_the_benchmark_prints_its_table(python):
    argv = ["--arch", "resnet18", "--batches", 2, "--alone", 3, "--image_size", 32, "--seconds", 0.01, "--no-compile"]
    done = python.run(f"{RESNET}.bench", *argv)
    assert done.code == 0, done.err
    rows = [line for line in done.out.splitlines() if "the recipe" in line]
    assert [int(row.split("|")[2]) for row in rows] == [2, 3]
    # Must and goal are those of ResNet-50.
    pattern = r"\| \*\*the recipe\*\*, float32, plain \| \d \| [\d,]+ \| [\d,]+ to [\d,]+ \| - \| - \| - \|"
    assert all(re.fullmatch(pattern, row) for row in rows), rows
    assert "the recipe's step is not fused: it needs a GPU of compute capability 9.0 or newer" in done.err
