"""torchrun's options and command lines: each is honored, explained in one sentence, or refused with what to type."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from parsers_once import parsers_once

from muster.api.run_options import spec_of
from muster.api.torchrun_options import FLAGS, Flag, explain, refuse
from muster.cli import run
from muster.cli.submit import split
from muster.errors import UsageError
from muster.hosts import parse_hosts
from muster.spec import RunSpec

__all__ = ["parsers_once"]  # a fixture

ROOT = Path(__file__).parents[2]
BIN = os.path.dirname(sys.executable)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec(*argv: str) -> RunSpec:
    """The run that `muster run ARGV` asks for."""
    options, command = run.parse(argv)
    refuse(options)
    return spec_of(options, command)


def notes(*argv: str, hosts: str = "here") -> tuple[str, ...]:
    return explain(run.parse(argv)[0], parse_hosts(hosts))


def options_in(source: Path) -> set[str]:
    """Every option that a module of torch gives to its argument parser."""
    return set(re.findall(r'^ +"(--?[a-z][a-z_-]*)",$', source.read_text(), re.MULTILINE))


# --- the whole list -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["run", "launch"])
def test_every_option_of_the_installed_torchrun_is_known(module: str):
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed")
    known = run.parser()._option_string_actions
    found = options_in(Path(torch.origin).parent / "distributed" / f"{module}.py")
    assert found >= ({"--nproc-per-node", "--rdzv_conf", "-t"} if module == "run" else {"--use-env"})
    assert {name for name in found if name.replace("_", "-") not in known} == set()


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.names[0])
def test_the_page_about_torchrun_has_every_option(flag: Flag):
    page = (ROOT / "docs" / "torchrun.md").read_text()
    assert f"`{flag.names[0]}" in page
    assert re.sub(r"`.*?`", "", flag.ignored).split("; ")[0] in page


VALUES = {
    "--nproc-per-node": "2",
    "--nnodes": "1",
    "--node-rank": "0",
    "--max-restarts": "2",
    "--local-ranks-filter": "0",
    "--shutdown-timeout": "7",
}


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.names[0])
def test_an_option_takes_its_value_and_nothing_of_the_script(flag: Flag):
    name = flag.names[0]
    value = VALUES.get(name, "word")
    with_underscores = "--" + name[2:].replace("-", "_")
    forms = [[name, value], [f"{name}={value}"], [with_underscores, value]]
    for words in forms if flag.reads is not None else [[name], [with_underscores]]:
        for front in ([], ["torchrun"]):
            options, command = run.parse([*front, *words, "train.py", "--lr", "1"])
            assert command == ["train.py", "--lr", "1"], (front, words)
            assert hasattr(options, flag.dest), (front, words)
        if name != "--module":  # which has another meaning in `muster submit`
            assert split(["--slurm", *words, "train.py"]).script == ["train.py"], words


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.ignored], ids=lambda flag: flag.names[0])
def test_an_option_that_muster_does_not_need_gets_one_sentence(flag: Flag):
    words = [flag.names[0], *(["word"] if flag.reads is not None else [])]
    assert notes(*words, "train.py") == (f"ignoring {flag.names[0]}: {flag.ignored}",)


def test_options_with_the_same_reason_share_a_sentence():
    assert notes("--rdzv_backend=c10d", "--rdzv-endpoint", "a:1", "--rdzv_id=7", "-r3", "-t", "3", "train.py") == (
        "ignoring --rdzv-backend, --rdzv-endpoint, --rdzv-id: Muster finds the address and port where ranks meet",
        "ignoring --redirects, --tee: Muster keeps the output of every rank in the job's directory; "
        "`muster logs last` prints it",
    )


def test_without_options_of_torchrun_there_is_nothing_to_explain():
    assert notes("--nproc", "2", "--restarts", "1", "train.py") == ()
    assert notes("--standalone", "--nnodes=1", "--node_rank=0", "--use-env", "train.py") == ()


# --- options that mean something ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["--nproc-per-node", "--nproc_per_node", "-nproc-per-node", "-np", "-n"])
def test_the_number_of_ranks_has_the_names_of_torchrun_and_mpirun(name: str):
    assert spec(name, "4", "train.py").nproc == 4


@pytest.mark.parametrize(
    ("value", "nproc"), [("gpu", None), ("auto", None), ("cpu", len(os.sched_getaffinity(0))), ("3", 3)]
)
def test_the_number_of_ranks_may_be_that_of_gpus_or_cpus(value: str, nproc: int | None):
    assert spec(f"--nproc-per-node={value}", "train.py").nproc == nproc
    assert spec("torchrun", f"--nproc-per-node={value}", "train.py").nproc == nproc


@pytest.mark.parametrize("value", ["xpu", "0", "-1", "two", ""])
def test_another_number_of_ranks_is_refused(value: str):
    with pytest.raises(UsageError, match=r"^muster run: --nproc-per-node: must be a .*number"):
        run.parse([f"--nproc-per-node={value}", "train.py"])


def test_options_that_have_another_name_in_muster():
    wanted = spec("--max_restarts", "3", "--shutdown-timeout=7", "--master_addr=a", "--master_port=5", "train.py")
    assert (wanted.restarts, wanted.grace, wanted.master_addr, wanted.master_port) == (3, 7.0, "a", 5)
    assert spec("--module", "json.tool").kind == "module"
    assert wanted.role == "default"


def test_a_role_is_the_name_of_the_kind_of_rank():
    assert spec("--role", "trainer", "train.py").role == "trainer"


def test_local_ranks_are_a_list():
    assert run.parse(["--local-ranks-filter", "0,2", "train.py"])[0].only_local_ranks == {0, 2}
    with pytest.raises(UsageError, match=r"--local-ranks-filter: must be local ranks"):
        run.parse(["--local-ranks-filter", "a", "train.py"])


# --- hosts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "hosts"), [("1", "a"), ("1:1", "a"), ("2", "a,b"), ("3:3", "a,b:4,c")])
def test_the_number_of_hosts_may_be_said_again(nodes: str, hosts: str):
    assert notes("--nnodes", nodes, "train.py", hosts=hosts) == ()


@pytest.mark.parametrize(
    ("nodes", "hosts", "error"),
    [
        ("2", "a", "--nnodes 2: the job has 1 host"),
        ("2", "a,b,c", "--nnodes 2: the job has 3 hosts"),
        ("2:4", "a", "--nnodes 2:4: the job has 1 host"),
    ],
)
def test_another_number_of_hosts_is_an_error_with_both_numbers(nodes: str, hosts: str, error: str):
    with pytest.raises(UsageError) as refused:
        notes("--nnodes", nodes, "train.py", hosts=hosts)
    assert refused.value.message == error
    assert refused.value.hint == "list the hosts with -H host1,host2"


def test_a_range_of_hosts_is_explained():
    sentence = "--nnodes 1:4: Muster does not add or remove hosts while a job runs"
    assert notes("--nnodes=1:4", "train.py", hosts="a,b") == (sentence,)


@pytest.mark.parametrize("nodes", ["", "two", "1:", "1:2:3", "-1"])
def test_what_is_no_number_of_hosts_is_refused(nodes: str):
    with pytest.raises(UsageError, match=r"--nnodes: must be a number of hosts such as 4 or 1:4, got `.*`"):
        run.parse([f"--nnodes={nodes}", "train.py"])


def test_a_command_for_another_host_is_refused():
    with pytest.raises(UsageError, match="--node-rank 1: Muster starts the ranks of all hosts from one") as refused:
        spec("torchrun", "--nnodes=2", "--node_rank=1", "train.py")
    assert "run it once" in (refused.value.hint or "")


# --- what cannot be done --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--no-python", "./run.sh"], "--no-python: Muster runs Python scripts and modules only"),
        (["torchrun", "--no_python", "./run.sh"], "--no-python: Muster runs Python scripts and modules only"),
        (["--virtual-local-rank", "train.py"], "--virtual-local-rank: Muster gives each rank its LOCAL_RANK"),
        (["torchrun", "--foo", "3", "train.py"], "muster run: unknown option --foo"),
    ],
)
def test_an_option_that_would_change_the_job_is_refused(argv: list[str], error: str):
    with pytest.raises(UsageError) as refused:
        spec(*argv)
    assert refused.value.message.startswith(error)
    assert refused.value.hint


# --- command lines of torchrun and python ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "front",
    [
        ["torchrun"],
        ["python", "-m", "torch.distributed.run"],
        ["python3", "-mtorch.distributed.run"],
        ["-m", "torch.distributed.run"],
        ["python", "-m", "torch.distributed.launch", "--use-env"],
        [f"{BIN}/torchrun"],
        [f"{BIN}/python3", "-m", "torch.distributed.run"],
        ["torchrun", "--no-python", "python", "-u"],
        ["--", "torchrun"],
    ],
    ids=" ".join,
)
def test_torchrun_may_stand_before_the_script(front: list[str]):
    at = 2 if front[:1] == ["torchrun"] and len(front) > 1 else len(front)
    options, command = run.parse([*front[:at], "--nproc_per_node=3", *front[at:], "train.py", "--lr", "1"])
    assert (options.nproc, options.module, command) == (3, False, ["train.py", "--lr", "1"])


def test_torchrun_may_run_a_module():
    options, command = run.parse(["torchrun", "--nproc-per-node", "2", "-m", "pkg.train", "--lr", "1"])
    assert (options.module, command) == (True, ["pkg.train", "--lr", "1"])


def test_torchrun_starts_one_rank_per_host_by_default():
    assert spec("torchrun", "train.py").nproc == 1
    assert spec("--nproc", "4", "torchrun", "train.py").nproc == 4
    assert spec("train.py").nproc is None


def test_options_before_torchrun_are_kept():
    options, _ = run.parse(["-H", "a,b", "--env", "A=1", "--quiet", "torchrun", "--nnodes", "2", "train.py"])
    assert (options.hosts, options.env, options.quiet, options.nnodes) == ("a,b", ["A=1"], True, (2, 2))


def test_the_old_launcher_passes_the_local_rank_to_the_script():
    _, command = run.parse(["python", "-m", "torch.distributed.launch", "train.py", "--lr", "1"])
    assert command == ["train.py", "--local-rank=${local_rank}", "--lr", "1"]


@pytest.mark.parametrize("python", ["python", "python3", f"python3.{sys.version_info.minor}", f"{BIN}/python"])
def test_python_may_stand_before_the_script(python: str):
    options, command = run.parse([python, "train.py", "-u", "--lr", "1"])
    assert (options.module, options.env, command) == (False, [], ["train.py", "-u", "--lr", "1"])
    assert not hasattr(options, "python")
    options, command = run.parse([python, "-m", "pkg.train", "--lr", "1"])
    assert (options.module, command) == (True, ["pkg.train", "--lr", "1"])


@pytest.mark.parametrize(
    ("switches", "env"),
    [
        (["-u"], ["PYTHONUNBUFFERED=1"]),
        (["-O"], ["PYTHONOPTIMIZE=1"]),
        (["-OO"], ["PYTHONOPTIMIZE=2"]),
        (["-uB"], ["PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"]),
        (["-W", "error"], ["PYTHONWARNINGS=error"]),
        (["-Werror"], ["PYTHONWARNINGS=error"]),
        (["-X", "faulthandler"], ["PYTHONFAULTHANDLER=1"]),
        (["-Xdev", "-s"], ["PYTHONDEVMODE=1", "PYTHONNOUSERSITE=1"]),
        (["-W", "error", "-Wignore::UserWarning"], ["PYTHONWARNINGS=error,ignore::UserWarning"]),
        (["-u", "--"], ["PYTHONUNBUFFERED=1"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_options_of_python_become_variables_of_the_ranks(switches: list[str], env: list[str]):
    options, command = run.parse(["python", *switches, "train.py", "--lr"])
    assert (options.env, command) == (env, ["train.py", "--lr"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-c", "print(1)"], "python -c: Muster runs a script or a module"),
        (["-cprint(1)"], "python -c: Muster runs a script or a module"),
        (["-m"], "python -m: not supported, because Muster starts the interpreter itself"),
        (["-"], "python -: Muster runs a script or a module"),
        (["-I", "train.py"], "python -I: not supported, because Muster starts the interpreter itself"),
        (
            ["-X", "importtime", "train.py"],
            "python -Ximporttime: not supported, because Muster starts the interpreter itself",
        ),
        (["--version"], "python --version: not supported, because Muster starts the interpreter itself"),
    ],
)
def test_options_of_python_without_a_variable_are_refused(words: list[str], error: str):
    with pytest.raises(UsageError) as refused:
        run.parse(["python", *words])
    assert refused.value.message.startswith(error)


def test_another_interpreter_is_the_one_of_the_ranks(folder: Path):
    assert spec("/opt/py/bin/python3", "train.py").python == "/opt/py/bin/python3"
    assert spec("venv/bin/python", "train.py").python == str(folder / "venv/bin/python")
    assert spec("python3.99", "train.py").python == "python3.99"
    assert spec("--python", "/a/python", "/b/python", "train.py").python == "/a/python"


def test_the_interpreter_beside_torchrun_is_the_one_of_the_ranks(folder: Path):
    (folder / "bin").mkdir()
    assert spec("bin/torchrun", "train.py").python is None
    (folder / "bin" / "python").touch()
    assert spec("bin/torchrun", "train.py").python == str(folder / "bin" / "python")


@pytest.mark.parametrize("name", ["python.py", "torchrun.py", "pythonic", "my-torchrun"])
def test_a_script_with_a_similar_name_is_a_script(folder: Path, name: str):
    (folder / name).write_text("")
    assert spec(name, "-u").target == name


@pytest.mark.parametrize("argv", [["torchrun"], ["python"], ["torchrun", "-np", "2"], ["python", "-u"]])
def test_without_a_script_there_is_nothing_to_run(argv: list[str]):
    assert run.parse(argv)[1] == []
    with pytest.raises(UsageError, match="no script to run"):
        run.main(argv)


def test_the_old_launcher_without_a_script_has_nothing_to_run():
    assert run.parse(["python", "-m", "torch.distributed.launch"])[1] == []


def test_a_variable_that_is_named_wins_over_an_option_of_python():
    wanted = spec("--env", "PYTHONUNBUFFERED=x", "python", "-u", "train.py")
    assert wanted.env == {"PYTHONUNBUFFERED": "x"}


def test_a_module_called_torchrun_is_a_module():
    assert run.parse(["-m", "torchrun", "--x"])[1] == ["torchrun", "--x"]
