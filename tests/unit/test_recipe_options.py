"""The command line and the learning rate of the ResNet recipe: pure, and without torch."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from muster.recipes.resnet50.options import build_parser, parse
from muster.recipes.resnet50.schedule import learning_rate

# github LambdaLabsML/examples, pytorch/distributed/resnet/main.py: what people type today.
ORIGINAL = {
    "num_epochs": 100,
    "batch_size": 256,
    "image_size": 224,
    "learning_rate": 0.1,
    "random_seed": 0,
    "model_filename": "resnet_distributed.pth",
    "resume": False,
    "arch": "resnet50",
    "use_syn": False,
    "steps_syn": 20,
    "local_rank": None,
}


def test_the_flags_of_the_original_script_keep_their_names_and_defaults():
    defaults = vars(parse([]))
    assert {name: defaults[name] for name in ORIGINAL} == ORIGINAL


def test_a_command_line_of_the_original_script_is_understood():
    argv = "--local_rank=1 --num_epochs 2 --batch_size 8 --learning_rate 0.2 --random_seed 3 --model_dir m "
    argv += "--model_filename w.pth --resume --backend gloo --arch resnet152 --use_syn --steps_syn 4 --image_size 64"
    args = parse(argv.split())
    assert (args.local_rank, args.num_epochs, args.model_dir, args.backend, args.arch) == (
        1,
        2,
        "m",
        "gloo",
        "resnet152",
    )
    assert parse(["--local-rank=3"]).local_rank == 3


NONSENSE = ["--num_epochs 0", "--batch_size -1", "--accumulate 0", "--keep 0", "--arch vgg", "--momentum 5"]
NONSENSE += ["--label_smoothing 2", "--learning_rate nan", "--learning_rate inf", "--learning_rate -1", "--timeout 0"]
NONSENSE += [
    "--weight_decay -1",
    "--warmup -1",
    "--random_seed 99999999999999999999",
    "--workers -1",
    "--save_every -1",
]


@pytest.mark.parametrize("word", NONSENSE)
def test_what_makes_no_sense_is_refused_before_anything_starts(word, capsys):
    with pytest.raises(SystemExit) as left:
        parse(word.split())
    assert left.value.code == 2
    assert word.split()[0] in capsys.readouterr().err


def test_help_shows_examples_and_costs_no_torch():
    code = (
        "import sys; sys.argv[1:] = ['--help']; import atexit; atexit.register(lambda: print('torch' in sys.modules));"
    )
    code += "import runpy; runpy.run_module('muster.recipes.resnet50', run_name='__main__')"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert out.returncode == 0
    assert out.stdout.splitlines()[-1] == "False"
    assert "muster run -m muster.recipes.resnet50 --data data" in out.stdout


def test_every_option_is_explained():
    unexplained = [action.dest for action in build_parser()._actions if not action.help]
    assert unexplained == []


@pytest.mark.parametrize("schedule", ["cosine", "linear", "step", "constant"])
def test_the_rate_rises_over_the_warm_up_and_never_falls_below_zero(schedule):
    at = [learning_rate(schedule, i / 10, epochs=30, warmup=5) for i in range(301)]
    assert at[0] == 0
    assert at[25] == pytest.approx(0.5)
    assert at[50] == pytest.approx(1)
    assert all(0 <= rate <= 1 for rate in at)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(at[50:]))


@pytest.mark.parametrize(("schedule", "end"), [("cosine", 0.0), ("linear", 0.0), ("step", 0.01), ("constant", 1.0)])
def test_each_schedule_ends_at_its_last_rate(schedule, end):
    assert learning_rate(schedule, 30.0, epochs=30, warmup=5) == pytest.approx(end)


def test_a_short_run_has_a_short_warm_up_and_none_is_fine_too():
    assert learning_rate("cosine", 0.2, epochs=1, warmup=5) == pytest.approx(1)
    assert learning_rate("cosine", 0.0, epochs=10, warmup=0) == 1
