"""Random host lists, hostfiles, node lists and configuration files: only a MusterError may come out of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random

import pytest
from parsers_once import parsers_once

from muster.api.env_file import read_env_file
from muster.api.run_options import parse_options, spec_of
from muster.cli import run
from muster.config.config_file import parse_file
from muster.config.configuration import Configuration
from muster.engines.pbs.environment import read_pbs
from muster.engines.slurm.environment import read_slurm
from muster.errors import MusterError
from muster.hosts import parse_hosts, read_hostfile

__all__ = ["parsers_once"]  # a fixture
pytestmark = pytest.mark.timeout(120)

PIECES = [
    "gpu",
    "n1",
    "[",
    "]",
    "-",
    ",",
    ":",
    "8",
    "0",
    "01",
    "99999999",
    "@",
    "user@",
    "ssh://",
    "::1",
    "(x2)",
    "(x",
    "slots=",
    "=",
    "#",
]
PIECES += [
    " ",
    "\t",
    "\n",
    "\r",
    "\0",
    "\x1b[31m",
    "é",
    "²",
    "\udcff",
    "max_slots=2",
    "port=22",
    "'",
    '"',
    "\\",
    "/",
    "..",
    "$(id)",
    "9" * 5000,
]
TOML = [
    "[run]\n",
    "[hosts]\n",
    "[host.a]\n",
    "[env]\n",
    "[[run]]\n",
    "nproc",
    "hosts",
    "python",
    "grace",
    "A",
    " = ",
    "1",
    "-1",
    "nan",
    "'x'",
]
TOML += [
    '"@a"',
    "[1, 'a']",
    "{a = 1}",
    "true",
    "2020-01-01",
    "\n",
    "#",
    "'''",
    "\\u0000",
    ".",
    "9" * 5000,
    "[",
    "]",
    "env",
    "sync",
    "engine",
]


@dataclass
class Inputs:
    """Random inputs, the same in every run; hypothesis takes a hundred times as long to make them."""

    random: Random = field(default_factory=lambda: Random(18))

    def text(self, pieces: Sequence[str], most: int, longest: int) -> str:
        """Up to this many pieces, among them texts of random characters."""
        chosen = self.random.choices([*pieces, None], [1] * len(pieces) + [len(pieces)], k=self.random.randint(0, most))
        return "".join(self.characters(longest) if one is None else one for one in chosen)

    def characters(self, longest: int) -> str:
        """Half of them of ASCII, the others of all of Unicode, surrogates included."""
        ends = (self.random.choice((0x7F, sys.maxunicode)) for _ in range(self.random.randint(0, longest)))
        return "".join(chr(self.random.randint(0, end)) for end in ends)

    def like_hosts(self) -> str:
        return self.text(PIECES, 12, 4)

    def like_toml(self) -> str:
        return self.text(TOML, 14, 3)

    def encoded(self, text: str, most: int) -> bytes:
        """The text in UTF-8, or as often bytes that may be no text."""
        if self.random.random() < 0.5:
            return text.encode("utf-8", "surrogatepass")
        return self.random.randbytes(self.random.randint(0, most))


def escaped(count: int, make: Callable[[Inputs], tuple[object, ...]], read: Callable[..., object]) -> list[str]:
    """Give this many random inputs to a function, and return those for which anything but a MusterError came out."""
    inputs = Inputs()
    found: list[str] = []
    for _ in range(count):
        given = make(inputs)
        try:
            read(*given)
        except MusterError:
            continue
        except Exception as error:
            found.append(f"{given!a}: {type(error).__name__}: {error!a}")
    return found


def test_a_list_of_hosts_is_read_or_refused():
    def read(text: str) -> None:
        hosts = parse_hosts(text, groups={"a": ("b:2", "x"), "loop": ("@loop", "x")})
        assert all(host.name.isprintable() and not host.name.startswith("-") for host in hosts)

    assert escaped(600, lambda inputs: (inputs.like_hosts(),), read) == []


def test_a_hostfile_is_read_or_refused(tmp_path: Path):
    def read(data: bytes) -> None:
        path = tmp_path / "fuzzed-hostfile"
        path.write_bytes(data)
        assert read_hostfile(path)

    assert escaped(600, lambda inputs: (inputs.encoded(inputs.like_hosts(), 60),), read) == []


def test_a_node_list_of_slurm_is_read_or_refused():
    names = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_NUM_NODES", "SLURM_STEP_ID", "SLURM_HET_SIZE", "SLURM_GPUS_ON_NODE"]

    def read(nodes: str, other: str, name: str) -> None:
        read_slurm({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": "1", name: other})

    made = escaped(400, lambda one: (one.like_hosts(), one.like_hosts(), one.random.choice(names)), read)
    assert made == []


def test_a_node_file_of_pbs_is_read_or_refused():
    names = ["PBS_NUM_PPN", "PBS_NGPUS", "PBS_NCPUS", "PBS_NNODES", "PBS_JOBID"]

    def read(nodes: str, qstat: str, other: str, name: str) -> None:
        shown = (
            f"Job Id: 1.x\n    exec_vnode = ({qstat})\n    Resource_List.select = {qstat}\n    exec_host = {qstat}\n"
        )
        read_pbs({"PBS_JOBID": "1.x", "PBS_ENVIRONMENT": "PBS_BATCH", name: other}, nodes, shown, gpufile=other)

    def make(one: Inputs) -> tuple[object, ...]:
        return one.like_hosts(), one.like_hosts(), one.like_hosts(), one.random.choice(names)

    assert escaped(400, make, read) == []


def test_a_configuration_is_read_or_refused():
    def read(data: bytes) -> None:
        config = Configuration(files=(parse_file("/x/muster.toml", data, "/x"),))
        _ = (config.groups, config.pythons, config.env, list(config.defaults("run")))

    assert escaped(400, lambda inputs: (inputs.encoded(inputs.like_toml(), 40),), read) == []


def test_a_default_of_a_configuration_is_taken_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = ["nproc", "hosts", "grace", "sync", "engine", "env-file", "only-rank", "fetch", "name"]

    def read(name: str, value: str) -> None:
        (tmp_path / "muster.toml").write_text(f"{name} = {value}\n", errors="replace")
        spec_of(parse_options(run.parser(), ["train.py"], "run"), ["train.py"])

    every = iter(product(names, [*TOML, "'a b'", "''", "[]"]))
    assert escaped(len(names) * (len(TOML) + 3), lambda _: next(every), read) == []


def test_a_file_of_variables_is_read_or_refused(tmp_path: Path):
    path = tmp_path / "fuzzed-variables"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        found = read_env_file(str(path), {})
        assert all(name.isidentifier() and "\0" not in value for name, value in found.values.items())

    assert escaped(800, lambda inputs: (inputs.encoded(inputs.like_hosts(), 60),), read) == []
