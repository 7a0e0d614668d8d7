"""Bad hosts, hostfiles, scripts, variables of schedulers and configuration files, typed as a user would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bad_input import Case, problems, work
from parsers_once import parsers_once

from muster.controller.rendezvous import _port_taken
from muster.engines.engine import StartCommand
from muster.engines.table import load

__all__ = ["parsers_once", "work"]  # fixtures
pytestmark = pytest.mark.timeout(60)


# --- hosts ----------------------------------------------------------------------------------------------------

HOSTS = [
    *(
        "",
        " ",
        ",",
        ",,",
        "a,,b",
        ",a",
        "a,",
        "a b",
        "a\tb",
        "a\nb",
        "a;b",
        "a|b",
        "a&b",
        "a>b",
        "$(id)",
        "`id`",
        "a'b",
    ),
    *(
        'a"b',
        "a\\b",
        "a/b",
        "../x",
        "/etc/passwd",
        "-oProxyCommand=id",
        "-",
        "--",
        "a:-1",
        "a:0",
        "a:1025",
        "a:99999999",
    ),
    *(
        "a:x",
        "a:1.5",
        "a:",
        "a::",
        "a:1:2:3",
        ":8",
        ":",
        "@",
        "@nosuch",
        "@a@b",
        "user@",
        "@:8",
        "u@v@w",
        "a:nan",
        "a:²",
    ),
    *("gpu[", "gpu]", "gpu[]", "gpu[1", "gpu[1-", "gpu[1-]", "gpu[-2]", "gpu[2-1]", "gpu[a-b]", "gpu[1-2", "gpu[1,]"),
    *(
        "gpu[,1]",
        "gpu[1--2]",
        "gpu[[1-2]]",
        "gpu[1-2]]",
        "gpu[0-999999999]",
        "gpu[1-2]:",
        "[1-2",
        "gpu[1-2]x[",
        "a[1.5]",
    ),
    *(
        "[::1",
        "::1]:8",
        "[]:8",
        "[zz]:8",
        "ssh://",
        "ssh://a:99999",
        "ssh://a:x",
        "http://a",
        "a:0,0",
        "a:0,-1",
        "a:1024,1",
    ),
    *(
        "gpü",
        "\udcff",
        "a\0b",
        "a\x1b[31m",
        "x" * 300,
        "." * 10,
        "a..b",
        "-a",
        "a:8,a:9:",
        "*",
        "a*",
        "{a,b}",
        "a=b",
        "a#b",
    ),
]


@pytest.mark.parametrize("command", ["run", "check", "setup ssh", "bench"])
def test_a_bad_list_of_hosts_is_one_sentence(command: str):
    after = {"run": ("--dry-run", "train.py"), "bench": ("--dry-run",)}.get(command, ())
    good = {"gpu[0-999999999]", "x" * 300, "." * 10, "a..b", "*", "a*", "{a,b}", "a=b", "a#b", "gpu[1-2]x["}
    cases = [
        Case(argv=(*command.split(), "-H", text, *after), code=None if text in good else 2)
        for text in HOSTS
        if not text.startswith("-")
    ]
    cases += [Case(argv=(*command.split(), f"--hosts={text}", *after)) for text in HOSTS]
    assert problems(cases) == []


def test_there_are_enough_lists_of_hosts():
    assert len(set(HOSTS)) >= 74


HOSTFILES = {
    "empty": b"",
    "comment": b"# nothing\n\n",
    "binary": bytes(range(256)),
    "not UTF-8": b"\xff\xfe\n",
    "NUL": b"a\0b\n",
    "gzip": b"\x1f\x8b\x08\x00" * 10,
    "slots of words": b"a slots=many\n",
    "slots of zero": b"a slots=0\n",
    "negative slots": b"a slots=-1\n",
    "too many slots": b"a slots=99999\n",
    "5,000 digits": b"a slots=" + b"9" * 5000 + b"\n",
    "slots twice": b"a slots=1 slots=2\n",
    "no value": b"a slots=\n",
    "unknown setting": b"a color=red\n",
    "max below": b"a slots=4 max_slots=2\n",
    "port": b"a port=99999\n",
    "user": b"a user=;id\n",
    "words": b"a b c\n",
    "json": b'{"a": 1}\n',
    "yaml": b"hosts:\n  - a\n",
    "html": b"<html><body>404</body></html>\n",
    "shell": b"$(id)\n",
    "option": b"-oProxyCommand=id\n",
    "long line": b"x" * 300_000 + b"\n",
    "open range": b"gpu[1-\n",
    "large range": b"gpu[0-999999999]\n",
    "escape": b"\x1b[31ma b\n",
    "byte order mark": "\ufeff# nothing".encode(),
    "UTF-16": "a slots=2\n".encode("utf-16"),
    "ini": b"[hosts]\na\n",
    "twice": b"a slots=1000\na slots=1000\n",
}


@pytest.mark.parametrize("command", ["run", "check", "setup ssh", "bench"])
def test_a_bad_hostfile_is_one_sentence_with_its_name(command: str):
    after = {"run": ("--dry-run", "train.py"), "bench": ("--dry-run",)}.get(command, ())
    cases = list[Case]()
    for number, data in enumerate(HOSTFILES.values()):
        Path(f"hosts{number}").write_bytes(data)
        cases.append(
            Case(argv=(*command.split(), "--hostfile", f"hosts{number}", *after), code=2, says=f"hosts{number}")
        )
    Path("loop").symlink_to("loop")
    Path("unreadable").write_text("a\n")
    others = [
        "/",
        ".",
        "nosuch",
        "loop",
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "/proc/self/mem",
        "x" * 300,
        "a\0b",
        "\udcff",
    ]
    cases += [Case(argv=(*command.split(), "--hostfile", name, *after), code=2, says="hostfile|NUL") for name in others]
    assert problems(cases) == []


def test_a_hostfile_that_is_a_pipe_without_a_writer_does_not_hang(monkeypatch: pytest.MonkeyPatch):
    from muster.user_file import MOST_BYTES, read_user_file

    monkeypatch.setattr(read_user_file, "__kwdefaults__", {"limit": 0.2, "most": MOST_BYTES})
    os.mkfifo("pipe")
    pbs = {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "1.x", "PBS_NODEFILE": "pipe"}
    cases = [
        Case(argv=("run", "--hostfile", "pipe", "--dry-run", "train.py"), code=2, says="pipe: .*no end within"),
        Case(argv=("run", "--dry-run", "train.py"), env=pbs, code=2, says="PBS_NODEFILE pipe: no end within"),
    ]
    assert problems(cases) == []


def test_a_hostfile_may_be_a_pipe_of_a_command():
    from bad_input import invoke

    source, sink = os.pipe()
    os.write(sink, b"a slots=2\r\nb slots=2\n")
    os.close(sink)
    done = invoke(["run", "--hostfile", f"/dev/fd/{source}", "--dry-run", "train.py"])
    os.close(source)
    assert (done.code, "b" in done.out) == (0, True), done.err


# --- scripts --------------------------------------------------------------------------------------------------


def test_a_script_that_cannot_be_run_is_one_sentence():
    os.mkfifo("fifo.py")
    Path("loop.py").symlink_to("loop.py")
    Path("there").mkdir()
    Path("dangling.py").symlink_to("nowhere")
    wrong = {
        "": "name of the script is empty",
        "nosuch.py": "script nosuch.py not found",
        "trian.py": "did you mean `train.py`",
        "there": "is a directory",
        "/": "is a directory",
        "fifo.py": "fifo.py is not a regular file",
        "loop.py": r"could not read loop.py \(too many levels",
        "dangling.py": "not found",
        "/dev/null": "/dev/null is not a regular file",
        "/dev/zero": "is not a regular file",
        "/proc/self/mem": "could not read /proc/self/mem",
        "x" * 300: "file name too long",
        "train.py/x": "not found",
        "\udcff.py": "not found",
        "a\0b.py": "NUL",
        "a\nb.py": "not found",
    }
    cases = [
        Case(argv=(*command, name), code=2, says=f"(?i){says}")
        for name, says in wrong.items()
        for command in (("run",), ("run", "--dry-run"), ("submit", "--slurm", "--dry-run"), ("check",))
    ]
    modules = ["", ".", "..", "a..b", ".a", "a.", "a/b", "/etc/passwd", "a\nb", "a\0b", "\x1b"]
    cases += [Case(argv=("run", "--dry-run", "-m", name), code=2) for name in modules]
    cases += [Case(argv=("run", "--dry-run", "-m", name)) for name in ("x" * 300, "gpü", "\udcff", "-", "train.py")]
    assert problems(cases) == []


# --- words at the wrong place ---------------------------------------------------------------------------------

MISTYPED = [
    ("rum", 2, "did you mean `muster run`"),
    ("rnu train.py", 2, "did you mean `muster run`"),
    ("RUN train.py", 2, "unknown command"),
    ("logz", 2, "did you mean `muster logs`"),
    ("train.py", 2, "muster run train.py"),
    ("--nproc 2 run train.py", 2, "`muster run --nproc 2 train.py`"),
    ("-H a,b train.py", 2, "`muster run -H a,b train.py`"),
    ("--vresion", 2, "`muster --version`"),
    ("-x", 2, "muster --help"),
    ("logs -r 0", 2, "did you mean `--rank`"),
    ("run", 2, "no script to run"),
    ("run --dry-run", 2, "no script to run"),
    ("run --", 2, "no script to run"),
    ("run --nproc", 2, "expected one argument"),
    ("run --nproc 2000 --dry-run train.py", 2, "nproc must be at most 1024"),
    ("run --nproc 99999999999 --dry-run train.py", 2, "at most 9 digits"),
    ("run --lab 999 --dry-run train.py", 2, "lab must be at most 253"),
    ("run --grace 99999d --dry-run train.py", 2, "must be at most 10000d"),
    ("run -H a,b,c --spares 1 --restarts 0 --dry-run train.py", 2, "--restarts 0 contradicts --spares"),
    ("run -H a,b,c --min-hosts 1 --restarts 0 --dry-run train.py", 2, "--restarts 0 contradicts --min-hosts"),
    ("run -H a,b --spares 2 --dry-run train.py", 2, "spare"),
    ("run --only-rank 5-1 --dry-run train.py", 2, "must be ranks such as"),
    ("run --nproc ² --dry-run train.py", 2, "must be a whole number of at least 1, got `²`"),
    ("run -H a --hostfile x --dry-run train.py", 2, "cannot be used together"),
    ("run --engine pbs --dry-run train.py", 2, "PBS_JOBID and PBS_ENVIRONMENT are not both set"),
    ("run --engine slurm --dry-run train.py", 2, "SLURM_JOB_ID is not set"),
    ("run --engine zork --dry-run train.py", 2, "zork"),
    ("run --controller a train.py", 2, "only with --detach"),
    ("submit train.py", 2, "no scheduler given"),
    ("submit --slurm --pbs train.py", 2, "not allowed with"),
    ("submit --slurm", 2, "no script to run"),
    ("submit --slurm --controller a --dry-run train.py", 2, "only with --detach"),
    ("lab", 0, ""),
    ("lab upp", 2, "did you mean `muster lab up`"),
    ("lab up", 2, "required: N"),
    ("lab up 0", 2, "must be a whole number of at least 1"),
    ("lab up -1", 2, ""),
    ("lab up ٣", 2, "must be a whole number of at least 1"),
    ("lab up 1_0", 2, "must be a whole number of at least 1"),
    ("lab slow h1 --cpu nan", 2, "must be a number of cores"),
    ("lab slow h1 --cpu inf", 2, "must be a number of cores"),
    ("lab slow h1 --cpu 1e3", 2, "must be a number of cores"),
    ("lab loss h1 101", 2, "must be a percentage"),
    ("lab loss h1 nan", 2, "must be a percentage"),
    ("lab delay h1 nan", 2, "must be a duration"),
    ("lab block-port h1 0", 2, "must be a port"),
    ("lab block-port h1 70000", 2, "must be a port"),
    ("recipes copy", 2, ""),
    ("recipes copy nosuch", 2, "nosuch"),
    ("completion", 2, ""),
    ("completion tcsh", 2, "tcsh"),
    ("setup", 0, ""),
    ("setup shh", 2, "setup ssh"),
    ("setup ssh", 2, ""),
    ("drain", 2, ""),
    ("help nosuch", 2, "unknown command"),
    ("bench --min 8G --max 1K --dry-run", 2, "larger than"),
    ("bench --factor 1 --dry-run", 2, ""),
    ("bench --only nosuch --dry-run", 2, "nosuch"),
    ("bench train.py", 2, "add --scaling"),
    ("check --data", 2, "expected one argument"),
    ("ps extra", 2, "extra"),
    ("ps --older 5d", 2, ""),
]


def test_what_is_mistyped_gets_a_sentence_that_helps():
    assert problems([Case(argv=tuple(line.split()), code=code, says=says) for line, code, says in MISTYPED]) == []


# --- environment variables ------------------------------------------------------------------------------------

JUNK = [
    "",
    " ",
    "-1",
    "0",
    "9" * 5000,
    "nan",
    "²",
    "a\nb",
    "$(id)",
    "\x1b[31m",
    "gpu[1-",
    "gpu[0-999999999]",
    ",,",
    "/dev/zero",
]
JUNK += ["\udcff", "x" * 20_000, "2(x3", "2(x", "(x2)", "1e9", "0x10", "None"]

SCHEDULERS = {
    "slurm": {
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_NTASKS": "4",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_GPUS_PER_NODE": "2",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_RESTART_COUNT": "0",
        "SLURM_CPUS_ON_NODE": "8",
        "SLURM_STEP_GPUS": "0,1",
    },
    "pbs": {
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": "1.x",
        "PBS_NODEFILE": "nodes",
        "PBS_NUM_PPN": "2",
        "PBS_TASKNUM": "1",
        "PBS_NGPUS": "2",
        "PBS_NCPUS": "8",
        "PBS_CONF_FILE": "pbs.conf",
        "PBS_GPUFILE": "gpus",
        "PBS_O_WORKDIR": "/",
    },
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_broken_variables_of_a_scheduler_never_show_a_traceback(scheduler: str):
    Path("nodes").write_text("n1\nn1\nn2\n")
    usual = SCHEDULERS[scheduler]
    usable = {name: [text for text in JUNK if name.isprintable() and "\0" not in text] for name in usual}
    cases = [
        Case(argv=("run", "--dry-run", "train.py"), env={**usual, name: text})
        for name, texts in usable.items()
        for text in texts
    ]
    assert problems(cases) == []


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"\xff", b"a b\n", b"-x\n", b"$(id)\n", b"x" * 100_000, b"n1;id\n", b"\0\n"]
)
def test_a_broken_node_file_of_pbs_is_one_sentence(data: bytes):
    Path("nodes").write_bytes(data)
    assert problems([Case(argv=("run", "--dry-run", "train.py"), env=SCHEDULERS["pbs"], code=2)]) == []


def test_other_variables_never_show_a_traceback():
    names = [
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK",
    ]
    names += ["NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM", "SHELL", "PWD", "HOME", "XDG_STATE_HOME", "TMPDIR"]
    names += [
        "XDG_CONFIG_HOME",
        "XDG_RUNTIME_DIR",
        "USER",
        "LOGNAME",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "EDITOR",
    ]
    cases = [
        Case(argv=argv, env={name: text})
        for name in names
        for text in JUNK
        for argv in (("run", "--dry-run", "train.py"), ("ps",))
    ]
    assert problems(cases) == []


# --- muster.toml ----------------------------------------------------------------------------------------------

TOML = [
    *("=", "[", "[[", "]", "a", "a =", '"', "'''", "a = 1\na = 2", "[run]\n[run]", "\0", "a = [", "a = {", "[" * 5000),
    *(
        "a = " + "[" * 5000,
        "nproc = 99999999999",
        "nproc = -1",
        "nproc = 'x'",
        "nproc = nan",
        "nproc = 1.5",
        "nproc = true",
    ),
    *(
        "nproc = []",
        "nproc = {}",
        "hosts = 5",
        "hosts = [5]",
        "hosts = ''",
        "hosts = 'a b'",
        "hosts = {a = 5}",
        "[hosts]\na = 5",
    ),
    *(
        "[hosts]\n'a b' = 'x'\n[run]\nhosts='@a b'",
        "[hosts]\na = '@a'\n[run]\nhosts = '@a'",
        "[host]\na = 5",
        "[host.a]\nx = 1",
    ),
    *(
        "[host.a]\npython = 5",
        "[host.a]\npython = ''",
        "env = 5",
        "[env]\nA = []",
        "[env]\n'A B' = 1",
        "[env]\nA = true",
    ),
    *(
        "[env]\nA = '\\u0000'",
        "[env]\nA = {}",
        "[nosuch]\na = 1",
        "nosuch = 1",
        "run = 5",
        "grace = 'x'",
        "grace = inf",
    ),
    *(
        "grace = nan",
        "grace = -1",
        "lost-after = 0",
        "restarts = 'many'",
        "engine = 'zork'",
        "engine = 5",
        "sync = 'yes'",
    ),
    *(
        "sync = 5",
        "dry-run = 1",
        "help = true",
        "h = 1",
        "command = ['x']",
        "module = true",
        "m = true",
        "'' = 1",
        "master-port = 0",
    ),
    *(
        "master-port = 99999",
        "only-rank = '5-1'",
        "only-rank = []",
        "env-file = 'nosuch'",
        "env-file = 5",
        "hostfile = 'nosuch'",
    ),
    *(
        "hostfile = '/dev/zero'",
        "name = ''",
        "name = 'a b'",
        "name = 5",
        "notify = 5",
        "preload = 5",
        "preload = ['a b']",
    ),
    *(
        "image = 5",
        "python = 5",
        "mpi-args = 5",
        "mpi-args = '\"'",
        "container = 'zork'",
        "interface = 5",
        "date = 2020-01-01",
    ),
    *(
        "a = 0x" + "f" * 5000,
        "a = " + "9" * 5000,
        "\ufeff\ufeff",
        "a.b.c.d.e = 1",
        "[run.nproc]\na = 1",
        "nproc = 2020-01-01",
    ),
]


@pytest.mark.parametrize("command", ["run --dry-run train.py", "config", "check", "submit --slurm --dry-run train.py"])
def test_a_broken_configuration_is_one_sentence(command: str, work: Path):
    found = list[str]()
    for text in TOML:
        Path("muster.toml").write_text(text)
        found += [f"{text[:60]!r}: {each}" for each in problems([Case(argv=tuple(command.split()))])]
    for data in (b"\xff", b"\x1f\x8b", b"a = '\xff'", b"x" * (2 << 20)):
        Path("muster.toml").write_bytes(data)
        found += problems([Case(argv=tuple(command.split()), code=2, says="muster.toml")])
    assert found == []


def test_a_broken_choice_of_the_configuration_is_one_sentence(work: Path):
    names = ["nosuch", "/", "/dev/zero", "/dev/null", "x" * 300, "\udcff", "~nosuch/x", "/proc/self/mem"]
    cases = [Case(argv=("run", "--dry-run", "train.py"), env={"MUSTER_CONFIG": name}) for name in names]
    assert problems(cases) == []


# --- --env and --env-file -------------------------------------------------------------------------------------


def test_a_bad_variable_for_the_ranks_is_one_sentence():
    words = [
        "",
        "=",
        "=x",
        "1A=x",
        "A B=x",
        "A-B=x",
        "A.B=x",
        "é=x",
        "\udcff=x",
        "A\n=x",
        "$A=x",
        "NOT_SET_ANYWHERE",
        "a\0=x",
        "A=\0",
    ]
    cases = [
        Case(argv=(*command, "--env", word, *after), code=2)
        for word in words
        for command, after in ((("run",), ("--dry-run", "train.py")), (("check",), ()), (("bench",), ("--dry-run",)))
    ]
    assert problems(cases) == []


# --- what programs and hosts answer ---------------------------------------------------------------------------


def test_mpirun_is_quoted_with_a_whole_sentence():
    line = "-" * 74
    text = f"{line}\nThe specified mapping policy is not\nrecognized:\n\n  Policy: zork\n\nPlease check.\n{line}\n"
    error = load("mpi").explain(StartCommand(argv=("mpirun",), agents=()), 1, text)
    assert (
        error.message == "mpirun did not start the ranks: The specified mapping policy is not recognized: Policy: zork"
    )
    assert "--mpi-args" in (error.hint or "")


def test_an_agent_of_mpirun_that_is_killed_while_it_starts_is_reported_with_its_host():
    text = "muster: the agent of rank 3 on gpu02 was killed by signal 9\n"
    error = load("mpi").explain(StartCommand(argv=("mpirun",), agents=()), 137, text)
    assert error.message == "gpu02: its agent was killed by signal 9 while it started"
    assert "OOM killer" in (error.hint or "")


def test_a_port_that_needs_root_is_not_called_taken():
    error = _port_taken("a", 80, {"problem": "Permission denied", "owner": None, "port": 0})
    assert error.message == "a: not allowed to listen on port 80 (permission denied)"
    assert "above 1023" in (error.hint or "")
