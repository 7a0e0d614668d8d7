"""The stand-in PBS behaves as the real one was seen to: each oddity that Muster has to live with."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pbs import Job, PbsSite
from pbs.programs.request import nodefile_lines, place_chunks, read_request
from waiting import wait_until

from muster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="a mom writes to /etc of its host, in a lab started as root")

KILL_DELAY = 2.0

# Writes each signal it gets to a file, and keeps running until it is killed. A shell would wait for its child first.
LISTENER = """
import signal, sys, time
def note(number, frame):
    with open(sys.argv[1], "a") as file:
        file.write(signal.Signals(number).name + "\\n")
for name in ("SIGTERM", "SIGUSR1", "SIGHUP"):
    signal.signal(getattr(signal, name), note)
open(sys.argv[1], "a").write("ready\\n")
time.sleep(60)
"""


@pytest.fixture(scope="module")
def site(cluster: Lab, shared: Path) -> Iterator[PbsSite]:
    with PbsSite(cluster, shared, kill_delay=KILL_DELAY, vnodes={"h3": 2}) as site:
        yield site


@pytest.fixture
def listener(site: PbsSite) -> str:
    """The start of a command that listens to signals; append a file name."""
    program = site.folder / "listener.py"
    program.write_text(LISTENER)
    return f"{sys.executable} -S {program}"


def ended(site: PbsSite, script: str, *options: str, select: str | None = None, **variables: str) -> Job:
    """A job that has run to its end, spread over its hosts."""
    place = "scatter" if select else None
    job = site.qsub("h1", script, *options, select=select, place=place, walltime=60, env=variables)
    job.wait()
    return job


def fields(job: Job) -> dict[str, str]:
    """`name=value` lines of the output."""
    return dict(line.split("=", 1) for line in job.output.splitlines() if "=" in line)


def emptied(site: PbsSite, *hosts: str) -> None:
    """Wait until nothing but its mom lives on a host: what was killed is not gone at once."""
    wait_until(
        f"the end on {hosts}", lambda: not any(map(site.alive, hosts)), 20, lambda: str([*map(site.alive, hosts)])
    )


def heard(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().split()


# --- the job script ---------------------------------------------------------------------------------


def test_the_script_is_the_child_of_a_login_shell_in_the_home_folder_on_the_first_host(site: PbsSite):
    script = "shopt -q login_shell; echo login=$?; ps -o comm= -p $PPID; hostname; pwd; umask; type -p pbsdsh; exit 5"
    job = ended(site, f"#!/bin/bash\n{script}", select="2:ncpus=4")
    assert job.output.splitlines() == ["login=1", "bash", "h1", str(site.home), "0077", str(site.bin / "pbsdsh")]
    assert job.exit_status == 5


def test_the_script_has_the_variables_of_a_batch_job_and_none_that_stock_pbs_does_not_set(site: PbsSite):
    job = ended(site, "env; test -d $TMPDIR && echo scratch=yes", select="2:ncpus=4:ngpus=2")
    env = fields(job)
    expected = {
        "PBS_JOBID": job.id,
        "PBS_JOBNAME": "job",
        "PBS_QUEUE": "workq",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "ENVIRONMENT": "BATCH",
        "PBS_NODEFILE": f"/var/spool/pbs/aux/{job.id}",
        "PBS_NODENUM": "0",
        "PBS_TASKNUM": "1",
        "PBS_MOMPORT": "15003",
        "PBS_JOBDIR": str(site.home),
        "PBS_O_WORKDIR": str(site.folder),
        "PBS_O_HOST": "h1",
        "TMPDIR": f"/var/tmp/pbs.{job.id}",
        "NCPUS": "4",
        "OMP_NUM_THREADS": "4",
        "scratch": "yes",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert env["PBS_JOBCOOKIE"]
    unknown = {"PBS_NODEID", "PBS_NCPUS", "PBS_NGPUS", "PBS_NUM_PPN", "PBS_GPUFILE", "CUDA_VISIBLE_DEVICES"}
    assert not unknown & set(env)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["select=2:ncpus=1:mpiprocs=2", "place=scatter"], "n1 n1 n2 n2"),
        (["select=2:ncpus=4"], "n1 n1"),
        (["select=2:ncpus=8"], "n1 n2"),
        (["select=2:ncpus=4:ngpus=4:mpiprocs=4", "place=scatter"], "n1 n1 n1 n1 n2 n2 n2 n2"),
        (["select=1:ncpus=2:mpiprocs=1+2:ncpus=1:mpiprocs=2", "place=scatter"], "n1 n2 n2 n3 n3"),
        (["select=1:host=n3+1:host=n1"], "n3 n1"),
        (["select=1:host=n1+1:host=n2+1:host=n1:mpiprocs=2"], "n1 n2 n1 n1"),
        (["nodes=2:ppn=4"], "n1 n1 n1 n1 n2 n2 n2 n2"),
        (["ncpus=4"], "n1"),
        (["ncpus=4", "ngpus=8,mem=10GB,walltime=10:00"], "n1"),
        (["ncpus=16", "ngpus=8"], None),
    ],
)
def test_the_nodefile_has_a_line_for_each_mpiproc_of_the_chunks_where_they_are_put(
    options: list[str], names: str | None
):
    free = {host: {"ncpus": 8, "ngpus": 8} for host in ("n1", "n2", "n3")}
    request = read_request(options)
    chunks = place_chunks(request["chunks"], request["place"], free)
    placed = None if chunks is None else " ".join(chunk["host"] for chunk in nodefile_lines(chunks))
    assert placed == names


# --- tasks ------------------------------------------------------------------------------------------


def test_a_task_knows_nothing_of_the_script_and_on_the_first_host_not_even_the_nodefile(site: PbsSite):
    task = "pbsdsh -n $line -- /bin/sh -c 'env > '$PWD/env.$line; cat $PWD/env.$line"
    script = f"cd $PBS_O_WORKDIR; export MINE=1; for line in 0 1; do {task}; echo ---; done"
    job = ended(site, script, select="2:ncpus=2", GIVEN="a,b")
    first, second = (
        dict(line.split("=", 1) for line in part.splitlines() if line) for part in job.output.split("---\n")[:2]
    )
    for env in (first, second):
        assert {"MINE", "USER", "LOGNAME", "SHELL"}.isdisjoint(env)
        assert (env["PATH"], env["GIVEN"], env["OMP_NUM_THREADS"]) == ("/bin:/usr/bin", "a,b", "2")
        assert env["HOME"] == env["PWD"] == str(site.home)
    assert "PBS_NODEFILE" not in first
    assert second["PBS_NODEFILE"] == f"/var/spool/pbs/aux/{job.id}"
    assert (first["PBS_NODENUM"], second["PBS_NODENUM"]) == ("0", "1")
    assert (first["PBS_TASKNUM"], second["PBS_TASKNUM"]) == ("00000002", "20000001")


def test_capital_v_passes_nothing_on_in_the_newest_release_and_a_list_of_names_does(site: PbsSite):
    env = fields(ended(site, "pbsdsh -- /usr/bin/env", "-V", LISTED="a,b"))
    assert (env["PATH"], env["LISTED"]) == ("/bin:/usr/bin", "a,b")


def test_a_task_has_no_shell_no_stdin_the_home_folder_and_a_private_umask(site: PbsSite):
    job = ended(site, "echo in | pbsdsh -- cat; pbsdsh -- sh -c 'pwd; umask'; pbsdsh -- 'echo hi; hostname'")
    home, umask, *failed = job.output.splitlines()
    assert (home, umask) == (str(site.home), "0077")
    assert sorted(failed) == [
        "pbsdsh: task 0x00000000 exit status 254",
        "\udc90\udcb2U: No such file or directory",  # mom writes memory that it has freed
    ]


def test_pbsdsh_returns_0_whatever_its_tasks_return_and_says_the_rest_on_stdout(site: PbsSite):
    script = """
X=$(pbsdsh -n 1 -- sh -c 'echo to the job; exit 3'); echo "rc=$? said=$X"
X=$(pbsdsh -n 0 -- /no/such/program); echo "rc=$? said=$X"
X=$(pbsdsh -n 0 -- sh -c 'kill -9 $$'); echo "rc=$? said=$X"
X=$(pbsdsh -- true); echo "rc=$? said=$X"
"""
    lines = ended(site, script, select="2:ncpus=1").output.splitlines()
    lines.remove("to the job")  # which comes by another way, before or after what the script says
    lines.remove("\udc90\udcb2U: No such file or directory")
    assert lines == [
        "rc=0 said=pbsdsh: task 0x00000000 exit status 3",
        "rc=0 said=pbsdsh: task 0x00000000 exit status 254",
        "rc=0 said=pbsdsh: task 0x00000000 exit status 265",
        "rc=0 said=",
    ]


def test_pbsdsh_runs_once_for_each_line_and_indices_wrap_around(site: PbsSite):
    script = """
for options in "" "-n 2" "-n 4" "-c 1" "-c 5"; do echo $(wc -l < $O) "[$options]"; pbsdsh -s $options -- $PROG; done
"""
    program = site.folder / "say.sh"
    program.write_text(f"#!/bin/sh\nhostname >> {site.folder}/said\n")
    program.chmod(0o755)
    (site.folder / "said").write_text("")
    ended(site, script, select="2:ncpus=1:mpiprocs=2", PROG=str(program), O=str(site.folder / "said"))
    told = (site.folder / "said").read_text().split()
    assert told == ["h1", "h1", "h2", "h2", "h2", "h1", "h1", "h1", "h1", "h2", "h2", "h1"]


def test_pbsdsh_with_o_does_not_wait_and_with_v_says_what_it_does(site: PbsSite):
    script = "pbsdsh -o -- sleep 50; echo rc=$?; pbsdsh -v -- true"
    job = ended(site, script)
    assert job.output.splitlines() == [
        "rc=0",
        "pbsdsh: spawned task 0x00000000 on logical node 0 event 1",
        "pbsdsh: task 0x00000000 exit status 0",
    ]


def test_pbsdsh_takes_options_of_the_program_for_its_own_without_a_separator(site: PbsSite):
    job = ended(site, "pbsdsh ls -d /; echo rc=$?; pbsdsh -h h1 true; echo rc=$?; pbsdsh -- ls -d /")
    assert [line for line in job.output.splitlines() if line.startswith(("rc", "/"))] == ["rc=1", "rc=1", "/"]


def test_outside_a_job_there_is_no_task_manager(site: PbsSite):
    assert site.run("h1", ["pbsdsh", "true"]).returncode == 1
    done = site.run("h1", ["pbsdsh", "true"], PBS_ENVIRONMENT="PBS_BATCH", PBS_JOBID="9.pbssrv", PBS_JOBCOOKIE="x")
    assert (done.returncode, "tm_init failed" in done.stderr) == (1, True)
    assert site.run("h1", ["pbs_tmrsh", "h1", "true"]).returncode == 255


def test_a_term_to_pbsdsh_is_passed_on_to_its_tasks_and_ends_it_at_once(site: PbsSite, listener: str):
    file = site.folder / "passed-on"
    script = f"""
pbsdsh -n 1 -- {listener} {file} & until test -s {file}; do sleep 0.05; done
kill -TERM $!; wait $!; echo rc=$?; until grep -q SIGTERM {file}; do sleep 0.05; done
"""
    job = ended(site, script, select="2:ncpus=1")
    assert heard(site.folder, "passed-on") == ["ready", "SIGTERM"]
    assert job.output.splitlines() == ["pbsdsh: killing task 0x20000001 signal 15", "rc=1"]


def test_a_killed_pbsdsh_leaves_its_tasks_running_until_the_job_ends(site: PbsSite, listener: str):
    file = site.folder / "left"
    script = f"""
pbsdsh -n 1 -- {listener} {file} & until test -s {file}; do sleep 0.05; done
kill -KILL $!; wait $!; sleep 0.3; pbsdsh -n 1 -- sh -c 'pgrep -fc "[l]eft"'
"""
    job = ended(site, script, select="2:ncpus=1")
    assert job.output.splitlines()[-1] == "1"
    emptied(site, "h2")


def test_pbs_tmrsh_returns_the_status_of_its_task_and_writes_to_the_job(site: PbsSite):
    script = """
address=$(getent ahostsv4 h2 | head -1 | cut -d' ' -f1)
X=$(pbs_tmrsh h2 sh -c 'hostname; exit 7'); echo "rc=$? said=$X"
pbs_tmrsh $address true; echo rc=$?
pbs_tmrsh h2 sh -c 'kill -9 $$'; echo rc=$?
pbs_tmrsh h2 'echo hi; hostname'; echo rc=$?
pbs_tmrsh h3 true; echo rc=$?
"""
    lines = ended(site, script, select="2:ncpus=1").output.splitlines()
    unknown = f'pbs_tmrsh: host "h3" is not a node in job <{lines[-2].partition("<")[2]}'
    for line in ("h2", "\udc90\udcb2U: No such file or directory"):
        lines.remove(line)  # which comes by another way, before or after what the script says
    assert lines == ["rc=7 said=", "rc=0", "rc=9", "rc=254", unknown, "rc=255"]


def test_pbs_tmrsh_passes_no_signal_on(site: PbsSite, listener: str):
    file = site.folder / "not-passed-on"
    script = f"""
pbs_tmrsh h2 {listener} {file} & until test -s {file}; do sleep 0.05; done
kill -TERM $!; wait $!; echo rc=$?; sleep 0.3; pbsdsh -n 1 -- pgrep -fc 'listener.[p]y.*not-passed'
"""
    job = ended(site, script, select="2:ncpus=1")
    assert job.output.splitlines() == ["rc=143", "1"]
    assert heard(site.folder, "not-passed-on") == ["ready"]


def test_tasks_can_start_tasks_but_pbs_tmrsh_only_where_there_is_a_nodefile(site: PbsSite):
    script = f"""
pbsdsh -n 1 -- {site.bin}/pbsdsh -n 0 -- hostname
pbsdsh -n 0 -- {site.bin}/pbs_tmrsh h2 hostname
pbsdsh -n 1 -- {site.bin}/pbs_tmrsh h1 hostname
"""
    # Sorted, because what tasks and pbsdsh write comes by different ways.
    assert sorted(ended(site, script, select="2:ncpus=1").output.splitlines()) == [
        "h1",
        "h1",
        "pbs_tmrsh: cannot find PBS_NODEFILE",
        "pbsdsh: task 0x00000000 exit status 255",
    ]


def test_what_a_task_leaves_in_its_session_is_killed_when_its_first_process_ends(site: PbsSite):
    leave = "sleep 47 & setsid sleep 48 & until pgrep -fx 'sleep 48'; do sleep 0.05; done"
    script = f'pbsdsh -- sh -c "{leave}"; while pgrep -fx "sleep 47"; do sleep 0.1; done; pgrep -ax sleep'
    job = ended(site, script)
    try:
        # pgrep shows only the name of a process that has been killed and is about to exit.
        listed = [line.split(" ", 1)[1] for line in job.output.splitlines() if re.search(" sleep [0-9]", line)]
        assert listed == ["sleep 48"]
        wait_until("the end of the others", lambda: site.alive("h1") == ["sleep 48"], 20, lambda: str(site.alive("h1")))
    finally:
        end(site, "h1")


# --- the end of a job -------------------------------------------------------------------------------


def end(site: PbsSite, *hosts: str) -> None:
    """End what a test left on purpose."""
    for host in hosts:
        for pid, command in site.lab.processes(host):
            if "mom.py" not in command:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
        emptied(site, host)


def test_qdel_reaches_each_process_as_it_does_in_real_pbs(site: PbsSite, listener: str):
    folder = site.folder / "qdel"
    folder.mkdir()
    hear = f"{listener} {folder}"
    script = f"""#!/bin/bash
nohup {hear}/child &
setsid {hear}/setsid &
pbsdsh -n 0 -- {hear}/task-here &
pbsdsh -n 1 -- {hear}/task-there &
pbsdsh -n 1 -- sh -c '/usr/bin/setsid {hear}/task-setsid & sleep 60' &
pbs_tmrsh h2 {hear}/tmrsh &
ssh h2 'nohup {hear}/ssh > /dev/null 2>&1 &'
ssh h2 {site.bin}/pbs_attach -j $PBS_JOBID -s {hear}/attached > /dev/null 2>&1 &
wait
"""
    job = site.qsub("h1", script, select="2:ncpus=2", place="scatter", walltime=60)
    names = ["attached", "child", "setsid", "ssh", "task-here", "task-setsid", "task-there", "tmrsh"]
    wait_until("all listeners", lambda: sorted(path.name for path in folder.iterdir() if path.read_text()) == names, 40)
    job.qdel()
    assert job.wait() == 256 + 15
    signals = {name: heard(folder, name)[1:] for name in names}
    assert set(signals.pop("task-here")) == {"SIGTERM"}  # once from mom and once from pbsdsh
    assert signals == {
        "child": ["SIGTERM"],
        "task-there": ["SIGTERM"],  # from pbsdsh only
        "tmrsh": [],
        "attached": [],
        "setsid": [],
        "task-setsid": [],
        "ssh": [],
    }

    def left() -> dict[str, list[str]]:
        return {host: sorted(command.rpartition("/")[2] for command in site.alive(host)) for host in ("h1", "h2")}

    survivors = {"h1": ["setsid"], "h2": ["ssh", "task-setsid"]}
    try:
        wait_until("the end of the others", lambda: left() == survivors, 20, lambda: str(left()))
    finally:
        end(site, "h1", "h2")


def test_suspension_stops_the_sessions_of_all_hosts_and_those_that_were_attached(site: PbsSite):
    busy = "while :; do :; done"
    script = f"""#!/bin/bash
setsid sh -c 'echo $$ > {site.folder}/pid; exec sleep 61' &
until test -s {site.folder}/pid; do sleep 0.05; done
setsid sleep 62 &
pbs_attach -j $PBS_JOBID -p $(cat {site.folder}/pid)
pbsdsh -n 1 -- sh -c '{busy}' &
echo ready
wait
"""
    job = site.qsub("h1", script, select="2:ncpus=2", place="scatter", walltime=60)
    job.wait_for_output("ready")

    def states() -> dict[str, str]:
        found = {command: pid for host in ("h1", "h2") for pid, command in site.lab.processes(host)}
        return {
            command.rpartition(" -c ")[2]: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            for command, pid in found.items()
            if command in ("sleep 61", "sleep 62", f"sh -c {busy}")
        }

    wait_until("all of them", lambda: len(states()) == 3, 20)
    for word, state, stopped in (("suspend", "S", "T"), ("resume", "R", "S")):
        assert site.run("h1", ["qsig", "-s", word, job.id]).returncode == 0
        assert job.state == state
        expected = {"sleep 61": stopped, "sleep 62": "S", busy: "T" if state == "S" else "R"}
        wait_until(word, lambda expected=expected: states() == expected, 20, lambda: str(states()))
    used = re.compile(r"resources_used.cput = 00:00:0[1-9]")
    wait_until("CPU time", lambda: used.search(site.run("h1", ["qstat", "-f", job.id]).stdout), 30)
    job.qdel()
    job.wait()
    end(site, "h1")


def test_a_script_that_ignores_term_is_killed_after_the_kill_delay(site: PbsSite):
    job = site.qsub("h1", "trap '' TERM; echo ready; while :; do sleep 1; done", walltime=60)
    job.wait_for_output("ready")
    begin = time.monotonic()
    job.qdel()
    # The login shell above the script dies of the TERM at once; it is the status of this one that counts.
    assert job.wait() == 256 + 15
    assert time.monotonic() - begin > 0.9 * KILL_DELAY
    emptied(site, "h1")


def test_at_the_walltime_the_job_gets_term_then_kill_and_a_line_in_its_output(site: PbsSite, listener: str):
    file = site.folder / "walltime"
    job = site.qsub("h1", f"{listener} {file}", walltime=60)
    wait_until("the script", lambda: file.exists() and file.read_text(), 40)
    job.limit(1)
    assert job.wait() == -29
    assert re.fullmatch(r"=>> PBS: job killed: walltime \d+ exceeded limit 1", job.output.splitlines()[-1])
    assert heard(site.folder, "walltime") == ["ready", "SIGTERM"]
    emptied(site, "h1")


def test_when_the_script_ends_its_tasks_are_killed_at_once_without_a_term(site: PbsSite, listener: str):
    here, there, child = (site.folder / f"end-{name}" for name in ("here", "there", "child"))
    script = f"""
pbsdsh -o -n 0 -- {listener} {here}; pbsdsh -o -n 1 -- {listener} {there}; {listener} {child} &
until test -s {here} -a -s {there} -a -s {child}; do sleep 0.05; done; exit 4
"""
    job = ended(site, script, select="2:ncpus=1")
    assert job.exit_status == 4
    assert [heard(site.folder, path.name) for path in (here, there, child)] == [["ready"]] * 3
    emptied(site, "h1", "h2")


def test_qsig_reaches_the_first_host_only_and_kills_a_script_that_does_not_expect_it(site: PbsSite, listener: str):
    here, there = site.folder / "sig-here", site.folder / "sig-there"
    script = f"pbsdsh -n 0 -- {listener} {here} & pbsdsh -n 1 -- {listener} {there} & wait"
    job = site.qsub("h1", script, select="2:ncpus=1", place="scatter", walltime=60)
    wait_until("both tasks", lambda: here.exists() and there.exists() and here.read_text() and there.read_text(), 40)
    assert site.run("h1", ["qsig", "-s", "SIGUSR1", job.id]).returncode == 0
    assert job.wait() == 256 + 10
    assert heard(site.folder, "sig-here") == ["ready", "SIGUSR1"]
    assert heard(site.folder, "sig-there") == ["ready"]


@pytest.mark.parametrize("fault", ["crash", "power_off"])
def test_a_dead_host_changes_nothing_for_the_job(site: PbsSite, fault: str):
    script = "pbsdsh -n 1 -- sh -c 'echo ready; sleep 60'"
    job = site.qsub("h1", script, select="1:host=h1+1:host=h3", walltime=60)
    job.wait_for_output("ready")
    getattr(site.lab, fault)("h3")
    try:
        time.sleep(1)
        assert job.state == "R"
        assert any("pbsdsh" in command for command in site.alive("h1"))
        job.qdel()
        assert job.wait() == 256 + 15
        emptied(site, "h1")
    finally:
        site.lab.reboot("h3")
        site.boot("h3")


# --- what users type --------------------------------------------------------------------------------


def test_the_output_file_appears_after_the_job_and_only_its_owner_may_read_it(site: PbsSite):
    job = site.qsub("h2", "echo ready; until test -e $PBS_O_WORKDIR/go; do sleep 0.05; done", walltime=60)
    job.wait_for_output("ready")
    assert not job.path.exists()
    (site.folder / "go").touch()
    assert job.wait() == 0
    assert stat.S_IMODE(job.path.stat().st_mode) == 0o600
    assert job.path.name == f"job.o{job.id.partition('.')[0]}"
    assert job.output == "ready\n"


def test_streams_are_joined_kept_and_put_where_the_options_say(site: PbsSite):
    folder = site.folder / "logs"
    folder.mkdir()
    job = ended(site, "echo out; echo err >&2", "-j", "n", "-o", str(folder / "a.log"))
    assert ((folder / "a.log").read_text(), job.errors) == ("out\n", "err\n")
    job = ended(site, "echo out", "-o", str(folder))
    assert (folder / f"{job.id}.OU").read_text() == "out\n"
    live = site.qsub("h1", "echo out; sleep 60", "-k", "oed", "-o", str(folder / "live.log"), walltime=60)
    wait_until("live output", lambda: (folder / "live.log").exists() and (folder / "live.log").read_text(), 40)
    live.qdel()
    live.wait()


def test_directives_are_read_up_to_the_first_command_and_the_command_line_goes_before_them(site: PbsSite):
    script = "#!/bin/sh\n#PBS -N from_script -q express\n\n# words\n#PBS -l walltime=00:01:00\ntrue\n#PBS -A late\n"
    (site.folder / "train.sh").write_text(script)
    job = site.job(site.run("h1", ["qsub", "-q", "fast", "train.sh"]).stdout.strip())
    record = job.record
    assert [record[name] for name in ("name", "queue", "walltime", "account")] == ["from_script", "fast", 60, None]
    job.wait()
    (site.folder / "plain.sh").write_text("true\n")
    job = site.job(site.run("h1", ["qsub", "plain.sh"]).stdout.strip())
    assert (job.record["name"], job.wait()) == ("plain.sh", 0)
    job = site.job(site.run("h1", ["sh", "-c", "echo true | qsub"]).stdout.strip())
    assert (job.record["name"], job.wait()) == ("STDIN", 0)


def test_requests_that_pbs_does_not_know_or_cannot_combine_are_refused(site: PbsSite):
    script = site.folder / "plain.sh"
    script.write_text("true\n")
    done = site.run("h1", ["qsub", "-l", "select=1:ncpus=1", "-l", "ncpus=4", str(script)])
    assert (done.returncode, '"-lresource=" cannot be used with "select"' in done.stderr) == (170, True)
    done = site.run("h1", ["qsub", "-l", "jobfs=10gb", str(script)])
    assert (done.returncode, "Unknown resource" in done.stderr) == (187, True)


def test_a_job_that_is_too_large_for_a_host_waits_for_ever_and_says_why(site: PbsSite):
    job = site.qsub("h1", "true", "-l", "ncpus=16", "-l", "ngpus=8")
    why = "Can Never Run: Insufficient amount of resource: ncpus (R: 16 A: 8 T: 24)"
    wait_until("a reason", lambda: job.record["comment"] == why, 30)
    job.qdel()
    assert (job.state, job.exit_status) == ("F", None)


def test_a_job_waits_until_those_before_it_make_room(site: PbsSite):
    first = site.qsub("h1", "sleep 1; date +%s.%N", select="3:ncpus=8", walltime=60)
    second = site.qsub("h1", "date +%s.%N", select="1:ncpus=8", walltime=60)
    assert (first.wait(), second.wait()) == (0, 0)
    assert float(second.output) > float(first.output)


def test_qstat_and_qdel_distinguish_finished_jobs_from_unknown_ones_by_exit_code(site: PbsSite):
    job = ended(site, "exit 3")
    for argv, code, words in (
        (["qstat", job.id], 35, "Job has finished, use -x"),
        (["qstat", "-f", job.id], 35, "Job has finished, use -x"),
        (["qdel", job.id], 35, "Job has finished"),
        (["qstat", "9999"], 153, "Unknown Job Id 9999.pbssrv"),
        (["qdel", "9999.pbssrv"], 153, "Unknown Job Id 9999.pbssrv"),
    ):
        done = site.run("h2", argv)
        assert (done.returncode, words in done.stderr) == (code, True), argv
    assert " F workq" in site.run("h1", ["qstat", "-x", job.id]).stdout
    told = json.loads(site.run("h1", ["qstat", "-xf", "-F", "json", job.id]).stdout)["Jobs"][job.id]
    assert (told["Exit_status"], told["job_state"], told["Resource_List"]["ncpus"]) == (3, "F", 1)


def test_jobs_of_an_array_have_brackets_in_their_ids_and_nodefiles(site: PbsSite):
    site.run("h1", ["sh", "-c", "echo 'cat \"$PBS_NODEFILE\"; echo $PBS_ARRAY_INDEX $PBS_ARRAY_ID' > array.sh"])
    array = site.run("h1", ["qsub", "-J", "1-2", "-j", "oe", "array.sh"]).stdout.strip()
    number = array.removesuffix("[].pbssrv")
    for index in (1, 2):
        job = site.job(f"{number}[{index}].pbssrv")
        assert job.wait() == 0
        assert job.output.splitlines() == ["h1", f"{index} {array}"]


def test_muster_reads_the_allocation_of_such_a_job(site: PbsSite):
    program = """
import os, subprocess
from muster.engines.pbs.environment import in_pbs_job, nodefile_lines, nodefile_text, read_pbs
text = nodefile_text(os.environ)
qstat = subprocess.run(["qstat", "-f", os.environ["PBS_JOBID"]], capture_output=True, text=True).stdout
found = read_pbs(os.environ, text, qstat)
hosts = [(host.name, host.slots, host.tasks) for host in found.hosts]
print(in_pbs_job(os.environ), found, hosts, nodefile_lines(text))
"""
    (site.folder / "read.py").write_text(program)
    select = "1:ncpus=4:ngpus=2:mpiprocs=2+1:ncpus=4:ngpus=1:mpiprocs=1+1:ncpus=1"
    job = ended(site, f"{sys.executable} $PBS_O_WORKDIR/read.py", select=select, LONG="x" * 200)
    told = "[('h1', 2, 2), ('h2', 1, 1), ('h3', None, 1)] {'h1': 0, 'h2': 2, 'h3': 3}"
    assert job.output == f"True PBS job {job.id}, 3 hosts {told}\n"


def test_of_two_values_for_a_resource_the_first_counts_and_what_was_typed_comes_before_directives(site: PbsSite):
    script = "#PBS -l place=scatter -N first\n#PBS -l place=pack,walltime=50 -N last\n#PBS -l walltime=20\ntrue\n"
    (site.folder / "twice.sh").write_text(script)
    record = site.job(site.run("h1", ["qsub", "-l", "select=2", "twice.sh"]).stdout.strip()).record
    assert [record[name] for name in ("place", "walltime", "name")] == ["scatter", 50, "last"]
    record = site.job(site.run("h1", ["qsub", "-l", "place=free", "twice.sh"]).stdout.strip()).record
    assert record["place"] == "free"


def test_a_default_of_the_site_for_chunks_changes_the_lines_and_not_the_select():
    request = read_request(["select=2:ncpus=1+1:mpiprocs=1"], {"mpiprocs": 2})
    assert request["select"] == "2:ncpus=1+1:mpiprocs=1"
    assert [chunk["mpiprocs"] for chunk in request["chunks"]] == [2, 2, 1]


def test_a_job_whose_output_cannot_be_written_in_place_is_held_or_says_so(site: PbsSite):
    job = site.qsub("h1", "echo out", "-k", "oed", "-o", str(site.folder / "none" / "a.log"), walltime=60)
    wait_until("a held job", lambda: job.state == "H", 30, lambda: str(job.record))
    assert (job.record["comment"], job.exit_status) == ("job held, too many failed attempts to run", -3)
    job.qdel()
    private = site.qsub("h1", "echo out", "-k", "oed", "-o", "/tmp/a.log", "-l", "select=1:host=h2", walltime=60)
    assert private.wait() == 0
    line = f"Direct write is requested for job: {private.id}, but the destination is not usecp-able from h2"
    assert site.run("h1", ["cat", "/tmp/a.log"]).stdout.splitlines() == [line, "out"]


def test_qstat_shows_newlines_as_they_are_vnodes_and_the_number_of_each_chunk(site: PbsSite):
    script = "qstat -f $PBS_JOBID"
    select = "1:ncpus=8:ngpus=2:host=h3+1:ncpus=2:host=h2"
    first = site.qsub("h1", "sleep 60", select="1:ncpus=1:host=h2", walltime=60)
    wait_until("the first job", lambda: first.state == "R", 30)
    job = site.qsub("h1", script, select=select, walltime=60, env={"NOTE": "a\n    exec_vnode = (h9)"})
    assert job.wait() == 0
    first.qdel()
    first.wait()
    text = job.output.replace("\n\t", "")
    assert "exec_host = h3/0*0+h2/1*2\n" in text
    assert "exec_vnode = (h3[0]:ncpus=4:ngpus=2+h3[1]:ncpus=4)+(h2:ncpus=2)\n" in text
    assert "NOTE=a\n    exec_vnode = (h9)\n" in text


def test_qstat_s_says_why_a_job_waits(site: PbsSite):
    job = site.qsub("h1", "true", "-l", "ncpus=16")
    wait_until("a reason", lambda: job.record["comment"], 30)
    assert "   Can Never Run: Insufficient amount of resource" in site.run("h1", ["qstat", "-s", job.id]).stdout
    job.qdel()


def test_a_server_that_is_down_or_hangs_leaves_jobs_and_tasks_alone(site: PbsSite):
    up, over = site.folder / "up", site.folder / "over"
    task = f"touch {up}; until test -e {over}; do sleep 0.05; done; hostname"
    job = site.qsub("h1", f"pbsdsh -- sh -c '{task}'", walltime=300)
    wait_until("the task", up.exists)
    with site.server("down"):
        assert site.run("h1", ["qstat", job.id]).returncode == 255
        wait = site.run("h1", ["timeout", "0.3", "qstat"])
        assert "cannot connect to server pbssrv" in wait.stderr
    with site.server("hung"):
        assert site.run("h1", ["timeout", "0.3", "qstat", job.id]).returncode == 124
    over.touch()
    assert job.wait() == 0
    assert job.output.splitlines() == ["h1"]


def test_a_chunk_without_ranks_has_no_line(site: PbsSite):
    job = ended(site, "cat $PBS_NODEFILE; echo end", select="1:ncpus=1:mpiprocs=0")
    assert (job.exit_status, job.output) == (0, "end\n")


def test_released_hosts_leave_the_nodefile_and_the_numbers_of_pbsdsh(site: PbsSite, listener: str):
    gone = site.folder / "released"
    script = f"""
pbsdsh -n 1 -- {listener} {gone} & until test -s {gone}; do sleep 0.05; done
pbs_release_nodes -j $PBS_JOBID $(hostname); echo rc=$?
pbs_release_nodes -j $PBS_JOBID h2; echo rc=$?
cat $PBS_NODEFILE; pbsdsh -n 1 -- hostname
"""
    job = ended(site, script, select="3:ncpus=1")
    said = [line for line in job.output.splitlines() if not line.startswith(("pbsdsh", "pbs_release"))]
    assert said == ["rc=1", "rc=0", "h1", "h3", "h3"]
    assert heard(site.folder, "released") == ["ready"], "no SIGTERM"
    emptied(site, "h2")


def test_a_mom_that_dies_alone_leaves_the_tasks_and_the_next_one_runs_the_job_again(site: PbsSite, listener: str):
    task, again = site.folder / "orphan", site.folder / "again"
    script = f"""
test -e {again} && exit 5; touch {again}
pbsdsh -n 1 -- {listener} {task} & until test -s {task}; do sleep 0.05; done; wait; echo ended >> {again}; sleep 60
"""
    job = site.qsub("h1", script, select="2:ncpus=1", place="scatter", walltime=60)
    wait_until("the task", lambda: task.exists() and task.read_text(), 40)
    site.kill_mom("h1")
    try:
        wait_until("the end of pbsdsh", lambda: again.read_text() == "ended\n", 20, again.read_text)
        assert (job.state, heard(site.folder, "orphan")) == ("R", ["ready"])
        done = site.run("h2", ["qdel", job.id])
        assert "Server could not connect to MOM" in done.stderr
    finally:
        site.boot("h1")
    assert job.wait() == 5
    emptied(site, "h1", "h2")


# --- other sites ------------------------------------------------------------------------------------


@needs_root
def test_without_history_qstat_x_complains_and_still_exits_0(tmp_path: Path):
    with Lab(1, bind=(tmp_path,)) as lab, PbsSite(lab, tmp_path, history=False) as site:
        job = ended(site, "true")
        done = site.run("h1", ["qstat", "-x", job.id])
        assert (done.returncode, done.stderr) == (0, "qstat: PBS is not configured to maintain job history\n")
        assert site.run("h1", ["qstat", job.id]).returncode == 153


@needs_root
def test_torque_has_its_own_variables_and_options_and_no_pbs_tmrsh(tmp_path: Path):
    script = """
env; echo ---; cat $PBS_GPUFILE; echo ---; type pbs_tmrsh || echo none
X=$(pbsdsh -o -u -- hostname); echo $X; pbsdsh -h h2 -- hostname; qstat -f $PBS_JOBID
"""
    with Lab(2, bind=(tmp_path,)) as lab, PbsSite(lab, tmp_path, flavour="torque") as site:
        job = site.qsub("h1", script, "-l", "nodes=2:ppn=2:gpus=1", walltime=60)
        assert job.wait() == 0
        env, gpus, rest = job.output.split("---\n")
    found = dict(line.split("=", 1) for line in env.splitlines())
    expected = {
        "PBS_NUM_NODES": "2",
        "PBS_NUM_PPN": "2",
        "PBS_NP": "4",
        "PBS_WALLTIME": "60",
        "PBS_VNODENUM": "0",
        "PBS_GPUFILE": f"/var/spool/torque/aux/{job.id}gpu",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert gpus.split() == ["h1-gpu0", "h2-gpu0"]
    assert "none" in rest
    assert sorted(rest.splitlines()[2].split()) == ["h1", "h2"]
    assert "\nh2\n" in rest
    assert "exec_host = h1/0+h1/1+h2/0+h2/1" in rest
    assert "exec_vnode" not in rest
