"""Engines of other packages: those of docs/engines/adding.md, installed by entry points, run a job of two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import in_process
import pytest
from tools.console import CodeFile, read_page

from muster.engines import table

PAGE = Path(__file__).parents[2] / "docs" / "engines" / "adding.md"
MUSTER = str(Path(sys.executable).with_name("muster"))

SCRIPT = """
import os
env = os.environ
print("rank", env["RANK"], "of", env["WORLD_SIZE"], "on", env["PLACE"], env.get("CROWD_RANK"))
"""

# As much of `docker exec -i NAME COMMAND` as the engine uses; it knows two containers.
DOCKER = """#!/bin/sh
[ "$1 $2" = "exec -i" ] || exit 64
case $3 in left|right) ;; *) echo "Error response from daemon: No such container: $3" >&2; exit 1;; esac
PLACE=$3; export PLACE; shift 3
exec "$@"
"""

# `crowdrun HOST... -- COMMAND`; none of its tasks gets a stdin.
CROWDRUN = """#!/bin/sh
hosts=
while [ "$1" != -- ]; do hosts="$hosts $1"; shift; done
shift
for host in $hosts; do CROWD_HOST=$host PLACE=$host "$@" </dev/null & done
wait
"""

Refused = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks run on Linux")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Both engines as installed packages, the programs they start, and a script."""
    files = {one.name: one.text for one in read_page(PAGE.read_text()) if isinstance(one, CodeFile)}
    site = tmp_path / "site"
    info = site / "muster_examples-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: muster-examples\nVersion: 1.0\n")
    group, *points = files["pyproject.toml"].splitlines()
    assert group == '[project.entry-points."muster.engines"]'
    points.append("crowd = muster_crowd:Crowd")
    (info / "entry_points.txt").write_text("\n".join(["[muster.engines]", *points]).replace('"', "") + "\n")
    for name in ("muster_docker.py", "muster_crowd.py"):
        (site / name).write_text(files[name])
    (tmp_path / "bin").mkdir()
    for name, text in (("docker", DOCKER), ("crowdrun", CROWDRUN)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def muster(folder: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PBS_"))}
    ours = {"PYTHONPATH": str(folder / "site"), "PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run(
        [MUSTER, "run", "--no-zygote", "--no-check", "--python", sys.executable, *argv],
        cwd=folder,
        env={**bare, **ours, **env},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refused]:
    """Runs a command that starts nothing: in this process, which has imported Muster already."""
    monkeypatch.syspath_prepend(str(folder / "site"))
    options = ("--no-zygote", "--no-check", "--python", sys.executable)
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder)}
    forget_engines()
    yield lambda *argv: in_process.muster("run", *options, *argv, cwd=folder, env=env)
    forget_engines()


def forget_engines() -> None:
    table.load.cache_clear()
    table._added.cache_clear()
    for name in ("muster_docker", "muster_crowd"):
        sys.modules.pop(name, None)


def test_an_engine_over_pipes_runs_a_job(folder: Path):
    done = muster(folder, "--engine", "docker-exec", "-H", "left:1,right:1", "train.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[left 0] rank 0 of 2 on left None",
        "[right 1] rank 1 of 2 on right None",
    ]


def test_it_explains_what_its_program_says(folder: Path):
    done = muster(folder, "--engine", "docker-exec", "-H", "left:1,wrong:1", "train.py")
    assert done.returncode == 125
    assert "error: wrong: this container is not running\n\nhint: `docker ps` lists" in done.stderr


def test_an_engine_that_dials_back_runs_a_job_on_the_hosts_of_its_allocation(folder: Path):
    done = muster(folder, "--engine", "crowd", "--nproc", "1", "train.py", CROWD_JOB="7", CROWD_HOSTS="n1,n2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[n1 0] rank 0 of 2 on n1 0", "[n2 1] rank 1 of 2 on n2 1"]
    assert "muster: detected: Crowd job 7, 2 hosts\n" in done.stderr


def test_it_refuses_what_it_cannot_do(refused: Refused):
    done = refused("--engine", "crowd", "train.py")
    assert "error: --engine crowd needs hosts" in done.stderr
    done = refused("--engine", "docker-exec", "--lab", "2", "train.py")
    assert "error: --lab works with ssh, not with --engine docker-exec" in done.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("from muster.engines.engine import Engine\nclass DockerExec(Engine): name = 'docker-exec'\n", "TypeError: "),
        ("raise OSError('no licence')\n", "OSError: no licence"),
    ],
    ids=["without launch", "broken"],
)
def test_an_engine_that_cannot_be_loaded_is_named_with_the_reason(
    folder: Path, refused: Refused, text: str, reason: str
):
    (folder / "site" / "muster_docker.py").write_text(text)
    done = refused("--engine", "docker-exec", "-H", "left:1", "train.py")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --engine docker-exec: could not load muster_docker:DockerExec (" + reason)


def test_a_dry_run_prints_the_command_lines_of_the_engine(refused: Refused):
    done = refused("--dry-run", "--engine", "docker-exec", "-H", "left:1,right:1", "train.py")
    assert f"  docker exec -i left {sys.executable} -c " in done.stdout


def test_entry_points_are_read_only_for_a_name_that_is_not_built_in():
    code = (
        "import os, sys\n"
        "from muster.engines.choice import choose\n"
        "from muster.engines.table import NAMES\n"
        "from muster.spec import RunSpec\n"
        "choose(RunSpec(target='t.py'), {})\n"
        "assert 'slurm' in NAMES\n"
        "print('importlib.metadata' in sys.modules)\n"
        "print('nothing' in NAMES, 'importlib.metadata' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False", "True"], done.stderr
