"""What a script shows before it runs, and that nothing is called missing which a rank might find."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from muster.agent.code_sync import first_missing
from muster.controller.preflight import Preflight, check_imports, check_syntax, read_job, read_script
from muster.controller.source_code import find_script
from muster.errors import ScriptError, UsageError
from muster.job import Job, Script
from muster.spec import RunSpec

JOB = Job(id="j", spec=RunSpec(target="train.py", cwd="/"), hosts=(), carried={})


def read(folder: Path, text: str | bytes) -> Preflight:
    path = folder / "train.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_script(path)


def imports(folder: Path, text: str) -> list[str]:
    return [name for name, _ in read(folder, text).imports]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("import os\nprint('x'\n", 2, "SyntaxError: '(' was never closed"),
        ("return 3\n", 1, "SyntaxError: 'return' outside function"),
        ("if True:\nprint()\n", 2, "IndentationError: expected an indented block"),
    ],
)
def test_a_syntax_error_is_found_with_its_line(tmp_path: Path, text: str, line: int, what: str):
    error = read(tmp_path, text).syntax_error
    assert f'File "{tmp_path}/train.py", line {line}\n' in error
    assert what in error


@pytest.mark.parametrize(
    "text",
    [
        "from __future__ import annotations\nx: Nowhere = 1\n",
        "print('a\\d')\nx = 1 is 1\n",
        "# -*- coding: latin-1 -*-\nname = '\xe4'\n".encode("latin-1"),
        "async def f():\n    async with g() as h: await h\n",
        "match 1:\n    case 1: pass\n",
        "",
    ],
)
def test_a_script_that_runs_has_no_syntax_error_and_gives_no_warning(
    tmp_path: Path, text: str | bytes, recwarn: pytest.WarningsRecorder
):
    assert read(tmp_path, text).syntax_error == ""
    assert not list(recwarn)


def test_a_module_that_python_runs_by_name_must_be_found_unless_it_is_in_the_working_directory(tmp_path: Path):
    spec = RunSpec(target="nosuch.train", kind="module", cwd=str(tmp_path))
    assert read_job(replace(JOB, spec=spec)).imports == (("nosuch", 0),)
    script = Script(path="nosuch/train.py", digest=[], text="")
    assert read_job(replace(JOB, spec=spec, script=script)) == Preflight()


def test_imports_are_not_judged_if_the_ranks_get_variables_of_python(tmp_path: Path):
    (tmp_path / "train.py").write_text("import wandb\n")
    spec = RunSpec(target="train.py", cwd=str(tmp_path))
    job = replace(JOB, spec=spec, script=Script(path="train.py", digest=[], text=""))
    assert read_job(job).imports == (("wandb", 1),)
    assert read_job(replace(job, spec=replace(spec, env={"PYTHONPATH": "lib"}))).imports == ()
    module = RunSpec(target="nosuch.train", kind="module", cwd=str(tmp_path), env={"PYTHONPATH": "lib"})
    assert read_job(replace(JOB, spec=module)) == Preflight()


def test_imports_are_not_judged_behind_a_preloaded_module_which_may_change_the_path(tmp_path: Path):
    (tmp_path / "train.py").write_text("import wandb\n")
    spec = RunSpec(target="train.py", cwd=str(tmp_path), preload=("our_paths",))
    assert read_job(replace(JOB, spec=spec, script=Script(path="train.py", digest=[], text=""))) == Preflight()


def test_main_is_not_missing_although_no_finder_has_it(tmp_path: Path):
    assert first_missing(["__main__"], str(tmp_path), "train.py") == ""
    assert first_missing(["no_such_module"], str(tmp_path), "train.py") == "no_such_module"


def test_what_cannot_be_judged_is_left_to_the_ranks(tmp_path: Path):
    assert read(tmp_path, b"x = 1\0\n").imports == ()
    assert read(tmp_path, "(" * 300_000) == Preflight()
    assert read_script(tmp_path / "missing.py") == Preflight()
    assert read(tmp_path, "# coding: a_codec_of_a_package\nprint()\n") == Preflight()


def test_only_imports_are_judged_that_run_before_anything_could_change_where_modules_are_found(tmp_path: Path):
    assert imports(tmp_path, '"""Doc."""\nimport os, sys\nimport torch.nn as nn\nimport wandb\nimport more\n') == [
        "os",
        "sys",
        "torch",
        "wandb",
    ]
    assert imports(tmp_path, "import os\nsys.path.insert(0, 'x')\nimport wandb\n") == ["os"]
    assert imports(tmp_path, "try:\n    import wandb\nexcept ImportError:\n    pass\n") == []
    assert imports(tmp_path, "if x:\n    import wandb\n") == []
    assert imports(tmp_path, "from . import wandb\n") == []
    assert imports(tmp_path, "from a.b import c\nimport d\n") == ["a"]
    assert read(tmp_path, "import os\n\nimport wandb\n").imports == (("os", 1), ("wandb", 3))


def test_a_module_is_missing_only_if_python_would_not_find_it_for_certain(tmp_path: Path):
    (tmp_path / "local.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "namespace").mkdir()

    def missing(*names: str) -> str:
        return first_missing(names, str(tmp_path), "train.py")

    before = list(sys.path)
    assert missing("os", "json", "pytest", "no_such_module_anywhere") == "no_such_module_anywhere"
    assert missing("os", "sys", "pytest") == ""
    for own in ("local", "package", "namespace"):
        assert missing(own, "no_such_module_anywhere") == "", "it may change sys.path"
    assert sys.path == before
    assert not {"local", "package"} & set(sys.modules)


def test_modules_beside_the_file_that_a_link_leads_to_are_found(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").touch()
    (tmp_path / "real" / "beside.py").touch()
    (tmp_path / "train.py").symlink_to("real/train.py")
    assert first_missing(["beside"], str(tmp_path), "train.py") == ""


def test_a_finder_that_fails_is_no_reason_to_call_a_module_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "meta_path", [object()])
    assert first_missing(["no_such_module_anywhere"], str(tmp_path), "train.py") == ""


def test_a_syntax_error_is_reported_only_if_ranks_have_the_same_version_of_python():
    look = Preflight(syntax_error="SyntaxError: here")
    here = list(sys.version_info[:2])
    check_syntax(JOB, look, [here, [3, 9]])
    with pytest.raises(ScriptError, match=r"has a syntax error; no rank was started\nSyntaxError: here") as caught:
        check_syntax(JOB, look, [here, here])
    assert caught.value.exit_code == 1


def test_a_missing_module_is_reported_once_with_all_hosts_that_lack_it():
    look = Preflight(imports=(("os", 1), ("wandb", 3)))
    check_imports(JOB, look, [])
    lacking = [("h1", "/bin/python", "wandb"), ("h3", "/bin/python", "wandb")]
    with pytest.raises(ScriptError, match=r"\.py:3: No module named 'wandb' on h1, h3 \(/bin/python\)") as caught:
        check_imports(JOB, look, lacking)
    assert "--python PATH" in (caught.value.hint or "")


def test_a_python_without_muster_gets_a_hint_that_does_not_ask_for_it():
    look = Preflight(imports=(("muster", 1),))
    with pytest.raises(ScriptError, match="No module named 'muster' on h1") as caught:
        check_imports(JOB, look, [("h1", "/bin/python", "muster")])
    assert caught.value.hint == ("this Python has no Muster: install Muster there, or use torch.distributed directly")


def test_a_module_that_is_not_found_gets_a_hint_with_the_working_directory():
    job = replace(JOB, spec=RunSpec(target="proj.ddp", kind="module", cwd="/somewhere"))
    with pytest.raises(ScriptError, match="No module named 'proj'") as caught:
        check_imports(job, read_job(job), [("h1", "/bin/python", "proj")])
    assert (caught.value.hint or "").startswith("the working directory is /somewhere; ")


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("ddp.py", "the working directory is {}; give the path of the script"),
        ("proj/ddp.py", "the working directory is {}; give the path of the script"),
        ("trian.py", "did you mean `train.py`?"),
        ("4", "the script follows the options of `muster run`; options of Muster come before it"),
        ("/nowhere/ddp.py", "check the path; "),
    ],
)
def test_a_script_that_does_not_exist_gets_a_hint_what_to_type(tmp_path: Path, target: str, hint: str):
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match=f"script {target} not found") as caught:
        find_script(RunSpec(target=target, cwd=str(tmp_path)))
    assert (caught.value.hint or "").startswith(hint.format(tmp_path))
