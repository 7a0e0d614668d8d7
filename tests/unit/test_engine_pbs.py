"""What a PBS job was given, from its environment, its nodefile and qstat."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engines.allocation import Allocation
from muster.engines.pbs.environment import in_pbs_job, nodefile_lines, nodefile_text, read_pbs
from muster.engines.pbs.qstat import ask_qstat
from muster.errors import UsageError

JOB = {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBID": "12.pbssrv"}

# Written by OpenPBS 23.06 for `qsub -l select=2:ncpus=4:ngpus=4:mpiprocs=4 -l place=scatter`, shortened. Lines are
# folded at 78 columns, or after a comma, and continue after a tab.
QSTAT = """\
Job Id: 12.pbssrv
    Job_Name = train.sh
    Job_Owner = ann@login1
    job_state = R
    queue = workq
    server = pbssrv
    exec_host = n1/0*4+n2/0*4
    exec_vnode = (n1:ncpus=4:ngpus=4:mem=1048576kb)+(n2:ncpus=4:ngpus=2:mem=104857
\t6kb)
    Resource_List.mpiprocs = 8
    Resource_List.ncpus = 8
    Resource_List.ngpus = 6
    Resource_List.nodect = 2
    Resource_List.place = scatter
    Resource_List.select = 2:ncpus=4:ngpus=4:mpiprocs=4
    Resource_List.walltime = 00:10:00
    schedselect = 2:ncpus=4:ngpus=4:mpiprocs=4
    Variable_List = PBS_O_HOME=/home/ann,PBS_O_LANG=C.UTF-8,PBS_O_LOGNAME=ann,
\tPBS_O_PATH=/usr/bin:/bin,NOTE=a line
    exec_vnode = (n9:ngpus=99)
"""


def qstat(**attributes: str) -> str:
    """What `qstat -f` prints for a job with these attributes; a `_` in `Resource_List_x` stands for the dot."""
    lines = ["Job Id: 12.pbssrv"]
    for name, value in attributes.items():
        line = f"    {name.replace('Resource_List_', 'Resource_List.')} = {value}"
        lines.append("\n\t".join([line[:78], *(line[at : at + 70] for at in range(78, len(line), 70))]))
    return "\n".join(lines) + "\n\n"


def nodefile(names: str) -> str:
    return "".join(f"{name}\n" for name in names.split())


def slots(allocation: Allocation) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in allocation.hosts]


def tasks(allocation: Allocation) -> list[tuple[str, int | None]]:
    return [(host.name, host.tasks) for host in allocation.hosts]


# Each row was seen on a real three-node OpenPBS: the request, what select became, the nodefile, and who is to run how
# many ranks on a host without GPUs.
SEEN = [
    ("2:ncpus=1:mpiprocs=2", "n1 n1 n2 n2", [("n1", 2), ("n2", 2)]),
    ("2:ncpus=4", "n1 n1", [("n1", 2)]),  # both chunks on one host
    ("2:ncpus=8", "n1 n2", [("n1", None), ("n2", None)]),
    ("2:ncpus=4:ngpus=4:mpiprocs=4", "n1 n1 n1 n1 n2 n2 n2 n2", [("n1", 4), ("n2", 4)]),
    ("1:ncpus=2:mpiprocs=1+2:ncpus=1:mpiprocs=2", "n1 n2 n2 n3 n3", [("n1", 1), ("n2", 2), ("n3", 2)]),
    ("1:host=n3:ncpus=1+1:host=n1:ncpus=1", "n3 n1", [("n3", None), ("n1", None)]),  # the job script runs on n3
    (
        "1:ncpus=1:host=n1+1:ncpus=1:host=n2+1:ncpus=1:host=n1:mpiprocs=2",
        "n1 n2 n1 n1",
        [("n1", 3), ("n2", 1)],
    ),
    ("2:ncpus=4:mpiprocs=4", "n1 n1 n1 n1 n2 n2 n2 n2", [("n1", 4), ("n2", 4)]),  # -l nodes=2:ppn=4
    ("3:ncpus=1", "n1 n1 n2", [("n1", 2), ("n2", 1)]),  # packed as far as they fit
    ("1:ncpus=4", "n1", [("n1", None)]),  # -l ncpus=4
    ("1:mem=10gb:ncpus=4:ngpus=8", "n1", [("n1", None)]),  # -l ncpus=4 -l ngpus=8 -l mem=10GB
]


@pytest.mark.parametrize(("select", "names", "expected"), SEEN)
def test_hosts_and_their_ranks_are_read_from_every_kind_of_nodefile(
    select: str, names: str, expected: list[tuple[str, int | None]]
):
    found = read_pbs(JOB, nodefile(names), qstat(Resource_List_select=select))
    assert tasks(found) == expected


def test_a_default_of_the_site_for_mpiprocs_counts_although_the_select_line_does_not_have_it():
    text = qstat(Resource_List_mpiprocs="2", Resource_List_select="2:ncpus=1")
    assert tasks(read_pbs(JOB, nodefile("n1 n2"), text)) == [("n1", 1), ("n2", 1)]


@pytest.mark.parametrize("names", ["n1 n1 n2 n2", "n1 n2"])
def test_a_silent_qstat_changes_the_number_of_ranks_only_with_a_message(names: str):
    asked = "2:mpiprocs=2" if names == "n1 n1 n2 n2" else "2:mpiprocs=1"
    answered = read_pbs(JOB, nodefile(names), qstat(Resource_List_select=asked))
    silent = read_pbs(JOB, nodefile(names), "", silence="qstat did not answer within 10 s")
    assert tasks(silent) == tasks(answered)
    assert silent.notes == (
        "could not determine the GPUs that PBS allocated (qstat did not answer within 10 s); "
        "each line of PBS_NODEFILE becomes one rank, use --nproc N for another number per host",
    )


def test_a_silent_qstat_is_reported_where_lines_are_cpus_too():
    found = read_pbs({**JOB, "PBS_NCPUS": "2"}, nodefile("n1 n2"), "", silence="no server")
    assert (slots(found), tasks(found)) == ([("n1", None), ("n2", None)], [("n1", None), ("n2", None)])
    assert found.notes == (
        "could not determine the GPUs that PBS allocated (no server); "
        "each host reports its own GPUs, use --nproc N if they are not all yours",
    )


@pytest.mark.parametrize(
    ("program", "silence"),
    [
        ("echo Job Id: 12.pbssrv", ""),
        ("exec sleep 60", "`{qstat}` did not answer within 0.3 s"),
        (
            "echo Connection refused >&2; echo 'qstat: cannot connect to server h1' >&2; exit 1",
            "`{qstat} -f 12.pbssrv` failed: qstat: cannot connect to server h1",
        ),
        ("exit 3", "`{qstat} -f 12.pbssrv` failed: exit code 3"),
    ],
    ids=["answers", "hangs", "down", "no output"],
)
def test_qstat_says_why_it_does_not_answer(tmp_path: Path, program: str, silence: str):
    path = tmp_path / "bin" / "qstat"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    text, why = ask_qstat({**JOB, "PBS_EXEC": str(tmp_path)}, 0.3 if "sleep" in program else 60)
    assert (bool(text), why) == (not silence, silence.format(qstat=path))


def test_gpus_of_unequal_hosts_come_from_a_folded_exec_vnode():
    found = read_pbs(JOB, nodefile("n1 " * 4 + "n2 " * 4), QSTAT)
    assert slots(found) == [("n1", 4), ("n2", 2)]
    assert str(found) == "PBS job 12.pbssrv, 2 hosts"
    assert found.notes == (
        "GPUs per host from exec_vnode of `qstat -f`",
        "ranks on hosts without GPUs from the lines of PBS_NODEFILE (mpiprocs)",
    )


@pytest.mark.parametrize(
    ("names", "vnodes", "expected"),
    [
        pytest.param("n1", "(n1[0]:ncpus=2:ngpus=1+n1[1]:ncpus=2:ngpus=1)", [("n1", 2)], id="parts of one host"),
        pytest.param("n1 n1", "(n1:ncpus=4:ngpus=1)+(n1:ncpus=4:ngpus=1)", [("n1", 2)], id="two chunks on one host"),
        pytest.param("n1.a.org", "(n1:ncpus=4:ngpus=4)", [("n1.a.org", 4)], id="domain in the nodefile only"),
        pytest.param("n1", "(n1.a.org:ncpus=4:ngpus=4)", [("n1", 4)], id="domain in exec_vnode only"),
        pytest.param("n1.a n1.b", "(n1.b:ngpus=4)+(n1.a:ngpus=2)", [("n1.a", 2), ("n1.b", 4)], id="names differ late"),
        pytest.param("n1 n2", "(n1:ncpus=4:ngpus=4)+(n2:ncpus=4)", [("n1", 4), ("n2", None)], id="GPUs on one only"),
        pytest.param("n1", "(n1:ncpus=4:ngpus=0)", [("n1", None)], id="none"),
        pytest.param("n1", "(n1:ncpus=4:mem=1kb)", [("n1", None)], id="not asked for"),
        pytest.param("n1", "(n7:ncpus=4:ngpus=4)", [("n1", None)], id="another host"),
        pytest.param("n1.a n1.b", "(n1:ncpus=4:ngpus=4)", [("n1.a", None), ("n1.b", None)], id="which of two"),
        pytest.param("n1", "(n1:ncpus=4:ngpus=", [("n1", None)], id="cut short"),
    ],
)
def test_exec_vnode_is_read_in_all_its_forms(names: str, vnodes: str, expected: list[tuple[str, int | None]]):
    assert slots(read_pbs(JOB, nodefile(names), qstat(exec_vnode=vnodes))) == expected


def test_vnodes_with_names_of_their_own_are_found_by_exec_host():
    text = qstat(exec_host="n1/0*4+n2/0*4", exec_vnode="(rack1a:ncpus=4:ngpus=4)+(rack1b:ncpus=4:ngpus=2)")
    assert slots(read_pbs(JOB, nodefile("n1 n2"), text)) == [("n1", 4), ("n2", 2)]


def test_gadis_sums_are_shared_out_and_its_line_per_cpu_is_not_taken_for_ranks():
    gadi = {**JOB, "PBS_NCPUS": "96", "PBS_NGPUS": "8", "PBS_NCI_NCPUS_PER_NODE": "48"}
    names = nodefile("gpu-1.gadi " * 48 + "gpu-2.gadi " * 48)
    found = read_pbs(gadi, names, "")
    assert slots(found) == [("gpu-1.gadi", 4), ("gpu-2.gadi", 4)]
    assert tasks(found) == [("gpu-1.gadi", None), ("gpu-2.gadi", None)]
    assert found.notes == (
        "GPUs per host from PBS_NGPUS: 8 over 2 hosts",
        "PBS_NODEFILE has one line per CPU, so its lines do not set the number of ranks",
    )
    assert nodefile_lines(names) == {"gpu-1.gadi": 0, "gpu-2.gadi": 48}


def test_a_line_for_each_cpu_is_recognised_by_pbs_ncpus_even_if_the_site_asked_for_mpiprocs():
    found = read_pbs({**JOB, "PBS_NCPUS": "4"}, nodefile("n1 n1 n2 n2"), qstat(Resource_List_select="2:mpiprocs=2"))
    assert tasks(found) == [("n1", None), ("n2", None)]


def test_a_sum_that_does_not_divide_is_reported_and_the_hosts_are_asked():
    found = read_pbs({**JOB, "PBS_NGPUS": "5"}, nodefile("n1 n2"), qstat(job_state="R"))
    assert slots(found) == [("n1", None), ("n2", None)]
    assert found.notes == ("PBS_NGPUS is 5 for 2 hosts, so each host reports its own GPUs",)


def test_resource_list_ngpus_helps_where_exec_vnode_says_nothing():
    found = read_pbs(JOB, nodefile("n1 n2"), qstat(Resource_List_ngpus="8"))
    assert slots(found) == [("n1", 4), ("n2", 4)]
    assert slots(read_pbs(JOB, nodefile("n1"), qstat(Resource_List_ngpus="3"))) == [("n1", 3)]


def test_exec_vnode_goes_before_pbs_ngpus_and_that_before_resource_list():
    env = {**JOB, "PBS_NGPUS": "4"}
    text = qstat(Resource_List_ngpus="6")
    assert slots(read_pbs(env, nodefile("n1 n2"), text)) == [("n1", 2), ("n2", 2)]
    text = qstat(exec_vnode="(n1:ngpus=1)+(n2:ngpus=3)", Resource_List_ngpus="6")
    assert slots(read_pbs(env, nodefile("n1 n2"), text)) == [("n1", 1), ("n2", 3)]


def test_torque_lists_gpus_in_a_file_and_ranks_by_ppn():
    env = {**JOB, "PBS_NUM_PPN": "2", "PBS_NUM_NODES": "2", "PBS_NP": "4"}
    found = read_pbs(env, nodefile("n1 n1 n2 n2"), "", gpufile="n1-gpu1\nn1-gpu0\nn2-gpu3\n")
    assert slots(found) == [("n1", 2), ("n2", 1)]
    assert tasks(found) == [("n1", 2), ("n2", 2)]
    assert found.notes == (
        "GPUs per host from PBS_GPUFILE",
        "ranks on hosts without GPUs from the lines of PBS_NODEFILE (ppn)",
    )


def test_without_any_word_about_gpus_or_ranks_the_host_is_asked_and_nothing_is_said():
    found = read_pbs(JOB, nodefile("n1 n2"), qstat(Resource_List_select="2:ncpus=64"))
    assert slots(found) == tasks(found) == [("n1", None), ("n2", None)]
    assert found.notes == ()


def test_the_job_is_found_among_several_and_under_a_longer_server_name():
    text = "Job Id: 11.pbssrv\n    exec_vnode = (n1:ngpus=9)\n\n" + QSTAT
    found = read_pbs({**JOB, "PBS_JOBID": "12.pbssrv.example.org"}, nodefile("n1 n2"), text)
    assert slots(found) == [("n1", 4), ("n2", 2)]
    unknown = read_pbs({**JOB, "PBS_JOBID": "13.pbssrv"}, nodefile("n1 n2"), text)
    assert slots(unknown) == [("n1", None), ("n2", None)]
    assert "(qstat does not know this job)" in unknown.notes[0]


def test_a_job_array_is_found_by_its_index():
    text = QSTAT.replace("12.pbssrv", "23[1].pbssrv")
    found = read_pbs({**JOB, "PBS_JOBID": "23[1].pbssrv"}, nodefile("n1 n2"), text)
    assert found.id == "23[1].pbssrv"
    assert slots(found) == [("n1", 4), ("n2", 2)]


def test_a_job_is_recognized_by_its_two_safe_signs():
    assert in_pbs_job(JOB)
    assert in_pbs_job({**JOB, "PBS_ENVIRONMENT": "PBS_INTERACTIVE"})
    assert not in_pbs_job({"PBS_O_HOST": "login1", "PBS_JOBID": "12"})
    assert not in_pbs_job({"PBS_ENVIRONMENT": "PBS_BATCH"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "PBS_NODEFILE lists no hosts"),
        ("\n \n", "PBS_NODEFILE lists no hosts"),
        ("n1\n-oProxyCommand=x\n", "line 2 of PBS_NODEFILE is not a host name: '-oProxyCommand=x'"),
        ("n1 slots=4\n", "line 1 of PBS_NODEFILE is not a host name: 'n1 slots=4'"),
        ("n1\x1b[2J\n", "line 1 of PBS_NODEFILE is not a host name: 'n1\\x1b[2J'"),
    ],
)
def test_a_broken_nodefile_is_refused_with_the_line(text: str, message: str):
    with pytest.raises(UsageError) as caught:
        read_pbs(JOB, text, "")
    assert caught.value.message == message
    assert caught.value.hint


def test_an_empty_nodefile_is_explained_by_mpiprocs():
    with pytest.raises(UsageError) as caught:
        read_pbs(JOB, "", qstat(Resource_List_select="1:ncpus=1:mpiprocs=0"))
    assert "mpiprocs=1 or more" in (caught.value.hint or "")


def test_outside_a_job_there_is_no_allocation():
    with pytest.raises(UsageError, match="not inside a PBS job"):
        read_pbs({"PBS_ENVIRONMENT": "PBS_BATCH"}, "n1\n", "")


def test_a_nodefile_that_is_missing_or_unreadable_is_reported_with_a_hint(tmp_path: Path):
    (tmp_path / "good").write_text("n1\n")
    assert nodefile_text({"PBS_NODEFILE": str(tmp_path / "good")}) == "n1\n"
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, words in (
        ("", "PBS_NODEFILE is not set"),
        (str(tmp_path / "none"), "none: No such file or directory"),
        (str(tmp_path), ": Is a directory"),
        (str(tmp_path / "binary"), "binary is not a text file"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            nodefile_text({"PBS_NODEFILE": path})
        assert caught.value.hint


NAMES = st.lists(st.sampled_from(["n1", "n2", "n3", "gpu-4", "n1b"]), min_size=1, max_size=40)
PARTS = st.sampled_from(["", "[0]", "[1]"])


@given(NAMES)
def test_hosts_are_unique_and_keep_the_order_in_which_they_appear_first(names: list[str]):
    text = nodefile(" ".join(names))
    found = read_pbs({**JOB, "PBS_NUM_PPN": "1"}, text, "")
    assert [host.name for host in found.hosts] == sorted(set(names), key=names.index)
    assert dict(tasks(found)) == Counter(names)
    assert nodefile_lines(text) == {name: names.index(name) for name in names}


@given(st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), PARTS, st.integers(0, 16)), min_size=1), st.booleans())
def test_gpus_of_all_chunks_of_a_host_add_up(chunks: list[tuple[str, str, int]], domain: bool):
    suffix = ".example.org" if domain else ""
    text = qstat(exec_vnode="+".join(f"({name}{part}:ncpus=8:ngpus={gpus}:mem=4gb)" for name, part, gpus in chunks))
    expected: Counter[str] = Counter()
    for name, _, gpus in chunks:
        expected[name + suffix] += gpus
    found = read_pbs(JOB, nodefile(" ".join(expected)), text)
    assert dict(slots(found)) == {name: gpus or None for name, gpus in expected.items()}


@given(st.text(), st.text(alphabet="()+:=n12[]/*\t\n gpus.ec_vod0"), st.text(), st.text())
def test_no_text_does_more_than_be_refused(names: str, vnodes: str, total: str, gpufile: str):
    text = f"Job Id: 12.pbssrv\n    exec_vnode = {vnodes}\n    Resource_List.ngpus = {total}\n"
    found = read_pbs({**JOB, "PBS_NGPUS": total, "PBS_NCPUS": total}, "n1\nn2\n", text, gpufile=gpufile)
    assert [host.name for host in found.hosts] == ["n1", "n2"]
    with suppress(UsageError):
        read_pbs(JOB, names, text, gpufile=gpufile)


def test_one_page_says_what_the_stand_in_copies_and_others_point_to_it():
    docs = Path(__file__).parents[2] / "docs"
    saying = [page for page in docs.rglob("*.md") if re.search(r"stand-in[^\n]{0,60}copies", page.read_text())]
    assert [page.relative_to(docs).as_posix() for page in saying] == ["engines/pbs.md"]
    assert "pbs.md#how-it-was-tested" in (docs / "engines" / "by-hand.md").read_text()
