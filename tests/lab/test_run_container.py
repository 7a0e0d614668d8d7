"""`muster run --image` with real podman: on every engine, and after every way a job can end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import Engine, EngineJob, MpiEngine, PbsEngine, Ranks, SlurmEngine
from engine_promises import FAIL, STUBBORN, check_refusal
from launching import MUSTER, PLAIN, Done
from pbs import PbsSite
from waiting import wait_until

from muster.engines.container.container import Container
from muster.lab import Lab
from muster.lab.podman_service import IMAGE, volumes
from muster.lab.system_programs import SYSTEM_PATH

PROGRAMS = ("podman", "crun", "slurmctld", "mpirun.openmpi", "mpiexec.hydra")

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.getuid() != 0, reason="podman and Slurm need a lab started as root"),
    pytest.mark.skipif(
        not all(shutil.which(program, path=SYSTEM_PATH) for program in PROGRAMS),
        reason="apt-get install podman crun slurmctld slurmd slurm-client munge openmpi-bin mpich",
    ),
]

BOX = ("--image", IMAGE, "--python", sys.executable, "--no-zygote")
LEAKS = {"LD_LIBRARY_PATH": "/leak/lib", "PYTHONPATH": "/leak/python", "MY_OWN": "leak"}

INSIDE = """
import json, os, socket
with open("written-by-" + os.environ["RANK"], "w") as file:
    file.write(os.environ["GREETING"])
print(json.dumps({
    "container": os.path.exists("/run/.containerenv"), "host": socket.gethostname(), "cwd": os.getcwd(),
    "user": os.getuid(), "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "gpus": sorted(name for name in os.listdir("/dev") if name.startswith("nvidia")), "env": dict(os.environ),
}))
"""

# Sums over all ranks with the MPI library of this machine, through shared memory and between hosts. MPICH 4.0.2, with
# or without Muster, mostly hangs in MPI_Finalize after large messages between hosts that are as busy as ours, and in
# 4 of 48 runs of plain mpiexec (2026-11-16) while UCX still made connections; none of 24 with time for these hung.
MPI = """
import ctypes, os, socket, time
open_mpi = "OMPI_COMM_WORLD_RANK" in os.environ
mpi = ctypes.CDLL("libmpi.so.40" if open_mpi else "libmpich.so.12", mode=ctypes.RTLD_GLOBAL)
def handle(name, number):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name))) if open_mpi else ctypes.c_int(number)
world, double, total = (handle("ompi_mpi_comm_world", 0x44000000), handle("ompi_mpi_double", 0x4C00080B),
                        handle("ompi_mpi_op_sum", 0x58000003))
mpi.MPI_Init(None, None)
count = 200_000 if open_mpi else 100
ours, sum = (ctypes.c_double * count)(*[1.0] * count), (ctypes.c_double * count)()
mpi.MPI_Allreduce(ours, sum, count, double, total, world)
print("sum", sum[0], sum[count - 1], os.path.exists("/run/.containerenv"), socket.gethostname())
for _ in range(10):
    mpi.MPI_Barrier(world)
    time.sleep(0.05)
mpi.MPI_Finalize()
"""

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print("sum", x[0].item(), "of", dist.get_world_size())
dist.barrier()  # or rank 0 might take its store away while the other still meets it
dist.destroy_process_group()
"""


class PlainEngine(Engine):
    """`muster run` on h1, over ssh or for h1 alone."""

    programs = ()

    def __init__(self, lab: Lab, folder: Path, name: str) -> None:
        super().__init__(lab, folder)
        self.name = name

    def options(self, ranks: Ranks) -> tuple[str, ...]:
        if self.name == "local":
            return ("--engine", "local", "--nproc", str(ranks["h1"]))
        return ("--engine", "ssh", "-H", ",".join(f"{host}:{count}" for host, count in ranks.items()))

    def _submit(self, job: EngineJob, script: Path, ranks: Ranks, request: Any) -> None:
        job.holder = self.lab.popen(
            "h1", ["sh", str(script)], env=PLAIN, stdin=subprocess.DEVNULL, start_new_session=True
        )


class Site:
    """The lab with all its engines, and the containers on its hosts."""

    def __init__(self, lab: Lab, pbs: PbsSite, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.is_clear = False
        """Whether nothing was left when the test looked last; looking at all containers takes a while."""
        self.engines: dict[str, Engine] = {
            "local": PlainEngine(lab, folder, "local"),
            "ssh": PlainEngine(lab, folder, "ssh"),
            "slurm": SlurmEngine(lab, folder),
            "pbs": PbsEngine(lab, folder, pbs),
            "openmpi": MpiEngine(lab, folder, "openmpi"),
            "mpich": MpiEngine(lab, folder, "mpich"),
        }

    def start(self, engine: str, ranks: Ranks, *argv: str, args: str = "", **more: Any) -> EngineJob:
        """Start a job in containers."""
        self.is_clear = False
        # Where ranks see the host's processes, podman needs control groups, which the lab has off.
        more_args = "--cgroups=enabled" if isinstance(self.engines[engine], MpiEngine) else ""
        box = (*BOX, "--container-args", " ".join([*volumes(), more_args, args]))
        return self.engines[engine].start(ranks, *box, *argv, **more)

    def containers(self, host: str) -> list[str]:
        """All containers of a host, whatever their state."""
        done = self.lab.run(host, ["podman", "ps", "--all", "--format={{.Names}} {{.Status}}"], timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def left(self) -> dict[str, list[str]]:
        """Processes and containers on the hosts that live."""
        hosts = [status.name for status in self.lab.status() if status.state == "up"]
        found = {host: [line[:200] for _, line in self.engines["pbs"].processes(host)] for host in hosts}
        if not any(found.values()):
            with ThreadPoolExecutor() as pool:
                found = dict(zip(hosts, pool.map(self.containers, hosts), strict=True))
        return {host: lines for host, lines in found.items() if lines}

    def clear(self, limit: float = 40) -> None:
        """Wait until no process and no container is left."""
        wait_until("everything to be gone", lambda: not self.left(), limit, lambda: str(self.left()), every=0.5)
        self.is_clear = True


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    with Lab(3, slurm=True, mpi=True, podman=True, gpus=2, bind=(shared,)) as lab:
        yield lab
    for folder in Path("/sys/fs/cgroup").glob("*/libpod_parent"):  # of --cgroups=enabled; they are the machine's
        for path in (*folder.glob("*"), folder):
            try:
                path.rmdir()
            except OSError:
                pass  # a file, or that of somebody else


@pytest.fixture(scope="module")
def all_engines(lab: Lab, shared: Path) -> Iterator[Site]:
    scripts = {"inside": INSIDE, "mpi": MPI, "stubborn": STUBBORN, "fail": FAIL, "all_reduce": ALL_REDUCE}
    for name, text in scripts.items():
        (shared / f"{name}.py").write_text(text)
    with PbsSite(lab, shared) as pbs:
        yield Site(lab, pbs, shared)


@pytest.fixture
def site(all_engines: Site, lab: Lab) -> Iterator[Site]:
    """All engines; after each test nothing may be left."""
    all_engines.is_clear = False
    yield all_engines
    try:
        if not all_engines.is_clear:
            all_engines.clear()
    except AssertionError:
        lab.run("h1", ["scancel", "--me"], timeout=30)
        for host in lab.names:
            lab.run(host, ["podman", "rm", "--all", "--force", "--time=0"], timeout=30)
        raise
    finally:
        all_engines.engines["pbs"].restore()  # which leaves the moms


# --- the ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["local", "ssh", "slurm", "pbs"])
def test_ranks_in_containers_have_what_their_host_has_and_nothing_of_its_environment(site: Site, engine: str) -> None:
    ranks = {"h1": 2} if engine == "local" else {"h1": 2, "h2": 1}
    env = {**LEAKS, "CUDA_VISIBLE_DEVICES": None}
    done = site.start(engine, ranks, "--env", "GREETING=good day", "inside.py", **env).wait()
    assert done.code == 0, done.said
    for rank, host in enumerate(host for host, count in ranks.items() for _ in range(count)):
        found = json.loads(done.lines(rank)[0])
        assert found["container"]
        assert found["host"] == host
        assert found["cwd"] == str(site.folder)
        assert found["user"] == 0
        assert found["shm"] == 1 << 30, "that of the host, not podman's 64 MB"
        assert found["gpus"] == ["nvidia0", "nvidia1"]
        assert found["env"]["GREETING"] == "good day"
        assert not set(LEAKS) & set(found["env"])
        image_path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        assert found["env"]["PATH"] == f"{Path(sys.executable).parent}:{image_path}"
        assert (site.folder / f"written-by-{rank}").read_text() == "good day"
        (site.folder / f"written-by-{rank}").unlink()


def test_ranks_in_containers_see_the_gpus_that_slurm_gave_them(site: Site) -> None:
    request = ("-N2", "-wh1,h2", "--gpus-per-node=1")
    options = ("--env", "GREETING=hello", "inside.py")
    done = site.start("slurm", {}, *options, request=request, CUDA_VISIBLE_DEVICES=None).wait()
    assert done.code == 0, done.said
    found = [json.loads(done.lines(rank)[0]) for rank in (0, 1)]
    assert [(rank["host"], rank["env"]["CUDA_VISIBLE_DEVICES"]) for rank in found] == [("h1", "0"), ("h2", "0")]
    assert [rank["env"]["SLURM_PROCID"] for rank in found] == ["0", "1"]


def test_a_signal_of_slurm_reaches_each_rank_in_its_container_once(site: Site) -> None:
    (site.folder / "listen.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda number, frame: print('warned', flush=True))\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    job = site.start("slurm", {"h2": 1, "h3": 1}, "listen.py")
    job.wait_for("up\n", 2)
    site.lab.run("h1", ["scancel", "--signal=USR1", job.id], timeout=30)
    job.wait_for("warned\n", 2)
    site.lab.run("h1", ["scancel", job.id], timeout=30)
    done = job.wait(40)
    assert done.out.count("warned") == 2, done.said
    assert "all ranks ended normally" in done.err, done.said


@pytest.mark.parametrize("engine", ["openmpi", "mpich"])
def test_mpi_itself_works_between_containers(site: Site, engine: str) -> None:
    done = site.start(engine, {"h1": 2, "h2": 1}, "mpi.py").wait()
    assert done.code == 0, done.said
    for rank, host in enumerate(("h1", "h1", "h2")):
        assert f"sum 3.0 3.0 True {host}" in done.lines(rank)


def test_an_images_own_entrypoint_and_user_do_not_come_in_the_way(site: Site) -> None:
    image = "localhost/awkward:1"
    change = ("--change", 'ENTRYPOINT ["/bin/false"]', "--change", "USER 1234")
    done = site.lab.run("h2", ["podman", "import", *change, "/run/muster-lab/boot/image.tar", image], timeout=30)
    assert done.returncode == 0, done.stderr
    options = ("--env", "GREETING=hello", "--image", image, "inside.py")
    ended = site.start("ssh", {"h2": 1}, *options).wait()
    assert ended.code == 0, ended.said
    assert json.loads(ended.lines(0)[0])["user"] == 0
    # Like that of NVIDIA's images, which can be had by name.
    (site.folder / "entry").write_text('#!/bin/sh\necho "== PyTorch =="\nexec "$@"\n')
    (site.folder / "entry").chmod(0o755)
    ended = site.start("ssh", {"h2": 1}, *options, args=f"--entrypoint {site.folder}/entry").wait()
    assert ended.code == 0, ended.said
    assert "PyTorch" not in ended.out + ended.err


@pytest.mark.torch
def test_torch_meets_between_containers_of_two_hosts(site: Site) -> None:
    options = ("--image", IMAGE, "--python", sys.executable, "--container-args", " ".join(volumes()))
    done = site.engines["ssh"].run({"h2": 1, "h3": 1}, *options, "all_reduce.py")
    assert done.code == 0, done.said
    assert [done.lines(rank) for rank in (0, 1)] == [["sum 3.0 of 2"]] * 2


def test_code_sent_into_containers_runs_there_and_what_it_writes_stays_on_the_host(site: Site) -> None:
    project = site.folder / "project"
    project.mkdir()
    (project / "train.py").write_text("import os\nprint(os.getcwd())\nopen('model.pt', 'w').write('weights')\n")
    engine = PlainEngine(site.lab, project, "ssh")
    box = (*BOX, "--container-args", " ".join(volumes()))
    done = engine.run({"h2": 1, "h3": 1}, *box, "--sync", "train.py")
    assert done.code == 0, done.said
    for rank, host in enumerate(("h2", "h3")):
        (folder,) = done.lines(rank)
        assert site.lab.run(host, ["cat", f"{folder}/model.pt"], timeout=30).stdout == "weights"
        assert site.lab.run(host, ["stat", "-c%a", str(Path(folder).parent)], timeout=30).stdout == "700\n"


def test_no_line_is_lost_on_its_way_out_of_a_container(site: Site) -> None:
    (site.folder / "lines.py").write_text("for number in range(10_000): print(number, 'x' * 240)")
    done = site.start("ssh", {"h2": 1, "h3": 1}, "lines.py").wait()
    assert done.code == 0, done.said[-2000:]
    for rank in (0, 1):
        assert done.log(rank).count(b"\n") == 10_000
        assert [int(line.split()[0]) for line in done.lines(rank)] == list(range(10_000))


# Prints numbered lines until it is asked to end.
NUMBERS = """
import itertools, os, sys, time
for number in itertools.count():
    print(number, flush=True)
    if os.path.exists(sys.argv[1]): break
    time.sleep(0.01)
"""


def test_a_container_continues_over_a_new_ssh_connection(site: Site) -> None:
    (site.folder / "numbers.py").write_text(NUMBERS)
    job = site.start("ssh", {"h2": 1, "h3": 1}, "numbers.py", "stop-numbers")
    wait_until("lines of h3", lambda: "[h3" in job.out, 60, lambda: job.said)

    def clients() -> list[int]:
        return [pid for pid, line in site.lab.processes("h1") if line.startswith("ssh ") and " h3 " in line]

    for _ in range(2):
        wait_until("one connection to h3", lambda: len(clients()) == 1, 30, lambda: str(clients()))
        os.kill(clients()[0], signal.SIGKILL)
        begin = job.out.count("[h3")
        wait_until("more lines of h3", lambda begin=begin: job.out.count("[h3") > begin + 50, 30, lambda: job.said)
    (site.folder / "stop-numbers").touch()
    done = job.wait(60)
    assert done.code == 0, done.said[-2000:]
    lines = [int(line) for line in done.log(1).split()]
    assert lines == list(range(len(lines)))
    assert (done.folder / "debug.log").read_text().count("h3: resumed") == 2


# --- every end ------------------------------------------------------------------------------------------------


def test_a_rank_that_fails_in_a_container_is_named_and_ends_the_others(site: Site) -> None:
    done = site.start("ssh", {"h2": 2, "h3": 1}, "fail.py", "exit3").wait()
    assert done.code == 3, done.said
    assert "rank 2 on h3 failed first" in done.err


def interrupt(site: Site, job: EngineJob) -> None:
    job.signal(signal.SIGINT)
    assert job.wait(40).code == 130


def kill(site: Site, job: EngineJob) -> None:
    job.signal(signal.SIGKILL)


def cut(site: Site, job: EngineJob) -> None:
    site.lab.cut("h3")
    assert job.wait(40).code == 125
    assert "host h3 is lost" in job.err


def power_off(site: Site, job: EngineJob) -> None:
    site.lab.power_off("h3")
    assert job.wait(40).code == 125
    assert "host h3 is lost" in job.err


def scancel(site: Site, job: EngineJob) -> None:
    site.lab.run("h1", ["scancel", job.id], timeout=30)
    # 143: where a rank was about to ignore SIGTERM, and got it before.
    assert job.wait(40).code in (125, 143)
    assert "it was canceled (scancel)" in job.err


def qdel(site: Site, job: EngineJob) -> None:
    site.engines["pbs"].site.job(job.id).qdel()  # type: ignore[attr-defined]


ENDS: list[tuple[str, Callable[[Site, EngineJob], None]]] = [
    ("local", kill),
    ("ssh", interrupt),
    ("ssh", kill),
    ("ssh", cut),
    ("ssh", power_off),
    ("slurm", kill),
    ("slurm", scancel),
    ("pbs", qdel),
    ("openmpi", kill),
]


@pytest.mark.parametrize(("engine", "end"), ENDS, ids=[f"{engine}-{end.__name__}" for engine, end in ENDS])
def test_no_container_outlives_its_job(site: Site, engine: str, end: Callable[[Site, EngineJob], None]) -> None:
    ranks = {"h1": 1} if engine == "local" else {"h1": 1, "h3": 1}
    job = site.start(engine, ranks, "--grace", "1", "--lost-after", "5", "stubborn.py")
    job.wait_for("up\n", len(ranks))
    for host in ranks:
        (container,) = site.containers(host)
        assert container.startswith("muster-20"), "it can be told whose it is"
    end(site, job)
    site.clear()


@pytest.mark.parametrize(
    ("engine", "end", "program"),
    [
        ("ssh", interrupt, "podman run"),
        ("ssh", kill, "/usr/bin/conmon"),
        ("slurm", interrupt, "podman run"),
        ("slurm", scancel, "/usr/bin/conmon"),
        ("slurm", kill, "/usr/bin/conmon"),
    ],
)
def test_no_container_is_left_by_a_job_that_ends_while_it_starts(
    site: Site, engine: str, end: Callable[[Site, EngineJob], None], program: str
) -> None:
    job = site.start(engine, {"h2": 1}, "--grace", "1", "stubborn.py")
    wait_until(
        "the beginning of a container",
        lambda: any(line.startswith(program) for _, line in site.lab.processes("h2")),
        60,
        lambda: job.said,
    )
    end(site, job)
    site.clear()


def test_a_container_whose_program_is_killed_ends_and_its_host_is_named(site: Site) -> None:
    job = site.start("ssh", {"h2": 1, "h3": 1}, "--grace", "1", "stubborn.py")
    job.wait_for("up\n", 2)
    (podman,) = [pid for pid, line in site.lab.processes("h3") if line.startswith("podman run")]
    os.kill(podman, signal.SIGKILL)
    assert job.wait(40).code == 125
    assert "host h3 is lost" in job.err


# --- GPUs of the other programs -------------------------------------------------------------------------------


def test_each_container_program_gets_its_own_options_for_gpus(site: Site) -> None:
    site.lab.run("h2", ["mknod", "/dev/nvidiactl", "c", "1", "3"], timeout=30)
    folder = site.folder / "programs"
    folder.mkdir()
    for name in ("podman", "docker", "apptainer"):
        (folder / name).write_text('#!/bin/sh\ncase $1 in run|exec) printf "%s\\n" "$@" ;; esac\n')
        (folder / name).chmod(0o755)

    def told(program: str, *args: str, **env: str) -> str:
        argv = Container(image="i", program=program, args=args, cwd=str(site.folder), folder="/x/jobs/j").run(["true"])
        variables = [f"{name}={value}" for name, value in {"PATH": f"{folder}:{PLAIN['PATH']}", **env}.items()]
        done = site.lab.run("h2", ["env", "-i", *variables, *argv], timeout=30)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.splitlines())

    assert "--gpus all" in told("docker")
    assert "--gpus" not in told("docker", "--device", "nvidia.com/gpu=0")
    assert "--nv " in told("apptainer")
    devices = "--device /dev/nvidiactl --device /dev/nvidia1 --device /dev/nvidia0"
    assert devices in told("podman")
    # Of four GPUs Slurm gave the last two, which it counts from 0 where it hides the others.
    for visible in ("2,3", "0,1"):
        words = told("docker", SLURM_STEP_GPUS="2,3", CUDA_VISIBLE_DEVICES=visible)
        assert '--gpus "device=2,3"' in words
        assert "--env CUDA_VISIBLE_DEVICES" in words
    site.lab.run("h2", ["sh", "-c", "mkdir -p /etc/cdi; echo 'kind: nvidia.com/gpu' > /etc/cdi/any.yaml"], timeout=30)
    words = told("podman")
    assert "--device nvidia.com/gpu=all" in words
    assert "/dev/nvidia0" not in words
    site.lab.run("h2", ["rm", "-r", "/etc/cdi", "/dev/nvidiactl"], timeout=30)


# --- what cannot be -------------------------------------------------------------------------------------------


def test_an_image_that_one_host_lacks_is_named_with_that_host(site: Site) -> None:
    site.lab.run("h3", ["podman", "tag", IMAGE, "localhost/other:1"], timeout=30)
    done = site.start("slurm", {"h2": 1, "h3": 1}, "--image", "localhost/other:1", "inside.py").wait()
    check_refusal(done, 125, "^h2: image localhost/other:1 not found, and podman could not pull it \\(", "podman pull")
    site.lab.run("h3", ["podman", "untag", "localhost/other:1"], timeout=30)


NO_PYTHON = (["--python", "/no/python"], f"^h2: Python not found in {IMAGE}$", "--python PATH")
NO_FOLDER = (["--container-args", "-v /no/folder:/x"], "^h2: podman could not start .*/no/folder", "by hand there")
NO_PROGRAM = (["--container", "apptainer"], "^h2: apptainer not found$", "--container")


@pytest.mark.parametrize(
    ("engine", "options", "error", "hint"),
    [("ssh", *NO_PROGRAM), ("slurm", *NO_FOLDER), ("slurm", *NO_PYTHON), ("openmpi", *NO_PYTHON)],
)
def test_what_a_host_cannot_start_is_reported_with_its_name(
    site: Site, engine: str, options: list[str], error: str, hint: str
) -> None:
    done = site.start(engine, {"h2": 1}, *options, "inside.py").wait()
    check_refusal(done, 125, error, hint)


def test_what_a_task_of_pbs_cannot_start_is_known_by_its_exit_code(site: Site) -> None:
    done = site.start("pbs", {"h1": 1}, "--python", "/no/python", "inside.py").wait()
    check_refusal(done, 125, f"^h1: Python not found in {IMAGE}$", "--python PATH")


def test_a_folder_that_a_host_lacks_is_named_with_that_host(site: Site) -> None:
    site.lab.run("h1", ["mkdir", "-p", "/tmp/alone"], timeout=30)
    site.lab.run("h1", ["touch", "/tmp/alone/train.py"], timeout=30)
    box = (*BOX, "--container-args", " ".join(volumes()))
    argv = ["env", "-i", "-C", "/tmp/alone", *(f"{name}={value}" for name, value in PLAIN.items()), MUSTER, "run"]
    ended = site.lab.run("h1", [*argv, "-H", "h1:1,h2:1", *box, "train.py"], timeout=60)
    done = Done(code=ended.returncode, out=ended.stdout, err=ended.stderr, state=site.folder)
    check_refusal(
        done, 125, "^h2: could not mount the working directory /tmp/alone: it does not exist there$", "--sync"
    )


def test_a_pull_that_takes_long_is_reported_and_ends_with_the_job(site: Site) -> None:
    programs = site.folder / "slow"
    programs.mkdir()
    (programs / "podman").write_text(
        '#!/bin/sh\ncase "$*" in "image inspect"*) exit 1 ;; pull*) echo "Copying blob 7"; exec sleep 1000 ;; esac\n'
    )
    (programs / "podman").chmod(0o755)
    job = site.start("local", {"h1": 1}, "inside.py", PATH=f"{programs}:{PLAIN['PATH']}")
    job.wait_for_word("0 of 1 hosts up, waiting for h1 (h1: Copying blob 7)")
    job.signal(signal.SIGINT)
    assert job.wait(40).code == 130
