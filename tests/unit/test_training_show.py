"""Output of a training run: metrics as JSON lines, the plot, and formatted times."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UsageError
from muster.training.metrics import FILE, Metrics, read_rows
from muster.training.plot import svg, ticks


def points(text: str) -> list[int]:
    """How many points each line of a plot has."""
    root = ElementTree.fromstring(text)
    return [len(line.attrib["points"].split()) for line in root.iter("{http://www.w3.org/2000/svg}polyline")]


def test_a_plot_has_a_panel_for_each_number_that_was_noted():
    rows = [{"step": step, "loss": 1 / (step + 1), "images_per_s": 1000.0} for step in range(30)]
    text = svg(
        [*rows, {"step": 30, "accuracy": 0.9}, {"step": 60, "accuracy": 0.95}], ["loss", "images_per_s", "accuracy"]
    )
    assert points(text) == [30, 30, 2]
    assert "images per s" in text


def test_numbers_that_are_none_are_left_out_and_one_point_is_a_dot():
    rows = [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": float("inf")}]
    text = svg(rows, ["loss", "accuracy"])
    assert points(text) == []
    assert text.count("<circle") == 1


def test_a_plot_of_nothing_is_still_a_picture():
    assert ElementTree.fromstring(svg([], ["loss"])).tag.endswith("svg")


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_are_few_and_cover_the_range(low, span):
    high = low + span
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 7
    slack = 1e-6 * (abs(low) + abs(high) + 1e-3)
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack
    assert marks == sorted(marks)


# In a process without torch, where `torch.utils.tensorboard` cannot be imported.
WRITE = """
import sys
sys.modules["torch"] = None
from muster.training.metrics import Metrics
metrics = Metrics(sys.argv[1])
for step in map(int, sys.argv[2:]):
    metrics.write({"step": step, "loss": 1.0 / step})
metrics.close()
"""


def write(folder, *steps):
    argv = [sys.executable, "-c", WRITE, str(folder), *map(str, steps)]
    subprocess.run(argv, check=True, timeout=100)


def test_metrics_are_lines_of_json_and_a_resumed_run_adds_to_them(tmp_path):
    write(tmp_path / "new" / "place", 10, 20, 30)
    file = tmp_path / "new" / "place" / FILE
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(10, 0.1), (20, 0.05), (30, 1 / 30)]
    assert all(line["time"] > 1.7e9 for line in lines)
    with file.open("a") as end:
        end.write('{"step": 40, "lo')  # killed here
    file.write_text(file.read_text() + "\n")
    write(file.parent, 20, 40)
    assert [row["step"] for row in read_rows(file.parent)] == [10, 20, 30, 40]
    assert len(file.read_text().splitlines()) == 6


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write metrics to"):
        Metrics(tmp_path / "file")
