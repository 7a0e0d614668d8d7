"""Checkpoints on disk: what is complete, what is not, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import UsageError
from muster.training.checkpoint_folders import MARKER, find_complete, folder_of, make_room, mark_complete, prune


def save(root: Path, step: int, *, complete: bool = True) -> Path:
    folder = folder_of(root, step)
    make_room(root, folder)
    (folder / ".metadata").write_bytes(b"about")
    (folder / "__0_0.distcp").write_bytes(b"x" * 100)
    if complete:
        mark_complete(folder, ranks=2, about={"arch": "resnet50"})
    return folder


NONSENSE = ['{"files": null, "ranks": 1, "about": {}}', '{"files": {}, "ranks": 1, "about": 3}', "[]", "[" * 99999]


def steps(root: Path) -> list[int]:
    return [complete.step for complete in find_complete(root)[0]]


def test_only_what_has_a_marker_is_complete_and_the_newest_comes_last(tmp_path):
    for step in (100, 9, 20):
        save(tmp_path, step)
    save(tmp_path, 300, complete=False)
    (tmp_path / "step-not-ours").mkdir()
    (tmp_path / "step-00000400").write_text("a file of that name")
    found, damaged = find_complete(tmp_path)
    assert ([complete.step for complete in found], damaged) == ([9, 20, 100], [])
    assert found[-1].ranks == 2
    assert found[-1].about == {"arch": "resnet50"}


def test_a_folder_that_is_not_there_holds_nothing(tmp_path):
    assert find_complete(tmp_path / "nowhere") == ([], [])


def test_a_file_that_became_shorter_or_went_makes_a_checkpoint_damaged(tmp_path):
    (save(tmp_path, 1) / "__0_0.distcp").write_bytes(b"x" * 60)
    (save(tmp_path, 2) / ".metadata").unlink()
    (save(tmp_path, 3) / MARKER).write_text('{"ranks": 2')
    for step, text in enumerate(NONSENSE, 5):
        (save(tmp_path, step) / MARKER).write_text(text)
    save(tmp_path, 4)
    found, damaged = find_complete(tmp_path)
    assert [complete.step for complete in found] == [4]
    assert "step-00000001 is damaged: __0_0.distcp has 60 bytes instead of 100" in damaged[0]
    assert "step-00000002 is damaged: .metadata is missing" in damaged[1]
    assert all(f" is damaged: cannot read {MARKER}" in sentence for sentence in damaged[2:])
    assert len(damaged) == 3 + len(NONSENSE)


def test_the_newest_stay(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step)
    prune(tmp_path, 2)
    assert steps(tmp_path) == [4, 5]
    prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_room_is_made_of_what_interrupted_runs_left_and_never_of_a_complete_checkpoint(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2, complete=False)
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]
    with pytest.raises(UsageError, match="step-00000003 already has a complete checkpoint"):
        make_room(tmp_path, folder_of(tmp_path, 3))
    assert steps(tmp_path) == [1, 3]


def test_a_damaged_checkpoint_gives_way_to_a_new_one_of_its_step(tmp_path):
    (save(tmp_path, 3) / "__0_0.distcp").write_bytes(b"")
    save(tmp_path, 3)
    assert find_complete(tmp_path)[1] == []
    assert steps(tmp_path) == [3]
