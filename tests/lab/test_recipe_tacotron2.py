"""The Tacotron2 recipe from the outside: training, resuming, inference, and errors for bad input."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import struct
import wave
from pathlib import Path

import pytest
from bare import ENV, script
from recipes import Command, Ended, wrong

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

TACOTRON2 = "muster.recipes.tacotron2"
WIDTHS = ("symbols-embedding", "encoder-embedding", "decoder-rnn", "prenet", "attention-rnn", "attention")
TINY = [word for name in (*WIDTHS, "postnet-embedding") for word in (f"--{name}-dim", "16")]
SHORT = ("-bs", "2", "--log_every", "2", "--epochs", "2")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Twenty clips of a tone each, in the form of LJSpeech."""
    folder = tmp_path / "speech"
    lines = []
    for i in range(20):
        write_tone(folder / "wavs" / f"T{i:02}.wav", seconds=0.1 + 0.01 * i, frequency=200 + 30 * i)
        lines.append(f"T{i:02}|Tone {i}.|A tone of {i}.\n")
    (folder / "metadata.csv").write_text("".join(lines))
    return folder


def write_tone(path: Path, *, seconds: float, frequency: float, rate: int = 22050, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = [round(9000 * math.sin(2 * math.pi * frequency * i / rate)) for i in range(round(seconds * rate))]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(struct.pack(f"<{len(samples) * channels}h", *(s for s in samples for _ in range(channels))))


def test_it_trains_validates_draws_resumes_and_speaks(python, corpus, tmp_path):
    argv = ["-d", corpus, "-o", "out", *TINY, *SHORT, "--epochs-per-checkpoint", "1"]
    first = python.run(TACOTRON2, *argv, "--cudnn-enabled", folder=tmp_path)
    assert (first.code, first.err) == (0, "")
    assert "--cudnn-enabled is ignored: cuDNN is used if available" in first.out
    assert "on 19 clips, 0.0 hours and 1 for validation; 1 rank on cpu (gloo), float32, plain decoder" in first.out
    assert re.search(r"step 2  loss \d+\.\d+ .* mels/s", first.out)
    assert re.search(r"without padding: loss \d+\.\d+", first.out)
    numbers = r"loss \d+\.\d+, without padding \d+\.\d+, focus 0\.\d+, diagonal 0\.\d+ on 1 clips"
    assert re.match(rf"epoch 2: validation {numbers}", first.last)
    out = tmp_path / "out"
    assert {"alignment.png", "alignment-epoch-0001.png", "tacotron2.pt", "metrics.jsonl"} <= set(os.listdir(out))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert any("val_loss" in row for row in rows)
    assert any("unpadded_loss" in row for row in rows)
    (kept,) = sorted((corpus / "mels").iterdir())[:1]
    written = kept.stat().st_mtime_ns

    wrong(python.run(TACOTRON2, *argv, folder=tmp_path), "out already has checkpoints of a run")
    longer = [*argv[:-2], "--epochs", "3", "--resume"]
    again = python.run(TACOTRON2, *longer, folder=tmp_path)
    assert (again.code, again.err) == (0, "")
    assert "from step 18, epoch 2" in again.out
    assert again.last.startswith("epoch 3: validation loss")
    assert kept.stat().st_mtime_ns == written

    spoken = python.run(
        f"{TACOTRON2}.infer",
        "-c",
        "out",
        "Hello.",
        "-w",
        "x.wav",
        "--max-decoder-steps",
        20,
        "--rounds",
        2,
        folder=tmp_path,
    )
    assert (spoken.code, spoken.err) == (0, "")
    assert re.match(r"x\.wav: \d+ frames, \d\.\d s", spoken.out)
    with wave.open(str(tmp_path / "x.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (22050, 1, 2)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    wrong(python.run(f"{TACOTRON2}.infer", "-c", "out", "日本", folder=tmp_path), "text 1 has no pronounceable symbols")
    wrong(python.run(f"{TACOTRON2}.infer", "-c", "nowhere", "Hello.", folder=tmp_path), "nowhere does not exist")


def test_epochs_of_a_few_steps_are_not_all_validated(python, corpus, tmp_path):
    argv = ["-d", corpus, *TINY, "--log_every", "50"]
    short = ["-o", "out", "-bs", "4", "--epochs", "6", "--epochs-per-checkpoint", "5"]  # of 4 steps
    ended = python.run(TACOTRON2, *argv, *short, folder=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    validated = re.findall(r"^epoch (\d+): validation", ended.out, re.MULTILINE)
    assert validated == ["1", "5", "6", "6"]  # the last one is printed again at the end
    ended = python.run(TACOTRON2, *argv, "-o", "other", "-bs", "1", "--epochs", "8", folder=tmp_path)  # of 19 steps
    assert re.findall(r"^epoch (\d+): validation", ended.out, re.MULTILINE) == ["1", "7", "8", "8"]


def test_a_network_speaks_with_the_hop_it_was_trained_with(python, corpus, tmp_path):
    argv = ["-d", corpus, "-o", "out", *TINY, *SHORT, "--hop-length", "512"]
    assert python.run(TACOTRON2, *argv, folder=tmp_path).code == 0
    words = ["-c", "out", "Hello.", "-w", "x.wav", "--max-decoder-steps", 20, "--gate-threshold", 1, "--rounds", 2]
    spoken = python.run(f"{TACOTRON2}.infer", *words, folder=tmp_path)
    assert spoken.out.startswith("x.wav: 20 frames, 0.5 s"), spoken
    again = python.run(TACOTRON2, *argv[:-2], "--resume", folder=tmp_path)
    wrong(again, "hop_length 512", "256")
    with wave.open(str(tmp_path / "x.wav")) as file:
        assert file.getnframes() == 19 * 512


def test_a_checkpoint_of_the_original_resumes_in_its_epoch(python, corpus, tmp_path):
    import torch  # here, because finding the tests of this file should not take it

    argv = ["-d", corpus, *TINY, *SHORT]
    assert python.run(TACOTRON2, *argv, "-o", "a", folder=tmp_path).code == 0
    other = python.run(TACOTRON2, *argv[:-1], "3", "-o", "b", "--checkpoint-path", "a/tacotron2.pt", folder=tmp_path)
    assert (other.code, other.err) == (0, "")
    assert "with a/tacotron2.pt, in epoch 2" in other.out
    # NVIDIA's files hold Adam's state too, in the order of the parameters; old ones count steps in plain numbers.
    content = torch.load(tmp_path / "a" / "tacotron2.pt", weights_only=True)
    weights = [w for n, w in content["state_dict"].items() if not re.search("running_|num_batches", n)]
    state = {i: {"step": 7, "exp_avg": w * 0, "exp_avg_sq": w * 0} for i, w in enumerate(weights)}
    group = {"lr": 0.5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-6, "amsgrad": False}
    content["optimizer"] = {"state": state, "param_groups": [{**group, "params": list(range(len(weights)))}]}
    content["state_dict"] = {f"module.{name}": weight for name, weight in content["state_dict"].items()}
    torch.save(content, tmp_path / "checkpoint_Tacotron2_1.pt")
    original = ["-o", "d", "--checkpoint-path", "checkpoint_Tacotron2_1.pt"]
    third = python.run(TACOTRON2, *argv[:-1], "3", *original, folder=tmp_path)
    assert (third.code, third.err) == (0, "")
    assert "with checkpoint_Tacotron2_1.pt, in epoch 2" in third.out
    for name, value in (("optimizer", {"state": 5}), ("epoch", "two"), ("state_dict", {1: 2})):
        torch.save({**content, name: value}, tmp_path / "damaged.pt")
        damaged = python.run(TACOTRON2, *argv, "-o", "c", "--checkpoint-path", "damaged.pt", folder=tmp_path)
        wrong(damaged, "damaged.pt is", "not a checkpoint" if name == "state_dict" else f"damaged: its {name}")
    sizes = [*argv, "--prenet-dim", "24", "-o", "c", "--checkpoint-path", "a/tacotron2.pt"]
    wrong(python.run(TACOTRON2, *sizes, folder=tmp_path), "a/tacotron2.pt has a network of different sizes")


def test_file_lists_of_nvidia_are_read(python, corpus, tmp_path):
    lines = [f"speech/wavs/T{i:02}.wav|The tone {{HH AH0}} number {i}.\n" for i in range(20)]
    (corpus / "train.txt").write_text("".join(lines[:16]))
    (corpus / "val.txt").write_text("".join(lines[16:]))
    lists = ["--training-files", corpus / "train.txt", "--validation-files", corpus / "val.txt"]
    done = python.run(TACOTRON2, "-d", corpus, *lists, "-o", "out", *TINY, *SHORT, "--decoder", "fast", folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "on 16 clips, 0.0 hours and 4 for validation" in done.out
    assert "fast decoder" in done.out


def test_bad_clips_are_named_or_skipped_counted_and_listed(python, corpus, tmp_path):
    argv = ["-d", corpus, "-o", "out", *TINY, *SHORT]

    def run(*more: object) -> Ended:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        return python.run(TACOTRON2, *argv, *more, folder=tmp_path)

    write_tone(corpus / "wavs" / "T00.wav", seconds=0.2, frequency=300, rate=16000)
    wrong(run(), "clip T00", "has 16000 samples per second, expected 22050")
    write_tone(corpus / "wavs" / "T00.wav", seconds=0.2, frequency=300, channels=2)
    wrong(run(), "clip T00", "has 2 channels")
    (corpus / "wavs" / "T00.wav").write_bytes(b"RIFF nothing")
    wrong(run(), "clip T00", "cannot read the wav file")
    (corpus / "wavs" / "T00.wav").unlink()
    wrong(run(), "clip T00", "T00.wav does not exist")
    table = corpus / "metadata.csv"
    text = table.read_text()
    table.write_text(text.replace("|A tone of 1.", "|").replace("|A tone of 2.", "|日本"))
    wrong(run(), "clip T00", "(and 2 more bad clips)")
    skipped = run("--skip-bad")
    assert (skipped.code, skipped.err) == (0, "")
    assert "skipped clip T01: its text is empty" in skipped.out
    assert "skipped clip T02: its text has unknown letters: 日 本" in skipped.out
    assert "skipped 3 clips" in skipped.out


def test_damaged_mels_in_the_cache_are_computed_again(python, corpus, tmp_path):
    argv = ["-d", corpus, *TINY, *SHORT, "--epochs", "1"]
    assert python.run(TACOTRON2, *argv, "-o", "a", folder=tmp_path).code == 0
    files = sorted((corpus / "mels").iterdir())
    sizes = [file.stat().st_size for file in files]
    assert len(files) == 2
    files[0].write_bytes(files[0].read_bytes()[:5000])
    files[1].write_bytes(b"nothing")
    again = python.run(TACOTRON2, *argv, "-o", "b", folder=tmp_path)
    assert (again.code, again.err) == (0, "")
    assert [file.stat().st_size for file in files] == sizes


def test_bad_arguments_are_one_sentence(python, corpus, tmp_path):
    wrong(python.run(TACOTRON2, "-d", "nowhere", folder=tmp_path), "data directory nowhere does not exist")
    wrong(
        python.run(TACOTRON2, "-d", corpus, "--text-cleaners", "klingon", folder=tmp_path),
        "unknown text cleaner klingon",
    )
    large = python.run(TACOTRON2, "-d", corpus, *TINY, "-bs", "64", folder=tmp_path)
    wrong(large, "a batch of 64 samples is larger than the data set, which has 19")
    assert python.run(TACOTRON2, "--epochs", "-1", folder=tmp_path).code == 2
    wave_glow = python.run(TACOTRON2, "-m", "WaveGlow", folder=tmp_path)
    assert wave_glow.code == 2
    assert "WaveGlow" in wave_glow.err


def test_two_ranks_share_the_clips_and_end_with_the_same_weights(warm, tmp_path):
    code = f"""
import sys, torch, torch.distributed as dist
import muster.recipes.tacotron2.train as train
from muster.recipes.tacotron2.options import parse
finish = train.train
def check(run):
    finish(run)
    flat = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    both = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(both, flat)
    if run.world.rank == 0:
        print("the same weights:", torch.equal(*both), flush=True)
train.train = check
train.main(parse({[*TINY, *SHORT, "--use_syn", "--steps_syn", "3", "--syn-scale", "0.03"]!r}))
"""
    done = Command(warm / "torchrun", "--nproc-per-node=2", script(tmp_path, code)).end()
    assert done.code == 0, done.err
    assert "on 12 synthetic clips" in done.out
    assert "2 ranks on cpu (gloo), float32, plain decoder, batch 4" in done.out
    assert "the same weights: True" in done.out


def test_the_bench_prints_a_table(python, tmp_path):
    argv = ["--small", "--batch", 2, "--symbols", 4, "--frames", 6, "--rounds", 1, "--plain"]
    done = python.run(f"{TACOTRON2}.bench", *argv, folder=tmp_path)
    assert done.code == 0, done.err
    assert "| the recipe, float32, plain decoder |" in done.out
    assert "| the recipe, float32, fast decoder |" in done.out


def test_a_corpus_needs_espeak_and_a_new_folder(python, tmp_path):
    if shutil.which("espeak-ng", path=ENV["PATH"]) is None:
        wrong(python.run(f"{TACOTRON2}.corpus", "x", folder=tmp_path), "espeak-ng is not installed")
        return
    made = python.run(f"{TACOTRON2}.corpus", "x", "--hours", "0.001", folder=tmp_path)
    assert made.code == 0, made.err
    assert (tmp_path / "x" / "wavs" / "ES000001.wav").exists()
    wrong(python.run(f"{TACOTRON2}.corpus", "x", folder=tmp_path), "x already has a corpus")
