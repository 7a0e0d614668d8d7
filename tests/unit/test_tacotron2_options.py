"""The command line of the Tacotron2 recipe: pure, and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster.recipes.tacotron2.options import parse, without_meaning

# github NVIDIA/DeepLearningExamples, PyTorch/SpeechSynthesis/Tacotron2, and LambdaLabsML/examples: what people type.
ORIGINAL = (
    "-m Tacotron2 -o ./output/ -lr 1e-3 --epochs 1501 -bs 128 --weight-decay 1e-6 --grad-clip-thresh 1.0 "
    "--cudnn-enabled --log-file nvlog.json --anneal-steps 500 1000 1500 --anneal-factor 0.1 --amp --seed 5 "
    "--training-files filelists/train.txt --validation-files filelists/val.txt -d LJSpeech-1.1 --load-mel-from-disk "
    "--text-cleaners english_cleaners --epochs-per-checkpoint 100 --checkpoint-path c.pt --resume-from-last "
    "--dynamic-loss-scaling True --cudnn-benchmark --disable-uniform-initialize-bn-weight "
    "--use-saved-learning-rate False --grad-clip 5.0 --max-wav-value 32768.0 --sampling-rate 22050 "
    "--filter-length 1024 --hop-length 256 --win-length 1024 --mel-fmin 0.0 --mel-fmax 8000.0 --rank 0 --world-size 1 "
    "--dist-url tcp://localhost:23456 --group-name group_name --dist-backend nccl --bench-class x --mask-padding False "
    "--n-mel-channels 80 --n-symbols 148 --symbols-embedding-dim 512 --encoder-kernel-size 5 "
    "--encoder-n-convolutions 3 --encoder-embedding-dim 512 --n-frames-per-step 1 --decoder-rnn-dim 1024 "
    "--prenet-dim 256 --max-decoder-steps 2000 --gate-threshold 0.5 --p-attention-dropout 0.1 --p-decoder-dropout 0.1 "
    "--decoder-no-early-stopping --attention-rnn-dim 1024 --attention-dim 128 --attention-location-n-filters 32 "
    "--attention-location-kernel-size 31 --postnet-embedding-dim 512 --postnet-kernel-size 5 "
    "--postnet-n-convolutions 5 --local_rank=1"
)


def test_every_flag_of_the_original_script_is_understood():
    args = parse(ORIGINAL.split())
    assert (args.batch_size, args.learning_rate, args.epochs, args.anneal_steps) == (128, 1e-3, 1501, [500, 1000, 1500])
    assert (args.mask_padding, args.resume, args.local_rank) == (False, True, 1)
    names = {line.split()[0] for line in without_meaning(args)}
    assert names == {
        "--log-file",
        "--dynamic-loss-scaling",
        "--cudnn-enabled",
        "--cudnn-benchmark",
        "--grad-clip",
        "--rank",
        "--world-size",
        "--dist-url",
        "--group-name",
        "--bench-class",
    }
    assert without_meaning(parse([])) == []


def test_an_epoch_count_is_short_for_made_up_clips_only():
    assert parse([]).epochs == 1501
    assert parse(["--use_syn"]).epochs == 3


def test_a_config_file_sets_flags_and_the_command_line_overrides_them(tmp_path: Path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"train": {"epochs": 7, "batch-size": 3}, "amp": True, "color": "red"}))
    args = parse(["--config-file", str(path), "--epochs", "9"])
    assert (args.epochs, args.batch_size, args.amp) == (9, 3, True)
    assert "unknown flag color is ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--epochs", "-2"], "argument --epochs: must be at least 1, got -2"),
        (["-bs", "0"], "--batch-size/--batch_size: must be at least 1, got 0"),
        (["--attention-location-kernel-size", "4"], "must be odd"),
        (["--mask-padding", "perhaps"], "neither true nor false"),
        (["-m", "WaveGlow"], "WaveGlow"),
        (["--n-mel-channels", "0"], "--n-mel-channels: must be at least 1, got 0"),
        (["--hop-length", "0"], "--hop-length: must be at least 1, got 0"),
        (["--grad-clip-thresh", "-1"], "--grad-clip-thresh: must be above 0, got -1"),
        (["--syn-scale", "-1"], "--syn-scale: must be above 0, got -1"),
        (["--guided-attention", "-1"], "--guided-attention: must be at least 0, got -1"),
        (["--epochs", "0"], "--epochs: must be at least 1, got 0"),
        (["--p-decoder-dropout", "1.5"], "must be at most 1, got 1.5"),
        (["--encoder-kernel-size", "4"], "must be odd, got 4"),
        (["--win-length", "2048"], "--win-length must be at most --filter-length 1024, got 2048"),
        (["--mel-fmin", "9000"], "--mel-fmin must be below --mel-fmax 8000, got 9000"),
        (["--gate-threshold", "nan"], "must be a finite number, got nan"),
        (["--config-file", "/nowhere.json"], "cannot read --config-file /nowhere.json"),
    ],
)
def test_what_makes_no_sense_is_refused(argv, words, capsys):
    with pytest.raises(SystemExit) as left:
        parse(argv)
    assert left.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "must contain a JSON object"),
        ("[" * 99999, "cannot read --config-file"),
        ('{"batch-size": -5}', "must be at least 1, got -5"),
        ('{"batch_size": [1, 2]}', "2"),
        ('{"train": {"precision": "int4"}}', "invalid choice: 'int4'"),
        ('{"mask-padding": "perhaps"}', "neither true nor false"),
    ],
)
def test_a_config_file_with_nonsense_is_refused(content, words, tmp_path: Path, capsys):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(SystemExit) as left:
        parse(["--config-file", str(path)])
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_help_comes_without_torch():
    code = "import sys, runpy; sys.modules['torch'] = None; sys.argv[1:] = ['--help']\n"
    code += "runpy.run_module('muster.recipes.tacotron2', run_name='__main__', alter_sys=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "muster run -m muster.recipes.tacotron2 -d LJSpeech-1.1" in done.stdout
