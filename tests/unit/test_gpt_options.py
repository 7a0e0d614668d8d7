"""The command line of the GPT recipe: pure, and without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from muster.recipes.gpt.options import build_parser, parse


def test_a_size_is_a_shape_that_single_flags_override():
    args = parse(["--size", "gpt2", "--context", "512"])
    assert (args.layers, args.heads, args.width, args.context) == (12, 12, 768, 512)


NONSENSE = ["--epochs 0", "--batch -1", "--micro_batch 0", "--lr nan", "--lr 0", "--warmup 1", "--clip -1", "--bpe 256"]
NONSENSE += ["--size huge", "--strategy zero", "--optimizer sgd", "--precision fp8", "--recompute some", "--seed -1"]
NONSENSE += ["--context 1", "--heads 0", "--shard_ranks 0", "--keep 0", "--timeout 0", "--bat 3"]


@pytest.mark.parametrize("word", NONSENSE)
def test_what_makes_no_sense_is_refused_before_anything_starts(word, capsys):
    with pytest.raises(SystemExit) as left:
        parse(word.split())
    assert left.value.code == 2
    assert word.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [("--width 100 --heads 3", "must be a multiple of --heads, got 100 and 3"), ("--resume", "--resume needs --out")],
)
def test_flags_that_contradict_each_other_are_one_sentence(argv, words, capsys):
    with pytest.raises(SystemExit) as left:
        parse(argv.split())
    assert left.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("module", ["muster.recipes.gpt", "muster.recipes.gpt.generate"])
def test_help_costs_no_torch(module):
    code = (
        "import sys; sys.argv[1:] = ['--help']; import atexit; atexit.register(lambda: print('torch' in sys.modules))"
    )
    code += f"; import runpy; runpy.run_module({module!r}, run_name='__main__')"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert out.returncode == 0
    assert out.stdout.splitlines()[-1] == "False"


def test_every_option_is_explained():
    assert [action.dest for action in build_parser()._actions if not action.help] == []
