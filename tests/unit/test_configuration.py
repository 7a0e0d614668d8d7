"""Configuration files: where they are found, whom they are accepted from, and what they change."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parsers_once import parsers_once

from muster.api.run_options import copied_names, spec_of, spec_with
from muster.cli import bench, check, main, run, submit
from muster.cli.submit import make_request, split
from muster.config import read_configuration
from muster.engines.engine import Choice
from muster.engines.table import load
from muster.errors import UsageError
from muster.hosts import Host
from muster.spec import RunSpec
from muster.user_file import MOST_BYTES, read_user_file

__all__ = ["parsers_once"]  # a fixture


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with a project in it, which is the working directory."""
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    for name in ("MUSTER_CONFIG", "SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home / "project")
    Path("train.py").write_text("")
    return home


def write(path: str | Path, text: str) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def spec(*argv: str) -> RunSpec:
    options, command = run.parse([*argv, "train.py"])
    return spec_of(options, command)


def refused(*argv: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        spec(*argv)
    return caught.value


def hosts(text: str) -> list[str]:
    return [str(host) for host in spec("-H", text).hosts or ()]


# --- which files ----------------------------------------------------------------------------------------------


def test_the_nearest_file_up_to_the_home_directory_is_used(home: Path, monkeypatch: pytest.MonkeyPatch):
    deep = home / "project" / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    write(home.parent / "muster.toml", "restarts = 9")
    assert spec().restarts == 0
    write(home / "muster.toml", "restarts = 1")
    assert spec().restarts == 1
    write(home / "project" / "pyproject.toml", "[tool.other]\n")
    assert spec().restarts == 1
    write(home / "project" / "pyproject.toml", "[tool.muster]\nrestarts = 2\n")
    assert spec().restarts == 2
    write(home / "project" / "muster.toml", "restarts = 3\n")
    assert spec().restarts == 3


def test_outside_of_the_home_directory_the_search_ends_at_the_root(home: Path, monkeypatch: pytest.MonkeyPatch):
    elsewhere = home.parent / "data" / "run"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    write(home.parent / "muster.toml", "restarts = 4")
    assert spec().restarts == 4


def test_the_command_line_wins_over_the_project_and_that_over_the_user(home: Path):
    write(home / ".config/muster/config.toml", 'restarts = 1\nnproc = 1\ngrace = "1m"\n[env]\nA = "user"\nB = "user"\n')
    write("muster.toml", 'restarts = 2\nnproc = 2\n[env]\nA = "project"\nC = 3\n')
    wanted = spec("--restarts", "3", "--env", "C=typed")
    assert (wanted.restarts, wanted.nproc, wanted.grace) == (3, 2, 60)
    assert wanted.env == {"A": "project", "B": "user", "C": "typed"}


def test_a_variable_names_another_file_or_none(home: Path, monkeypatch: pytest.MonkeyPatch):
    write("muster.toml", "restarts = 1")
    write("other.toml", "restarts = 2")
    monkeypatch.setenv("MUSTER_CONFIG", "other.toml")
    assert spec().restarts == 2
    monkeypatch.setenv("MUSTER_CONFIG", "")
    assert spec().restarts == 0
    monkeypatch.setenv("MUSTER_CONFIG", "nowhere.toml")
    assert refused().message == "MUSTER_CONFIG=nowhere.toml: no configuration there"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["muster.toml", "pyproject.toml", "../.config/muster/config.toml"])
def test_a_file_of_another_user_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    file = write(name, "[tool.muster]\nrestarts = 1" if "pyproject" in name else "restarts = 1")
    os.chown(file, 12345, 12345)
    error = refused()
    assert error.message.endswith(": refused, because it belongs to user 12345 and can run commands as you")
    assert "MUSTER_CONFIG=" in (error.hint or "")
    if name == "muster.toml":
        monkeypatch.setenv("MUSTER_CONFIG", str(file))
        assert spec().restarts == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_link_of_another_user_to_a_file_of_ours_is_refused(home: Path):
    target = write(home / "elsewhere.toml", "restarts = 1")
    Path("muster.toml").symlink_to(target)
    assert spec().restarts == 1
    os.chown("muster.toml", 12345, 12345, follow_symlinks=False)
    assert "it is a link that belongs to user 12345" in refused().message


def test_a_file_that_every_user_can_change_is_refused(home: Path):
    file = write("muster.toml", "restarts = 1")
    file.chmod(0o666)
    error = refused()
    assert error.message == "muster.toml: refused, because every user can change it and it can run commands as you"
    assert error.hint == f"chmod o-w {file.absolute()}"


def test_a_pyproject_of_another_user_without_our_table_is_no_concern(home: Path):
    write("pyproject.toml", "[project]\n").chmod(0o666)
    assert spec().restarts == 0


def test_what_is_not_a_file_is_not_read(home: Path):
    os.mkfifo("muster.toml")
    begin = time.monotonic()
    assert read_configuration() is None
    assert time.monotonic() - begin < 5
    Path("pyproject.toml").mkdir()
    assert read_configuration() is None


def test_without_a_file_nothing_else_is_loaded(home: Path):
    late = "{'tomllib', 'muster.config.configuration', 'muster.api.config_defaults', 'muster.api.env_file'}"
    code = f"import sys; from muster.cli import run; run.parse(['train.py']); print({late} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "set()\n"


# --- options --------------------------------------------------------------------------------------------------


def test_every_kind_of_value_is_read(home: Path):
    write(
        "muster.toml",
        'nproc = 2\nhang_after = "2m"\ngrace = 1.5\nsync = true\nwatch = false\nno-check = true\npreload = ["a", "b"]\n'
        'only-rank = [0, 3]\nimage = "x"\ncontainer-args = ["-v", "/a b:/c"]\n[run]\nhosts = ["a:1", "b:1"]\n',
    )
    wanted = spec()
    assert (wanted.nproc, wanted.hang_after, wanted.grace) == (2, 120, 1.5)
    assert (wanted.sync, wanted.watch, wanted.check) == (True, False, False)
    assert (wanted.preload, wanted.only_ranks) == (("a", "b"), {0, 3})
    assert wanted.container_args == ("-v", "/a b:/c")
    assert [host.name for host in wanted.hosts or ()] == ["a", "b"]


def test_a_flag_in_a_file_is_turned_off_on_the_command_line(home: Path):
    write("muster.toml", "sync = true\nzygote = false\nquiet = true\n")
    wanted = spec("--no-sync", "--zygote")
    assert (wanted.sync, wanted.zygote, wanted.quiet) == (False, True, True)


def test_a_list_on_the_command_line_adds_to_that_of_the_file(home: Path):
    write("muster.toml", 'preload = ["a"]')
    assert spec("--preload", "b").preload == ("a", "b")


def test_hosts_of_a_file_give_way_to_any_place_on_the_command_line(home: Path, monkeypatch: pytest.MonkeyPatch):
    write("muster.toml", 'hosts = "a:1"')
    assert [host.name for host in spec().hosts or ()] == ["a"]
    assert [host.name for host in spec("-H", "b").hosts or ()] == ["b"]
    assert (spec("--lab", "2").hosts, spec("--lab", "2").lab) == (None, 2)
    assert spec("--engine", "local").hosts is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert spec().hosts is None


def test_an_engine_without_a_scheduler_has_no_effect_in_a_job_of_one(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for engine, used in (("ssh", "auto"), ("local", "auto"), ("mpi", "mpi")):
        write("muster.toml", f'engine = "{engine}"\n')
        assert spec().engine == used
        assert spec("--engine", "local").engine == "local"


def test_check_and_bench_take_the_hosts_of_run_unless_they_have_their_own(home: Path):
    write("muster.toml", '[run]\nhosts = "a:1"\ndetach = true\n[bench]\nhosts = "b:1"\n')
    assert check.parse_options(check.parser(), [], "check").hosts == "a:1"
    assert bench.parse_options(bench.parser(), [], "bench").hosts == "b:1"


def test_an_allocation_of_a_file_is_for_its_own_engine(home: Path):
    write("muster.toml", 'engine = "slurm"\nslurm-args = "-N2"')
    assert run.parse(["train.py"])[0].slurm_args == "-N2"
    assert run.parse(["--engine", "ssh", "train.py"])[0].slurm_args is None
    assert run.parse(["-H", "a", "train.py"])[0].slurm_args is None


def test_the_project_decides_where_to_run_before_the_user(home: Path):
    write(home / ".config/muster/config.toml", 'hosts = "a:1"')
    write("muster.toml", "lab = 2")
    assert (spec().hosts, spec().lab) == (None, 2)


def test_files_in_a_file_are_relative_to_it(home: Path, monkeypatch: pytest.MonkeyPatch):
    write("muster.toml", 'env-file = ".env"\nhostfile = "hosts.txt"')
    write(".env", "A=1\n")
    write("hosts.txt", "a slots=2\n")
    write("sub/train.py", "")
    monkeypatch.chdir("sub")
    assert spec().env == {"A": "1"}
    assert spec().hosts == (Host(name="a", slots=2),)


def test_options_that_need_another_one_wait_for_it(home: Path):
    write("muster.toml", 'container = "podman"\nfetch = ["out"]\n')
    assert (spec().container, spec().fetch) == (None, ())
    assert spec("--image", "x").container == "podman"
    assert spec("--sync").fetch == ("out",)


def test_a_command_has_a_table_of_its_own(home: Path):
    write(
        "muster.toml", 'nproc = 2\n[run]\nnproc = 3\n[check]\nstrict = true\n[submit]\nslurm = true\npartition = "gpu"'
    )
    assert spec().nproc == 3
    options = check.parse_options(check.parser(), [], "check")
    assert (options.strict, options.nproc) == (True, 3)
    line = split(["--nodes", "2", "train.py"])
    own = submit.parse_options(submit.parser(), line.own, "submit")
    assert make_request(own, line, submit.choose(own)).queue == "gpu"


def test_a_submitted_job_gets_no_hosts_from_a_file(home: Path):
    write("muster.toml", 'hosts = "a:1"\n[submit]\nslurm = true\n')
    line = split(["train.py"])
    own = submit.parse_options(submit.parser(), line.own, "submit")
    assert make_request(own, line, submit.choose(own)).run == ("train.py",)


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("a = 1\nrestart = 2", "1: unknown key `a`", "keys are the long options of `muster run --help`, without `--`"),
        ("restart = 2", "1: unknown key `restart`", "did you mean `restarts`?"),
        ("max_retries = 2", "1: unknown key `max_retries`", "did you mean `restarts`?"),
        ("nproc_per_node = 4", "1: unknown key `nproc_per_node`", "did you mean `nproc`?"),
        ("[run]\nmax_restarts = 4", "2: unknown key `max_restarts` in [run]", "did you mean `restarts`?"),
        ("nnodes = 2", "1: unknown key `nnodes`", "did you mean `hosts`?"),
        ("[hots]\na = 'x'", "1: unknown key `hots`", "did you mean `hosts`?"),
        ("\n[run]\nsunc = true", "3: unknown key `sunc` in [run]", "did you mean `sync`?"),
        ("restarts = 'x'", "1: restarts: must be a whole number of at least 0, got `x`", "--restarts"),
        ("# a\nnproc = [1]", "2: nproc: must be one value, got [1]", "--nproc"),
        ("nproc = {a = 1}", "1: nproc: must be one value, got a table", "--nproc"),
        ("sync = 'yes'", '1: sync: must be true or false, got "yes"', "--sync"),
        ("engine = 'sulrm'", "1: engine: invalid choice: 'sulrm'", "--engine"),
        ("hosts = 'a'\nlab = 2", "2: hosts and lab cannot be used together", "remove one"),
        ("env = 3", "1: env must be a table, got 3", "[env]"),
        ("[env]\n'A B' = 1", "2: `A B` is not a valid name of an environment variable", "NAME"),
        ("check = false", "1: check must be a table, got false", "no-check = true"),
        ("[env]\nA = ['secret']", "2: A must be a string or a number, got a list", "A ="),
        ('[env]\nA = "a\\u0000b"', "2: the value of A contains a NUL character", "A ="),
        ('"\\u001b[31mx" = 1', ": unknown key ` [31mx`", "long options"),
        (f"nproc = {'1' * 5000}", ": exceeds the limit", "TOML"),
        (f"a = {'[' * 5000}{']' * 5000}", ": too many arrays or tables inside each other", "flatter"),
        ("[env]\nA = true", "2: A must be a string or a number, got true", "A ="),
        ("[host.a]\npyhton = 'x'", "2: unknown key `pyhton` in [host.a]", "did you mean `python`?"),
        ("[host.a]\npython = 3", "2: python must be a path, got 3", "python ="),
        ("hosts = '@lba'", "1: unknown host group `@lba`", "define it"),
        (
            'nproc = 1\nhosts = "@mine"\n\n[hosts]\nmine = ["a"]',
            "4: [hosts] holds the host groups, so line 2 cannot set hosts",
            'move line 2 into the table of `muster run`: [run], and below it hosts = "@mine"',
        ),
        ("nproc = 1\n[nproc]\na = 1", "2: cannot overwrite a value", "TOML"),
        ("x = \n", "1: invalid value at column 5", "TOML"),
        ("x = [1", ": ", "TOML"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence_with_the_line(home: Path, text: str, sentence: str, hint: str):
    write("muster.toml", text)
    error = refused()
    assert error.message.startswith(f"muster.toml{'' if sentence.startswith(': ') else ':'}{sentence}")
    assert hint in (error.hint or "")


def test_a_mistake_in_pyproject_has_its_line(home: Path):
    write("pyproject.toml", "[project]\nrestarts = 1\n\n[tool.muster]\nnproc = 1\n[tool.muster.run]\nrestarts = 'x'\n")
    assert refused().message.startswith("pyproject.toml:7: restarts: ")


def test_a_default_for_hosts_beside_host_groups_in_pyproject_has_the_same_hint(home: Path):
    write("pyproject.toml", '[tool.muster]\nhosts = "@mine"\n[tool.muster.hosts]\nmine = "a"\n')
    error = refused()
    assert error.message == "pyproject.toml:3: [tool.muster.hosts] holds the host groups, so line 2 cannot set hosts"
    assert error.hint == 'move line 2 into the table of `muster run`: [tool.muster.run], and below it hosts = "@mine"'


# --- host groups and hosts ------------------------------------------------------------------------------------


def test_groups_mix_with_hosts_and_with_other_groups(home: Path):
    write("muster.toml", '[hosts]\nlab = ["gpu[01-02]:8", "box"]\nall = "@lab,big:0,2"\n')
    assert hosts("@lab") == ["gpu01:8", "gpu02:8", "box"]
    assert hosts("x:1,@all") == ["x:1", "gpu01:8", "gpu02:8", "box", "big:0,2"]


def test_a_host_that_several_groups_list_alike_counts_once(home: Path):
    write("muster.toml", '[hosts]\na = ["x:2", "y"]\nb = ["x:2", "y", "z:1"]\n')
    assert hosts("@a,@b") == ["x:2", "y", "z:1"]
    assert hosts("@a,x:2") == ["y", "x:2"]
    assert hosts("x:1,@a") == ["x:3", "y"]


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("@lba", "-H: unknown host group `@lba`", "did you mean `@lab`?"),
        ("@zzz", "-H: unknown host group `@zzz`", "the groups are @lab, @loop, @bad"),
        ("@", "-H: unknown host group `@`", "the groups are"),
        ("@lab:4", "-H: a host group cannot be followed by a number", "into the group"),
        ("@loop", "muster.toml:3: the host group contains itself: @loop -> @loop", "remove"),
        ("@bad", "muster.toml:4: missing number of slots", "box:8"),
    ],
)
def test_a_mistake_with_a_group_points_at_it(home: Path, text: str, sentence: str, hint: str):
    write("muster.toml", '[hosts]\nlab = "a:1"\nloop = "b,@loop"\nbad = "c:x"\n')
    error = refused("-H", text)
    assert error.message.startswith(f"{sentence}\n")
    assert hint in (error.hint or "")


def test_setup_takes_groups(home: Path, capsys: pytest.CaptureFixture[str]):
    write("muster.toml", '[hosts]\nlab = "a:x"\n')
    assert main(["setup", "ssh", "-H", "@lab"]) == 2
    assert capsys.readouterr().err.startswith("error: muster.toml:2: missing number of slots\n")


def test_a_host_has_a_python_of_its_own_unless_one_is_typed(home: Path):
    write("muster.toml", 'python = "/usr/bin/python3"\n[host.b]\npython = "/opt/python"\n')
    wanted = spec("-H", "a,b")
    assert [wanted.python_on(host) for host in wanted.hosts or ()] == ["/usr/bin/python3", "/opt/python"]
    with pytest.raises(UsageError, match="this engine needs the same Python on every host"):
        wanted.python_on_all(wanted.hosts or ())
    typed = spec("-H", "a,b", "--python", "/bin/python")
    assert typed.python_on_all(typed.hosts or ()) == "/bin/python"
    options, command = run.parse(["-H", "b", "python3.99", "train.py"])
    assert spec_of(options, command).python_on(Host(name="b")) == "python3.99"


def test_ssh_starts_the_python_of_each_host(home: Path):
    write("muster.toml", '[host."b.example"]\npython = "/opt/python"\n')
    wanted = spec("-H", "a.example,b.example")
    engine = load("ssh")
    launch = engine.launch(Choice(engine=engine, hosts=wanted.hosts or ()), wanted, str(home))
    assert ["/opt/python" in " ".join(command.argv) for command in launch.commands] == [False, True]


def test_from_python_only_groups_and_hosts_are_read(home: Path):
    write(
        "muster.toml", 'restarts = 3\n[env]\nA = 1\n[hosts]\nlab = ["a:1", "b:1"]\n[host.b]\npython = "/opt/python"\n'
    )
    wanted = spec_with(RunSpec(target="train.py"), {"hosts": ["@lab", "c"]})
    assert [str(host) for host in wanted.hosts or ()] == ["a:1", "b:1", "c"]
    assert (wanted.restarts, wanted.env, wanted.host_python) == (0, {}, {"b": "/opt/python"})


# --- --env-file -----------------------------------------------------------------------------------------------


def test_an_env_file_sets_variables_below_those_of_env(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FROM_HERE", "here")
    write("muster.toml", "[env]\nA = 'file'\nB = 'file'\n")
    write("a.env", "\ufeff# a comment\n\n  A=1 = 2 # kept\nB=\nFROM_HERE\nQ='it is'\r\nC=1\nL=a\u2028b\f.\n")
    write("b.env", "C=2\nD=2\n")
    options, command = run.parse(["--env-file", "a.env", "--env-file", "b.env", "--env", "D=typed", "train.py"])
    env = spec_of(options, command).env
    assert env == {
        "A": "1 = 2 # kept",
        "B": "",
        "FROM_HERE": "here",
        "Q": "it is",
        "C": "2",
        "L": "a\u2028b\f.",
        "D": "typed",
    }
    assert copied_names(options) == ("FROM_HERE",)


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("A=1\nexport B=2", "x.env:2: `export B` is not a valid name of an environment variable", "remove `export`"),
        ("1A=1", "x.env:1: `1A` is not a valid name", "NAME=VALUE"),
        ("=1", "x.env:1: `` is not a valid name", "NAME=VALUE"),
        ("NOT_SET_HERE", "x.env:1: NOT_SET_HERE is not set here", "NOT_SET_HERE=VALUE"),
        ("A=1\0", "x.env:1: the value of A contains a NUL character", "remove"),
        (None, "--env-file x.env: file not found", "NAME=VALUE"),
        (b"\xff", "--env-file x.env: not a text file", "NAME=VALUE"),
    ],
)
def test_a_mistake_in_an_env_file_has_its_line(home: Path, text: str | bytes | None, sentence: str, hint: str):
    if text is not None:
        Path("x.env").write_bytes(text if isinstance(text, bytes) else text.encode())
    error = refused("--env-file", "x.env")
    assert error.message.startswith(sentence)
    assert hint in (error.hint or "")


@pytest.mark.timeout(30)
def test_an_env_file_that_never_ends_is_an_error(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(read_user_file, "__kwdefaults__", {"limit": 0.2, "most": MOST_BYTES})
    os.mkfifo("pipe.env")
    where = "--env-file pipe.env: could not read the file"
    assert refused("--env-file", "pipe.env").message == f"{where} (no end within 0.2 s)"
    where = "--env-file /dev/zero: could not read the file"
    assert refused("--env-file", "/dev/zero").message == f"{where} (larger than 4 MB)"


@pytest.mark.timeout(30)
def test_an_env_file_can_be_a_pipe(home: Path):
    source, sink = os.pipe()
    os.write(sink, b"A=1\n")
    os.close(sink)
    options, command = run.parse(["--env-file", f"/dev/fd/{source}", "train.py"])
    assert spec_of(options, command).env == {"A": "1"}
    os.close(source)


# --- muster config --------------------------------------------------------------------------------------------


def test_config_shows_each_value_and_its_origin(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    write(home / ".config/muster/config.toml", 'on-hang = "kill"')
    write(
        "muster.toml",
        'restarts = 2\n[hosts]\nlab = "a:1"\n[env]\nA_TOKEN = "x"\n'
        '[host.a]\npython = "/p"\n[submit]\npartition = "gpu"\n',
    )
    assert main(["config", "--grace", "3s", "--env", "B=1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for row in (
        "restarts 2 muster.toml:1",
        "on-hang kill ~/.config/muster/config.toml:1",
        "grace 3s command line",
        "hang-after 30s default",
        "name - default",
        "dashboard-port - default",
        "@lab a:1 muster.toml:3",
        "A_TOKEN (hidden) muster.toml:5",
        "B 1 command line",
        "NCCL_DEBUG INFO environment",
        "a /p muster.toml:7",
        'partition "gpu" muster.toml:9',
    ):
        assert row.split() in rows


def test_config_does_not_print_the_secret_part_of_a_webhook(home: Path, capsys: pytest.CaptureFixture[str]):
    write("muster.toml", 'notify = ["https://hooks.example/SECRET", "desktop"]')
    assert main(["config"]) == 0
    (row,) = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  notify"))
    assert row == ["notify", "https://hooks.example/…,", "desktop", "muster.toml:1"]


@pytest.mark.parametrize("text", ["[submit]\nnodse = 2", "[hosts]\na = 3", "[check]\nstrict = 1", "[hosts]\na = '@b'"])
def test_config_finds_mistakes_in_every_table(home: Path, capsys: pytest.CaptureFixture[str], text: str):
    write("muster.toml", text)
    assert main(["config"]) == 2
    assert capsys.readouterr().err.startswith("error: muster.toml:2: ")
