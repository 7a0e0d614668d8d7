"""`muster submit`: what may be typed, and what each scheduler is asked for and says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from muster.cli import run, submit
from muster.cli.submit import split
from muster.engines.pbs.batch import Pbs
from muster.engines.slurm.batch import Slurm, slurm_time
from muster.errors import UsageError
from muster.submit.batch_units import Memory, clock, read_memory, read_time
from muster.submit.request import Activation, Request, check_extra, check_name, check_word, job_name

MUSTER = str(Path(sys.executable).with_name("muster"))

PLAIN = Request(
    typed=("--slurm", "train.py"),
    run=("train.py",),
    name="train",
    folder="/home/ann",
    activation=Activation(comment="None."),
)

# --- times and memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "slurm", "pbs"),
    [
        ("1:30:00", "01:30:00", "01:30:00"),
        ("2h", "02:00:00", "02:00:00"),
        ("90m", "01:30:00", "01:30:00"),
        ("1h30m", "01:30:00", "01:30:00"),
        ("1h30m5s", "01:30:05", "01:30:05"),
        ("45S", "00:00:45", "00:00:45"),
        ("1-00:00:00", "1-00:00:00", "24:00:00"),
        ("1-12", "1-12:00:00", "36:00:00"),
        ("2-0:30", "2-00:30:00", "48:30:00"),
        ("1d", "1-00:00:00", "24:00:00"),
        ("48:00:00", "2-00:00:00", "48:00:00"),
        (" 5m ", "00:05:00", "00:05:00"),
    ],
)
def test_a_time_is_written_as_each_scheduler_wants_it(text: str, slurm: str, pbs: str):
    assert (slurm_time(read_time(text)), clock(read_time(text))) == (slurm, pbs)


@pytest.mark.parametrize(
    "text", ["", "soon", "-5", "90", "1:2", "1:60:00", "1:00:60", "h", "2 h", "1.5h", "٣", "9" * 5000]
)
def test_what_is_not_a_time_is_refused(text: str):
    with pytest.raises(UsageError, match="invalid time"):
        read_time(text)


@pytest.mark.parametrize("text", ["0:00:00", "0m"])
def test_no_time_is_refused(text: str):
    with pytest.raises(UsageError, match="must be more than 0"):
        read_time(text)


def test_a_number_might_be_minutes_or_hours():
    with pytest.raises(UsageError) as refused:
        read_time("4")
    assert refused.value.hint == "add a unit: 4m for minutes or 4h for hours"


def test_two_numbers_might_be_hours_or_minutes():
    with pytest.raises(UsageError) as refused:
        read_time("2:00")
    assert refused.value.hint == "write 2:00:00 for hours and minutes, or 0:2:00 for minutes and seconds"


@pytest.mark.parametrize(
    ("text", "slurm", "pbs"),
    [("200G", "200G", "200gb"), ("200gb", "200G", "200gb"), ("512000M", "512000M", "512000mb"), ("1TiB", "1T", "1tb")],
)
def test_memory_is_written_as_each_scheduler_wants_it(text: str, slurm: str, pbs: str):
    request = replace(PLAIN, memory=read_memory(text))
    assert f"--mem={slurm}" in Slurm().directives(request)
    assert f"-l select=1:ncpus=1:mpiprocs=1:mem={pbs}" in Pbs().directives(request)


@pytest.mark.parametrize("text", ["200", "0G", "much", "", "-5G", "1.5G"])
def test_memory_without_a_unit_is_refused(text: str):
    with pytest.raises(UsageError, match="invalid size"):
        read_memory(text)


# --- names and extra lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "module", "name"),
    [
        ("train.py", False, "train"),
        ("src/my train.py", False, "my-train"),
        ("pkg.train", True, "train"),
        ("3d.py", False, "job-3d"),
        ("ä.py", False, "job"),
        ("x" * 300 + ".py", False, "x" * 100),
    ],
)
def test_a_job_is_named_after_its_script(target: str, module: bool, name: str):
    assert job_name(target, module=module) == name
    Pbs().check(replace(PLAIN, name=check_name(name)))


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "%j", "-x", "a'b", "x\n"])
def test_a_name_that_no_file_should_have_is_refused(name: str):
    with pytest.raises(UsageError, match="invalid job name"):
        check_name(name)


@pytest.mark.parametrize("name", ["4you", "x" * 231])
def test_a_name_that_pbs_refuses_is_refused_before(name: str):
    with pytest.raises(UsageError, match="must start with a letter"):
        Pbs().check(replace(PLAIN, name=name))


@pytest.mark.parametrize("queue", ["a b", "", "x;y", "a\nb", "'gpu'"])
def test_a_queue_that_no_directive_can_hold_is_refused(queue: str):
    with pytest.raises(UsageError, match="--partition"):
        check_word("--partition", queue)


def test_an_extra_line_may_be_copied_with_its_mark():
    assert check_extra("#SBATCH", "#SBATCH --exclusive") == "--exclusive"
    assert check_extra("#PBS", "  -P ab12 ") == "-P ab12"


@pytest.mark.parametrize("line", ["", "exclusive", "--a\n--b", "--comment='", "#PBS -V", "\x1b-x"])
def test_an_extra_line_that_is_no_option_is_refused(line: str):
    with pytest.raises(UsageError, match="--extra"):
        check_extra("#SBATCH", line)


# --- directives -----------------------------------------------------------------------------------------------


def test_what_nobody_asked_for_is_not_written():
    # A memory of our own would clash with --mem-per-gpu, nodes of our own with sums: submitit#14, NCI Gadi.
    assert Slurm().directives(PLAIN) == ["--job-name=train", "--output=%x-%j.out"]
    assert Pbs().directives(PLAIN) == ["-N train", "-j oe", "-k oed"]


@pytest.mark.parametrize("extra", ["--output=logs/%j", "--output logs/%j", "-o logs/%j", "-ologs/%j", "-N1 -o x"])
def test_an_extra_line_for_the_output_replaces_ours(extra: str):
    request = replace(PLAIN, extra=(extra,))
    assert Slurm().directives(request) == ["--job-name=train", extra]
    assert [step for step, _ in Slurm().next_steps(request, "7")] == ["squeue -j 7", "scancel 7"]


def test_the_lines_of_pbs_that_nobody_asked_for_give_way():
    assert Pbs().directives(replace(PLAIN, extra=("-j n", "-k n"))) == ["-N train", "-j n", "-k n"]
    steps = Pbs().next_steps(replace(PLAIN, extra=("-o /tmp/x",)), "7.srv")
    assert [step for step, _ in steps] == ["qstat -s 7.srv", "qdel 7.srv"]


@pytest.mark.parametrize("extra", ["-l place=scatter:excl", "-lplace=pack", "-l storage=x,place=free"])
def test_pbs_uses_the_first_of_two_places_so_ours_gives_way(extra: str):
    lines = Pbs().directives(replace(PLAIN, nodes=2, extra=(extra,)))
    assert [line for line in lines if "place" in line] == [extra]


def test_pbs_uses_the_first_of_two_walltimes_so_ours_gives_way():
    extra = "-l walltime=1:00:00"
    lines = Pbs().directives(replace(PLAIN, seconds=60, extra=(extra,)))
    assert [line for line in lines if "walltime" in line] == [extra]
    with pytest.raises(UsageError, match="count from --time"):
        Pbs().check(replace(PLAIN, seconds=60, warning=10, extra=(extra,)))


@pytest.mark.parametrize("extra", ["-o logs/out", "-e logs/", "-ologs"])
def test_output_that_pbs_may_not_be_able_to_write_while_the_job_runs_is_delivered_at_its_end(extra: str):
    # With `-k oed`, PBS holds a job forever if the directory does not exist.
    assert not [line for line in Pbs().directives(replace(PLAIN, extra=(extra,))) if line.startswith("-k")]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("-z", "^--extra -z: qsub would not print the job id"),
        ("-P ab12 -Vz", "^--extra -Vz: qsub would not print the job id"),
        ("-W block=true", "qsub would wait for the end of the job"),
        ("-v B=1", "^--env A becomes a `-v` line, and qsub uses only the last one"),
    ],
)
def test_a_line_of_pbs_that_hides_the_job_or_its_variables_is_refused(extra: str, message: str):
    with pytest.raises(UsageError, match=message) as refused:
        Pbs().check(replace(PLAIN, variables=("A",), extra=(extra,)))
    assert refused.value.hint
    Pbs().check(replace(PLAIN, extra=("-m z -M ann@x", "-V", "-v B=1", "-W umask=022")))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--wait", "sbatch would wait for the end of the job"),
        ("-W", "sbatch would wait for the end of the job"),
        ("--export=NONE", "^--env A: --extra '--export=NONE' does not pass it"),
    ],
)
def test_a_line_of_slurm_that_blocks_or_drops_variables_is_refused(extra: str, message: str):
    with pytest.raises(UsageError, match=message) as refused:
        Slurm().check(replace(PLAIN, variables=("A",), extra=(extra,)))
    assert refused.value.hint
    for fine in ("--export=ALL", "--export=ALL,B=1", "--export=A", "--hold"):
        Slurm().check(replace(PLAIN, variables=("A",), extra=(fine,)))


def test_dash_V_comes_with_a_way_to_see_whether_qsub_ignored_it():
    steps = Pbs().next_steps(replace(PLAIN, extra=("-V",)), "7.srv")
    assert ("qstat -f 7.srv", "check Variable_List: OpenPBS 23.06 ignores -V, --env NAME works") in steps


@pytest.mark.parametrize(
    ("extra", "log"),
    [
        (("-N other",), "other.o7"),
        (("-Nother", "-N last"), "last.o7"),
        (("-J 3-9:2",), "train.o7.3"),
        (("-J0-2", "-N arr"), "arr.o7.0"),
    ],
)
def test_the_file_to_follow_has_the_name_and_the_index_that_pbs_uses(extra: tuple[str, ...], log: str):
    request = replace(PLAIN, extra=extra)
    assert f"tail -F {log}" in [step for step, _ in Pbs().next_steps(request, "7[].srv")]
    lines = Pbs().directives(request)
    assert ("-N train" in lines) == (Pbs().name(request) == "train")


@pytest.mark.parametrize(
    ("extra", "output", "log"),
    [
        ("--job-name=other", "%x-%j.out", "other-7.out"),
        ("-J other", "%x-%j.out", "other-7.out"),
        ("--job-name='a b'", "%x-%j.out", "'a b-7.out'"),
        ("--array=3-9:2", "%x-%A_%a.out", "train-7_3.out"),
        ("-a 0,4", "%x-%A_%a.out", "train-7_0.out"),
    ],
)
def test_the_file_to_follow_has_the_name_and_the_index_that_slurm_uses(extra: str, output: str, log: str):
    request = replace(PLAIN, extra=(extra,))
    assert f"--output={output}" in Slurm().directives(request)
    assert f"tail -F {log}" in [step for step, _ in Slurm().next_steps(request, "7")]


@pytest.mark.parametrize(
    ("nodes", "gpus", "nproc", "select"),
    [
        (None, 4, None, "1:ncpus=4:ngpus=4:mpiprocs=4"),
        (2, None, None, "2:ncpus=1:mpiprocs=1"),
        (2, None, 6, "2:ncpus=6:mpiprocs=6"),
        (2, 8, 2, "2:ncpus=8:ngpus=8:mpiprocs=2"),
        (2, 1, 4, "2:ncpus=4:ngpus=1:mpiprocs=4"),
    ],
)
def test_a_chunk_of_pbs_is_a_host_with_a_core_for_each_rank(
    nodes: int | None, gpus: int | None, nproc: int | None, select: str
):
    lines = Pbs().directives(replace(PLAIN, nodes=nodes, gpus_per_node=gpus, nproc=nproc))
    assert f"-l select={select}" in lines
    assert ("-l place=scatter" in lines) == ((nodes or 1) > 1)


@pytest.mark.parametrize(
    "extra", ["-l ncpus=96", "-lncpus=96", "-l walltime=1:0:0,mem=8gb", "-P ab12 -l select=2", "-l nodes=2:ppn=4"]
)
def test_a_second_way_to_say_how_much_is_refused_before_pbs_does(extra: str):
    with pytest.raises(UsageError, match="becomes a `-l select` line") as refused:
        Pbs().check(replace(PLAIN, nodes=2, extra=(extra,)))
    assert "omit --nodes" in (refused.value.hint or "")
    Pbs().check(replace(PLAIN, extra=(extra,)))


def test_resources_that_are_of_the_whole_job_go_beside_a_select():
    Pbs().check(replace(PLAIN, nodes=2, extra=("-l storage=gdata/x,wd", "-l pmem=4gb", "-l place=scatter:excl")))


# --- what sbatch and qsub see and say -------------------------------------------------------------------------


def test_a_job_submitted_from_a_job_inherits_nothing_of_it():
    env = {"SLURM_JOB_ID": "1", "SLURM_CPU_BIND": "x", "SLURM_CONF": "/etc/s", "HOME": "/root", "SBATCH_QOS": "long"}
    assert Slurm().environment(PLAIN, env) == {"SLURM_CONF": "/etc/s", "HOME": "/root", "SBATCH_QOS": "long"}
    assert Slurm().environment(PLAIN, {"SLURM_MPI_TYPE": "pmix"}) == {"SLURM_MPI_TYPE": "pmix"}


def test_what_was_typed_wins_over_variables_of_sbatch():
    env = {
        "SBATCH_PARTITION": "old",
        "SBATCH_ACCOUNT": "mine",
        "SBATCH_TIMELIMIT": "5",
        "SBATCH_MEM_PER_NODE": "1G",
        "SBATCH_GPUS_PER_NODE": "1",
    }
    assert Slurm().environment(PLAIN, env) == env
    memory = Memory(amount=1, unit="G")
    request = replace(PLAIN, queue="new", seconds=60, memory=memory, gpus_per_node=2)
    assert Slurm().environment(request, env) == {"SBATCH_ACCOUNT": "mine"}


@pytest.mark.parametrize(
    ("printed", "job", "steps"),
    [
        ("4711\n", "4711", ["squeue -j 4711", "tail -F train-4711.out", "scancel 4711"]),
        ("4711;north\n", "4711;north", ["squeue -M north -j 4711", "tail -F train-4711.out", "scancel -M north 4711"]),
        ("Welcome to 7\n\n4711\n", "4711", ["squeue -j 4711", "tail -F train-4711.out", "scancel 4711"]),
    ],
)
def test_the_id_that_sbatch_prints(printed: str, job: str, steps: list[str]):
    assert Slurm().job_id(printed) == job
    assert [step for step, _ in Slurm().next_steps(PLAIN, job)] == steps


@pytest.mark.parametrize(
    ("printed", "job", "log"),
    [
        ("12.pbs.example.org\n", "12.pbs.example.org", "train.o12"),
        ("12[].gadi-pbs\n", "12[].gadi-pbs", "train.o12"),
        ("hello\n12\n", "12", "train.o12"),
    ],
)
def test_the_id_that_qsub_prints(printed: str, job: str, log: str):
    assert Pbs().job_id(printed) == job
    typed = f"'{job}'" if "[" in job else job
    assert [step for step, _ in Pbs().next_steps(PLAIN, job)] == [
        f"qstat -s {typed}",
        f"tail -F {log}",
        f"qdel {typed}",
    ]


@pytest.mark.parametrize("printed", ["", "Submitted batch job\n", 'Your job 1 ("x") has been submitted\n'])
def test_what_is_no_id_is_not_taken_for_one(printed: str):
    assert Slurm().job_id(printed) is None
    assert Pbs().job_id(printed) is None


# --- the command line -----------------------------------------------------------------------------------------


def test_options_of_run_may_stand_anywhere_before_the_script():
    line = split(["--nproc", "2", "--slurm", "--env=A=1", "--nodes=3", "-m", "pkg.train", "--nodes", "9", "--slurm"])
    assert line.own == ["--slurm", "--nodes", "3"]
    assert line.run == ["--nproc", "2", "--env", "A=1", "-m"]
    assert line.script == ["pkg.train", "--nodes", "9", "--slurm"]


def test_a_value_may_begin_with_a_dash():
    assert split(["--extra", "--exclusive", "--extra", "-P x", "t.py"]).own == ["--extra=--exclusive", "--extra=-P x"]


def test_what_follows_two_dashes_is_the_script():
    line = split(["--slurm", "--", "-odd.py", "--pbs"])
    assert (line.own, line.script) == (["--slurm"], ["--", "-odd.py", "--pbs"])


def test_a_value_may_be_attached_to_a_short_option():
    assert split(["-Ha,b", "t.py"]).run == ["-H", "a,b"]


def test_run_and_submit_have_no_option_of_one_name_but_two_meanings():
    both = set(submit.parser().shown_options()) & set(run.parser().shown_options())
    assert both == {"-h", "--help", "--dry-run", "--name"}


def test_module_loads_an_environment_module_although_torchrun_has_such_an_option():
    line = split(["--slurm", "--module", "cuda/12.4", "torchrun", "--module", "pkg.train"])
    assert (line.own, line.script) == (["--slurm", "--module", "cuda/12.4"], ["torchrun", "--module", "pkg.train"])


def test_options_of_torchrun_go_into_the_job():
    line = split(["--slurm", "--nproc_per_node=4", "-np", "2", "--gpus_per_node", "8", "--tee=3", "train.py"])
    assert line.run == ["--nproc-per-node", "4", "-np", "2", "--tee", "3"]
    assert line.own == ["--slurm", "--gpus-per-node", "8"]
