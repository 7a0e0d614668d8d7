"""Random host lists, hostfiles, node lists and configuration files: only a MusterError may come out of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from muster.api.env_file import read_env_file
from muster.api.run_options import parse_options, run_parser, spec_of
from muster.config.config_file import parse_file
from muster.config.configuration import Configuration
from muster.engines.pbs.environment import read_pbs
from muster.engines.slurm.environment import read_slurm
from muster.errors import MusterError
from muster.hosts import parse_hosts, read_hostfile

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
LIKE_HOSTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=12).map("".join)

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
LIKE_TOML = st.lists(st.one_of(st.sampled_from(TOML), st.text(max_size=3)), max_size=14).map("".join)


@seed(18)
@settings(max_examples=150, database=None)
@given(LIKE_HOSTS)
def test_a_list_of_hosts_is_read_or_refused(text: str):
    try:
        hosts = parse_hosts(text, groups={"a": ("b:2", "x"), "loop": ("@loop", "x")})
    except MusterError:
        return
    assert all(host.name.isprintable() and not host.name.startswith("-") for host in hosts)


@seed(18)
@settings(max_examples=150, database=None)
@given(st.one_of(LIKE_HOSTS.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=60)))
def test_a_hostfile_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    path = tmp_path_factory.getbasetemp() / "fuzzed-hostfile"
    path.write_bytes(data)
    try:
        assert read_hostfile(path)
    except MusterError:
        return


@seed(18)
@settings(max_examples=100, database=None)
@given(
    LIKE_HOSTS,
    LIKE_HOSTS,
    st.sampled_from(
        ["SLURM_TASKS_PER_NODE", "SLURM_JOB_NUM_NODES", "SLURM_STEP_ID", "SLURM_HET_SIZE", "SLURM_GPUS_ON_NODE"]
    ),
)
def test_a_node_list_of_slurm_is_read_or_refused(nodes: str, other: str, name: str):
    env = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": "1"}
    try:
        read_slurm({**env, name: other})
    except MusterError:
        return


@seed(18)
@settings(max_examples=100, database=None)
@given(
    LIKE_HOSTS,
    LIKE_HOSTS,
    LIKE_HOSTS,
    st.sampled_from(["PBS_NUM_PPN", "PBS_NGPUS", "PBS_NCPUS", "PBS_NNODES", "PBS_JOBID"]),
)
def test_a_node_file_of_pbs_is_read_or_refused(nodes: str, qstat: str, other: str, name: str):
    shown = f"Job Id: 1.x\n    exec_vnode = ({qstat})\n    Resource_List.select = {qstat}\n    exec_host = {qstat}\n"
    try:
        read_pbs({"PBS_JOBID": "1.x", "PBS_ENVIRONMENT": "PBS_BATCH", name: other}, nodes, shown, gpufile=other)
    except MusterError:
        return


@seed(18)
@settings(max_examples=100, database=None)
@given(st.one_of(LIKE_TOML.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=40)))
def test_a_configuration_is_read_or_refused(data: bytes):
    try:
        config = Configuration(files=(parse_file("/x/muster.toml", data, "/x"),))
        _ = (config.groups, config.pythons, config.env, list(config.defaults("run")))
    except MusterError:
        return


@seed(18)
@settings(max_examples=150, database=None)
@given(
    st.sampled_from(["nproc", "hosts", "grace", "sync", "engine", "env-file", "only-rank", "fetch", "name"]),
    st.sampled_from([*TOML, "'a b'", "''", "[]"]),
)
def test_a_default_of_a_configuration_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: str
):
    folder = tmp_path_factory.getbasetemp() / "fuzzed-configuration"
    folder.mkdir(exist_ok=True)
    (folder / "muster.toml").write_text(f"{name} = {value}\n", errors="replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        try:
            spec_of(parse_options(run_parser(), ["train.py"], "run"), ["train.py"])
        except MusterError:
            return


@seed(18)
@settings(max_examples=200, database=None)
@given(st.one_of(LIKE_HOSTS.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=60)))
def test_a_file_of_variables_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    path = Path(tmp_path_factory.getbasetemp()) / "fuzzed-variables"
    path.write_bytes(data)
    try:
        read = read_env_file(str(path), {})
    except MusterError:
        return
    assert all(name.isidentifier() and "\0" not in value for name, value in read.values.items())
