"""The host list of `-H` and node lists: what is accepted, what it means, and where an error points."""

from __future__ import annotations

import time
from random import Random
from string import ascii_lowercase, digits

import pytest
from ClusterShell.NodeSet import NodeSet, NodeSetException
from hypothesis import example, given
from hypothesis import strategies as st

from muster.errors import UsageError
from muster.hosts import Host, expand, parse_hosts
from muster.hosts.name_ranges import MAX_HOSTS


def names(text: str) -> list[str]:
    return [host.name for host in parse_hosts(text)]


def refusal(text: str) -> tuple[str, str, int]:
    """The sentence, the hint and the place the caret points at."""
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    message, hint = caught.value.message, caught.value.hint
    assert hint
    sentence, shown, caret = message.split("\n")
    assert shown == f"  {text}"
    return sentence, hint, caret.index("^") - 2


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("box", Host(name="box")),
        ("alice@box", Host(name="box", user="alice")),
        ("box:8", Host(name="box", slots=8)),
        ("box:0,2,5", Host(name="box", slots=3, gpus=(0, 2, 5))),
        ("box:5,0", Host(name="box", slots=2, gpus=(5, 0))),
        ("box:[3]", Host(name="box", slots=1, gpus=(3,))),
        ("box:[0-2,6]", Host(name="box", slots=4, gpus=(0, 1, 2, 6))),
        ("10.0.0.7:2", Host(name="10.0.0.7", slots=2)),
        ("[fe80::1%eth0]:8", Host(name="fe80::1%eth0", slots=8)),
        ("[::1]", Host(name="::1")),
        ("ssh://box", Host(name="box")),
        ("ssh://alice@box:2222", Host(name="box", user="alice", port=2222)),
        ("ssh://[::1]:2222:0,1", Host(name="::1", port=2222, slots=2, gpus=(0, 1))),
        ("_gate-1.example.org", Host(name="_gate-1.example.org")),
    ],
)
def test_one_host_in_each_form(text: str, host: Host):
    assert parse_hosts(text) == (host,)


def test_several_hosts_keep_their_order_and_their_settings():
    assert parse_hosts("gpu[01-02]:8, box:2 ,alice@big:0,2,5,last") == (
        Host(name="gpu01", slots=8),
        Host(name="gpu02", slots=8),
        Host(name="box", slots=2),
        Host(name="big", user="alice", slots=3, gpus=(0, 2, 5)),
        Host(name="last"),
    )


def test_a_gpu_list_ends_at_the_first_name_even_when_it_begins_with_a_digit():
    assert [str(host) for host in parse_hosts("box:0,1,3com,10.0.0.1:2,4")] == [
        "box:0,1",
        "3com",
        "10.0.0.1:2,4",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("gpu[99-101]", ["gpu99", "gpu100", "gpu101"]),
        ("gpu[098-101]", ["gpu098", "gpu099", "gpu100", "gpu101"]),
        ("gpu[1,3,5-6]", ["gpu1", "gpu3", "gpu5", "gpu6"]),
        ("gpu[0-8/4]", ["gpu0", "gpu4", "gpu8"]),
        ("gpu[2,1]", ["gpu2", "gpu1"]),
        ("r[1-2]n[1-2].hpc", ["r1n1.hpc", "r1n2.hpc", "r2n1.hpc", "r2n2.hpc"]),
        ("10.0.[0-1].[254-255]", ["10.0.0.254", "10.0.0.255", "10.0.1.254", "10.0.1.255"]),
        ("[1-2]u", ["1u", "2u"]),
    ],
)
def test_a_range_expands_to_its_names(text: str, expected: list[str]):
    assert names(text) == expected
    assert expand(text) == expected


def test_a_host_named_again_is_the_same_host_with_more_slots():
    assert parse_hosts("a:2,b:1,a:3") == (Host(name="a", slots=5), Host(name="b", slots=1))
    assert parse_hosts("a:0,1,b,a:[3]")[0] == Host(name="a", slots=3, gpus=(0, 1, 3))
    assert parse_hosts("a,b,a")[0] == Host(name="a", slots=2)


def test_another_user_or_port_makes_another_host():
    assert len(parse_hosts("a:1,bob@a:1,ssh://a:2222:1")) == 3


@pytest.mark.parametrize(
    ("text", "at", "sentence", "hint"),
    [
        ("gpu[04-01]:8", 7, "must ascend", "gpu[01-04]"),
        ("gpu[1-04]", 6, "zeros", "gpu[01-04]"),
        ("gpu[1-4", 3, "not closed", "gpu[01-04]"),
        ("gpu[", 3, "not closed", "gpu[01-04]"),
        ("gpu[]", 4, "missing number", "gpu[01-04]"),
        ("gpu[1-]", 6, "end of the range", "gpu[01-04]"),
        ("gpu[1-4/0]", 8, "step must be at least 1", "gpu[0-8/2]"),
        ("gpu[a-b]", 4, "missing number", "gpu[01-04]"),
        ("gpu[1;2]", 5, "`;`", "gpu[1,3,5-7]"),
        ("gpu]", 3, "`]`", "gpu[01-04]"),
        ("a,,b", 2, "missing", "commas"),
        ("a,", 2, "missing", "commas"),
        (",a", 0, "missing", "commas"),
        ("a b", 2, "commas", "commas"),
        ("a@b c:8", 4, "commas", "commas"),
        ("-oProxyCommand=x", 0, "ssh reads as an option", "box"),
        ("alice@-x", 6, "ssh reads as an option", "box"),
        ("-l@box", 0, "user name", "alice@box"),
        ("al;ce@box", 2, "`;`", "alice@box"),
        ("@box", 0, "missing user name", "alice@box"),
        ("alice@", 6, "missing host name", "box"),
        ("alice@corp@box", 10, "`@`", "box"),
        ("b\u00fcro", 1, "`\u00fc`", "box"),
        ("box$(id)", 3, "`$`", "box"),
        ("box:", 4, "missing number of slots", "box:8"),
        ("box:x", 4, "missing number of slots", "box:8"),
        ("box:0", 4, "slots of box must be at least 1", "`box:[0]`"),
        ("box:2222", 4, "at most 1024", "ssh://box:2222"),
        ("box/2222", 3, "`/`", "ssh://box:2222"),
        ("box:0-3", 5, "brackets", "`box:[0-3]`"),
        ("box:0,2,2", 8, "listed twice", "box:0,2,5"),
        ("box:[2,2]", 4, "listed twice", "box:0,2,5"),
        ("box:0,1,box:1,2", 8, "GPU 1 of box is listed twice", "box:0,2,5"),
        ("box:2,box:[1]", 6, "once with a count and once with a list of GPUs", "box:8"),
        ("box,box:2", 4, "once with no count and once with a count", "box:8"),
        ("box:1000,box:1000", 9, "at most 1024", "box:8"),
        ("box:1,5000", 6, "got 5000", "box:0,2,5"),
        ("fe80::1", 5, "`:`", "`[fe80::1]:8`"),
        ("[fe80::g]", 1, "not an IPv6 address", "[fe80::1]"),
        ("[fe80::1 -oX]", 1, "not an IPv6 address", "[fe80::1]"),
        ("12", 0, "neither a name nor an address", "10.0.0.7"),
        ("10.0.0.[254-256]", 0, "`10.0.0.256`", "10.0.0.7"),
        ("10.0.0.01", 0, "neither a name nor an address", "10.0.0.7"),
        ("ssh://box:0", 10, "must be from 1 to 65535, got 0", "ssh://box:2222"),
        ("ssh://box:99999", 10, "got 99999", "ssh://box:2222"),
        ("ssh://box:22/", 12, "`/`", "ssh://box:2222"),
        ("ssh://", 6, "missing host name", "box"),
        ("x[1-100001]", 2, "more than 100,000 hosts", "gpu[01-04]"),
        ("x[1-999][1-999]", 8, "more than 100,000 hosts", "gpu[01-04]"),
        ("a[1-60000],b[1-60000]", 12, "more than 100,000 hosts", "gpu[01-04]"),
        ("x[1-9999999999999999999]", 4, "at most 18 digits", "gpu[01-04]"),
    ],
)
def test_an_error_points_at_the_bad_character_and_shows_the_right_form(text: str, at: int, sentence: str, hint: str):
    said, hinted, place = refusal(text)
    assert said.startswith("-H: ")
    assert sentence in said
    assert hint in hinted
    assert place == at


@pytest.mark.parametrize("text", ["", "   ", "\t", "\n"])
def test_zero_hosts_are_refused(text: str):
    with pytest.raises(UsageError, match="no host given") as caught:
        parse_hosts(text)
    assert caught.value.hint


def test_the_source_of_a_list_is_named_in_the_error():
    with pytest.raises(UsageError, match=r"^SLURM_JOB_NODELIST: "):
        expand("gpu[", source="SLURM_JOB_NODELIST")


def test_the_caret_still_points_at_the_character_in_a_long_list():
    good = ",".join(f"host{number}" for number in range(100))
    with pytest.raises(UsageError) as caught:
        parse_hosts(f"{good},ba!d,{good}")
    _, shown, caret = caught.value.message.split("\n")
    assert shown[caret.index("^")] == "!"
    assert len(shown) < 100


def test_the_destination_is_what_ssh_takes():
    assert [host.destination for host in parse_hosts("box:8,alice@big,ssh://bob@[::1]:22")] == [
        "box",
        "alice@big",
        "bob@::1",
    ]


def test_slots_and_gpus_cannot_disagree():
    with pytest.raises(ValueError, match="2 slots for 1 GPUs"):
        Host(name="box", slots=2, gpus=(0,))


def test_the_tasks_of_a_scheduler_are_not_written_since_a_host_list_cannot_say_them():
    assert str(Host(name="box", tasks=4)) == "box"
    assert str(Host(name="box", slots=2, tasks=4)) == "box:2"


NAMES = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9._-]{0,9}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)
GPUS = st.lists(st.integers(0, 1023), min_size=1, max_size=4, unique=True).map(tuple)
HOSTS = st.builds(
    lambda name, user, port, slots, gpus: Host(
        name=name, user=user, port=port, slots=len(gpus) if gpus else slots, gpus=gpus
    ),
    NAMES,
    st.none() | st.from_regex(r"[a-z_][a-z0-9._+-]{0,9}", fullmatch=True),
    st.none() | st.integers(1, 65535),
    st.none() | st.integers(1, 1024),
    st.none() | GPUS,
)


@given(st.lists(HOSTS, min_size=1, max_size=6, unique_by=lambda host: (host.name, host.user, host.port)))
def test_written_hosts_read_back_as_themselves(hosts: list[Host]):
    assert parse_hosts(",".join(map(str, hosts))) == tuple(hosts)


GRAMMAR = st.lists(
    st.sampled_from(
        [
            *"abz09@:,[]-/. %_+\x1b\n",
            "ssh://",
            "gpu",
            "[01-04]",
            ":8",
            ",0,",
            "[fe80::1]",
            "10.0.0.",
            "99999",
            "[1-999]",
        ]
    ),
    max_size=30,
).map("".join)


@given(st.text(max_size=60) | GRAMMAR)
@example("[:" * 5_000)
@example("[1]" * 5_000)
@example("[1-99999]" * 5_000)
@example("a:" + "0," * 5_000)
@example("box" + " " * 50_000 + "x")
@example("9" * 10_000)
@example("al\x1b[31mce@box")
@example("[fe80::\x1b]")
@example("gpu[1\x1b]")
def test_any_text_is_read_or_refused_and_quickly(text: str):
    began = time.process_time()
    try:
        hosts = parse_hosts(text)
    except UsageError as error:
        hosts, message = None, error.message
    else:
        message = ""
    assert time.process_time() - began < 5
    assert all(line.isprintable() for line in message.split("\n"))
    if hosts is not None:
        assert hosts
        assert not any(host.destination.startswith("-") for host in hosts)
        assert parse_hosts(",".join(map(str, hosts))) == hosts


def test_the_largest_list_takes_about_a_second():
    began = time.process_time()
    assert len(parse_hosts(f"gpu[1-{MAX_HOSTS}]:8")) == MAX_HOSTS
    assert time.process_time() - began < 10


def node_list(random: Random) -> str:
    """Up to five nodes of up to four parts, some of them in brackets."""

    def name() -> str:
        inner = random.choices(f"{ascii_lowercase}{digits}-", k=random.randint(0, 3))
        return "".join([random.choice(ascii_lowercase), *inner, random.choice(ascii_lowercase)])

    def number() -> str:
        low = random.randint(0, 120)
        return random.choice([f"{low}", f"{low:03d}", f"{low:03d}-{low + 5:03d}", f"{low:03d}-{low + 9:03d}/3"])

    def brackets() -> str:
        return f"[{','.join(number() for _ in range(random.randint(1, 4)))}]"

    def node() -> str:
        return "".join(random.choice((name, brackets))() for _ in range(random.randint(1, 4)))

    return ",".join(node() for _ in range(random.randint(1, 5)))


def test_expansion_agrees_with_clustershell():
    # ClusterShell sorts and folds; we keep order and repeats, as `scontrol show hostnames` does. What only
    # one of them accepts is left out: `[01-100]` is ours, all-digit names, groups and operators are theirs.
    random = Random()  # hypothesis takes twenty times as long as both of them
    compared = 0
    for text in ["gpu[01-04,07],login1", *(node_list(random) for _ in range(1000))]:
        try:
            theirs = list(NodeSet(text))
        except NodeSetException:
            continue
        if len(theirs) > 300 or any(name.isdigit() for name in theirs):
            continue
        compared += 1
        ours = expand(text)
        assert set(ours) == set(theirs), text
        assert list(NodeSet.fromlist(ours)) == theirs, text
    assert compared > 200
