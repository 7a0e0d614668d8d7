"""Hostfiles of MPI, DeepSpeed and PBS."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.errors import UsageError
from muster.hosts import Host, parse_hosts, read_hostfile


@pytest.fixture
def hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("hosts.txt")


def read(hostfile: Path, text: str) -> tuple[Host, ...]:
    hostfile.write_text(text, encoding="utf-8")
    return read_hostfile(hostfile)


def test_the_open_mpi_form_is_read(hostfile: Path):
    text = """\
# our cluster
gpu01 slots=4 max_slots=8   # the new one
gpu02 slots = 2 user=alice

gpu03 max-slots=8
"""
    assert read(hostfile, text) == (
        Host(name="gpu01", slots=4),
        Host(name="gpu02", user="alice", slots=2),
        Host(name="gpu03"),
    )


def test_the_deepspeed_form_is_read(hostfile: Path):
    assert read(hostfile, "worker-1 slots=4\nworker-2 slots=2\n") == parse_hosts("worker-1:4,worker-2:2")


def test_the_mpich_form_is_read(hostfile: Path):
    assert read(hostfile, "gpu01:4\ngpu02:2\n") == parse_hosts("gpu01:4,gpu02:2")


def test_the_pbs_form_counts_the_lines_of_a_host(hostfile: Path):
    assert read(hostfile, "n1\nn1\nn2\nn2\nn1\n") == parse_hosts("n1:3,n2:2")


def test_lines_in_the_grammar_of_the_command_line_are_read(hostfile: Path):
    text = "gpu[01-04]:8\nbox:0,2,5, big:2\nssh://alice@gate:2222\nold[1-2] slots=2 port=22\n"
    expected = "gpu[01-04]:8,box:0,2,5,big:2,ssh://alice@gate:2222,ssh://old[1-2]:22:2"
    assert read(hostfile, text) == parse_hosts(expected)


def test_tabs_windows_line_ends_and_a_byte_order_mark_do_not_matter(hostfile: Path):
    hostfile.write_bytes(b"\xef\xbb\xbfgpu01\tslots=4\r\n  gpu02 slots=2  \r\n")
    assert read_hostfile(str(hostfile)) == parse_hosts("gpu01:4,gpu02:2")


@pytest.mark.parametrize(
    ("line", "char", "sentence"),
    [
        ("gpu[04-01]:8", 7, "a range must ascend"),
        ("gpu01 4", 6, "commas"),
        ("gpu01 slots=", 12, "missing number of `slots`"),
        ("gpu01 slots=x", 12, "missing number of `slots`"),
        ("gpu01 slots=4x", 13, "`slots` must be a number"),
        ("gpu01 slots=0", 12, "slots of gpu01 must be at least 1"),
        ("gpu01 slots=4 slots=4", 14, "`slots` is set twice"),
        ("gpu01:4 slots=4", 14, "slots of gpu01 is already set to 4"),
        ("a@gpu01 user=b", 13, "user of gpu01 is already set to a"),
        ("gpu01 user=-l", 11, "`-` is not allowed in a user name"),
        ("gpu01 user=", 11, "missing user name"),
        ("gpu01 port=0", 11, "got 0"),
        ("gpu01 slots=4 max_slots=2", 24, "max_slots must be at least the 4 slots"),
        ("gpu01 max_slots=2 slots=4", 16, "max_slots must be at least the 4 slots"),
        ("gpu01 ifname=ib0", 6, "unknown setting `ifname`"),
        ("gpu01 slots=4 extra", 14, "settings have the form NAME=VALUE"),
        ("slots=4", 5, "`=`"),
        ("-oProxyCommand=x slots=4", 0, "ssh reads as an option"),
    ],
)
def test_an_error_names_file_and_line_and_points_at_the_character(hostfile: Path, line: str, char: int, sentence: str):
    with pytest.raises(UsageError) as caught:
        read(hostfile, f"# first\ngood slots=1\n{line}\n")
    said, shown, caret = caught.value.message.split("\n")
    assert said.startswith("hosts.txt:3: ")
    assert sentence in said
    assert shown == f"  {line}"
    assert caret.index("^") - 2 == char
    assert caught.value.hint


def test_a_conflict_between_lines_is_shown_at_the_later_line(hostfile: Path):
    with pytest.raises(UsageError, match=r"^hosts\.txt:2: gpu01 is listed once with a count and once with a list"):
        read(hostfile, "gpu01:8\ngpu01:0,1\n")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n   # here\n"])
def test_a_file_without_a_host_is_refused(hostfile: Path, text: str):
    with pytest.raises(UsageError, match=r"^hosts\.txt: the hostfile lists no hosts$") as caught:
        read(hostfile, text)
    assert "slots=8" in (caught.value.hint or "")


def test_a_missing_file_a_folder_and_a_binary_are_refused_in_one_sentence(hostfile: Path):
    with pytest.raises(UsageError, match=r"^hosts\.txt: hostfile not found$"):
        read_hostfile(hostfile)
    with pytest.raises(UsageError, match=r"^/: could not read the hostfile \(Is a directory\)$"):
        read_hostfile("/")
    # Root may read every file except one that the kernel itself refuses.
    with pytest.raises(UsageError, match=r"^/proc/self/mem: could not read the hostfile \(Input/output error\)$"):
        read_hostfile("/proc/self/mem")
    hostfile.write_bytes(b"\x7fELF\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        read_hostfile(hostfile)


PIECES = [
    "box",
    "gpu[1-2]",
    ":8",
    ":0,1",
    " ",
    "\t",
    "slots=4",
    "max_slots=1",
    "user=a",
    "port=22",
    "=",
    "#",
    "\n",
    ",",
]


@given(st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused(hostfile: Path, text: str):
    hostfile.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        hosts = read_hostfile(hostfile)
    except UsageError as error:
        told = str(error)
    else:
        told = "hosts.txt" if hosts else "nothing"
    assert told.startswith("hosts.txt")
