"""`muster recipes`, as a user types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools.console import CodeFile, apply_diff, read_page

from muster.cli import main
from muster.cli.recipes import copy_recipe, find_recipes, summary


def test_the_list_shows_each_recipe_with_one_line(capsys):
    assert main(["recipes"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {
        "ddp",
        "hello",
        "message_passing",
        "check_config",
        "mnist",
        "mnist_unequal",
        "resnet50",
        "tacotron2",
    } <= lines.keys()
    assert lines["hello"] == "Every rank says hello, in rank order"


def test_the_list_loads_no_recipe_and_no_torch():
    code = """
import sys, muster.cli
muster.cli.main(["recipes"])
print([name for name in sys.modules if name.startswith(("torch", "muster.recipes"))])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert out.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", find_recipes())
def test_every_recipe_opens_with_the_commands_that_run_it(name):
    source = find_recipes()[name]
    text = (source / "__init__.py" if source.is_dir() else source).read_text()
    docstring = text.split('"""')[1]
    for command in ("muster run", "torchrun", "mpirun", "python -m"):
        assert f"{command} " in docstring
    assert f"muster.recipes.{name}" in docstring


def test_the_guide_to_ddp_shows_the_recipe_itself():
    page = Path(__file__).parents[2] / "docs" / "ddp.md"
    shown = {one.name: one.text for one in read_page(page.read_text()) if isinstance(one, CodeFile)}
    recipe = find_recipes()["ddp"].read_text()
    assert apply_diff(shown["train.py -> ddp.py"], shown["train.py"]) == recipe
    assert "import muster" not in recipe


def test_a_learner_can_read_mnist_at_once():
    text = find_recipes()["mnist"].read_text()
    assert len(text.splitlines()) <= 130


def test_a_copy_is_the_source_itself_and_a_second_one_needs_force(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "hello"]) == 0
    out = capsys.readouterr()
    assert out.out == "hello.py\n"
    assert "muster run hello.py" in out.err
    copy = Path("hello.py")
    assert copy.read_bytes() == find_recipes()["hello"].read_bytes()
    copy.write_text("mine")
    assert main(["recipes", "copy", "hello"]) == 2
    assert "hello.py already exists" in capsys.readouterr().err
    assert copy.read_text() == "mine"
    assert main(["recipes", "copy", "hello", "--force"]) == 0
    assert copy.read_text() != "mine"


def test_a_copy_goes_to_the_given_directory(tmp_path):
    assert main(["recipes", "copy", "hello", "--to", str(tmp_path / "new" / "place")]) == 0
    assert (tmp_path / "new" / "place" / "hello.py").is_file()


def test_a_copy_into_a_file_is_refused_in_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["recipes", "copy", "hello", "--to", str(tmp_path / "file")]) == 2
    assert "could not write" in capsys.readouterr().err


def test_an_unknown_recipe_gets_a_suggestion(capsys):
    assert main(["recipes", "copy", "message-passing"]) == 2
    err = capsys.readouterr().err
    assert "unknown recipe `message-passing`" in err
    assert "muster recipes copy message_passing" in err


def test_a_recipe_that_is_a_folder_is_copied_without_caches_and_keeps_the_users_files(tmp_path):
    source = tmp_path / "recipes" / "large"
    (source / "__pycache__").mkdir(parents=True)
    (source / "__pycache__" / "x.pyc").write_bytes(b"")
    (source / "__init__.py").write_text('"""A large one.\n\nMore."""\n')
    (source / "model.py").write_text("depth = 50\n")
    assert summary(source) == "A large one"
    target = copy_recipe({"large": source}, "large", tmp_path / "here", force=False)
    assert sorted(p.name for p in target.iterdir()) == ["__init__.py", "model.py"]
    (target / "notes.txt").write_text("mine")
    (target / "model.py").write_text("depth = 18\n")
    copy_recipe({"large": source}, "large", tmp_path / "here", force=True)
    assert (target / "notes.txt").read_text() == "mine"
    assert (target / "model.py").read_text() == "depth = 50\n"


def test_the_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as left:
        main(["recipes", "--help"])
    assert left.value.code == 0
    assert "muster recipes copy hello" in capsys.readouterr().out
