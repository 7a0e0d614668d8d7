"""Running `muster run` where each engine has it run: inside a Slurm allocation, in a PBS job, or above mpirun."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from launching import MUSTER, PLAIN, Done
from pbs import PbsSite
from waiting import patience, wait_until

from muster.lab import Lab
from muster.lab.system_programs import SYSTEM_PATH

NEEDS_SLURM = [
    pytest.mark.lab,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.getuid() != 0, reason="Slurm needs a lab started as root"),
    pytest.mark.skipif(
        shutil.which("slurmctld", path=SYSTEM_PATH) is None,
        reason="apt-get install slurmctld slurmd slurm-client munge",
    ),
]

Ranks = Mapping[str, int]
"""How many ranks run on each host; the first is the one `muster run` runs on."""

Env = Mapping[str, "str | None"]
"""Variables for `muster run`; None takes one away."""

# Runs `muster run` ($@) as a job script does: signals to the script are not the end of it, for only `muster run` knows
# how the job ended. Its pid is written down, since a scheduler and not the test starts it. ANSWERS names its stdin.
SCRIPT = """\
#!/bin/sh
{exports}
cd {folder}
trap : TERM INT HUP USR1 USR2
[ -z "$ANSWERS" ] || exec < "$ANSWERS"
/bin/sh -c 'echo $$ > {base}.pid; exec "$@" > {base}.out 2> {base}.err' sh {command}
code=$?
echo $code > {base}.code.new
/bin/mv {base}.code.new {base}.code
exit $code
"""


class EngineJob:
    """A `muster run` that an engine's job holds; looked at through the files it writes."""

    def __init__(self, engine: Engine, base: Path) -> None:
        self.engine = engine
        self.base = base
        self.state = base.with_suffix(".state")
        self.holder: subprocess.Popen[Any] | None = None
        """What the user started to get the job, where that stays: salloc."""

    def _read(self, ending: str) -> str:
        try:
            return self.base.with_suffix(ending).read_text(errors="surrogateescape")
        except FileNotFoundError:
            return ""

    @property
    def out(self) -> str:
        """Its stdout so far."""
        return self._read(".out")

    @property
    def err(self) -> str:
        """Its stderr so far."""
        return self._read(".err")

    @property
    def said(self) -> str:
        """Both streams, for the message of a failed assertion."""
        return f"--- stdout\n{self.out}\n--- stderr\n{self.err}"

    @property
    def id(self) -> str:
        """The scheduler's name for the job."""
        return wait_until("the job to run", lambda: self._read(".id").strip(), 40, lambda: self.said)

    @property
    def pid(self) -> str:
        """The pid of `muster run` itself, in the host it runs on."""
        return wait_until("muster run to start", lambda: self._read(".pid").strip(), 40, lambda: self.said)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to `muster run` itself, and to nobody else."""
        done = self.engine.lab.run("h1", ["kill", f"-{number.value}", self.pid], timeout=30)
        assert done.returncode == 0, done.stderr + self.said

    def wait_for(self, text: str, times: int = 1, limit: float = 60) -> None:
        """Wait until stdout has a text so often."""
        wait_until(f"{times} times {text!r}", lambda: self.out.count(text) >= times, patience(limit), lambda: self.said)

    def wait_for_word(self, text: str, limit: float = 60) -> None:
        """Wait until stderr has a text."""
        wait_until(repr(text), lambda: text in self.err, patience(limit), lambda: self.said)

    @property
    def ended(self) -> bool:
        """Whether `muster run` has ended."""
        return bool(self._read(".code"))

    def wait(self, timeout: float = 90) -> Done:
        """Wait for the end of `muster run`, and of what holds the job."""
        code = wait_until("the end of muster run", lambda: self._read(".code"), patience(timeout), lambda: self.said)
        if self.holder is not None:
            self.holder.wait(patience(30))
        return Done(code=int(code), out=self.out, err=self.err, state=self.state)


class Engine(ABC):
    """One engine on the hosts of a lab, with `muster run` on h1."""

    name: str
    programs: tuple[str, ...]
    """What the engine itself runs for a job; all of it must be gone after it."""

    summoner: str
    """The program of it that `muster run` starts."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self._number = 0

    @property
    def path(self) -> str:
        """The PATH of `muster run`."""
        return PLAIN["PATH"]

    def start(self, ranks: Ranks, *argv: str, request: Sequence[str] = (), **env: Any) -> EngineJob:
        """Start `muster run argv` with so many ranks; `request` goes to the engine's own command line."""
        job, script = self._script((*self.options(ranks), *argv), env)
        self._submit(job, script, ranks, request)
        return job

    def options(self, ranks: Ranks) -> tuple[str, ...]:
        """What stands on the command line of `muster run` to get so many ranks."""
        return ()

    def run(self, ranks: Ranks, *argv: str, timeout: float = 90, **more: Any) -> Done:
        """`muster run argv` to its end."""
        return self.start(ranks, *argv, **more).wait(timeout)

    def _script(self, argv: Sequence[str], env: Env) -> tuple[EngineJob, Path]:
        self._number += 1
        job = EngineJob(self, self.folder / f"{self.name}-{self._number}")
        settings: dict[str, str | None] = {**PLAIN, "PATH": self.path, "XDG_STATE_HOME": str(job.state), **env}
        exports = [
            f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
            for name, value in settings.items()
        ]
        text = SCRIPT.format(
            exports="\n".join(exports),
            folder=self.folder,
            base=job.base,
            command=shlex.join([MUSTER, "run", *argv]),
        )
        script = job.base.with_suffix(".sh")
        script.write_text(text)
        return job, script

    @abstractmethod
    def _submit(self, job: EngineJob, script: Path, ranks: Ranks, request: Sequence[str]) -> None: ...

    def left(self) -> dict[str, list[str]]:
        """The command lines of what lives on each host where anything does; with nothing, the jobs in the queue.

        In this order, because asking a scheduler costs more CPU time than looking at all hosts.
        """
        processes = {host: [f"{pid} {line}" for pid, line in self.processes(host)] for host in self.lab.names}
        found = {host: lines for host, lines in processes.items() if lines}
        jobs = [] if found else self.jobs()
        return {"queue": jobs} if jobs else found

    def exit_code(self, job: EngineJob) -> int | None:
        """The exit code with which what holds a job ended."""
        assert job.holder is not None
        return job.holder.wait(patience(30))

    def jobs(self) -> list[str]:
        """The jobs that wait or run, where the engine knows jobs."""
        return []

    def processes(self, host: str) -> list[tuple[int, str]]:
        """What lives on a host, the engine's own daemons aside."""
        return self.lab.processes(host)

    def restore(self) -> None:
        """Bring every host back to what it was: up, in reach, and without processes of a job."""
        for host in self.lab.status():
            if host.state != "up":
                self.reboot(host.name)
            elif host.faults:
                self.lab.heal(host.name)
        for host in self.lab.names:
            for pid, _ in self.processes(host):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def reboot(self, host: str) -> None:
        """Start a host that is off."""
        self.lab.reboot(host)


class SlurmEngine(Engine):
    """`muster run` below salloc, on h1."""

    name = "slurm"
    programs = ("srun", "slurmstepd")
    summoner = "srun"

    def _submit(self, job: EngineJob, script: Path, ranks: Ranks, request: Sequence[str]) -> None:
        wanted = request or self.request(ranks)
        job.holder = self.lab.popen(
            "h1",
            ["salloc", "--quiet", *wanted, "sh", "-c", f"echo $SLURM_JOB_ID > {job.base}.id; sh {script}"],
            env=PLAIN,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=job.base.with_suffix(".salloc").open("wb"),
            start_new_session=True,
        )

    def batch(self, ranks: Ranks, *argv: str, request: Sequence[str] = (), bare: bool = False, **env: Any) -> EngineJob:
        """The same in a batch script, which runs on the first host; a `bare` one is replaced by `muster run`."""
        job, script = self._script(argv, env)
        if bare:
            trapping = r"^trap .*\n(\[ .*\n)(/bin/sh -c .*)"
            script.write_text(re.sub(trapping, r"\1exec \2", script.read_text(), flags=re.MULTILINE))
        options = shlex.join([*self.request(ranks), *request])
        submitted = self.shell(f"sbatch --parsable --output=/dev/null {options} {script}")
        job.base.with_suffix(".id").write_text(submitted)
        return job

    def request(self, ranks: Ranks) -> list[str]:
        """Options of salloc and sbatch."""
        return [f"-N{len(ranks)}", f"-n{sum(ranks.values())}", f"-w{','.join(ranks)}"]

    def restore(self) -> None:
        if self.jobs():
            self.shell("scancel --me --signal=KILL; scancel --me")
        super().restore()

    def shell(self, command: str, timeout: float = 60) -> str:
        """The output of a shell command on h1."""
        done = self.lab.run("h1", ["env", "-i", f"PATH={PLAIN['PATH']}", "sh", "-c", command], timeout=timeout)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> list[str]:
        # One that is completing waits for the word of a dead host; its other hosts are free.
        return self.shell("squeue -h --states=PENDING,CONFIGURING,RUNNING,SUSPENDED -o '%i %T'").splitlines()

    def state(self, job: str) -> str:
        """The state of a job, such as TIMEOUT, and its exit code."""
        text = self.shell(f"scontrol show job {job} -o")
        return f"{text.partition('JobState=')[2].split()[0]} {text.partition('ExitCode=')[2].split()[0]}"


class PbsEngine(Engine):
    """`muster run` in the script of a PBS job."""

    name = "pbs"
    programs = ("pbsdsh",)
    summoner = "pbsdsh"

    def __init__(self, lab: Lab, folder: Path, site: PbsSite) -> None:
        super().__init__(lab, folder)
        self.site = site

    @property
    def path(self) -> str:
        return self.site.path

    def _submit(self, job: EngineJob, script: Path, ranks: Ranks, request: Sequence[str]) -> None:
        select = "+".join(f"1:ncpus={count}:mpiprocs={count}:host={host}" for host, count in ranks.items())
        wanted = ("-l", f"select={select}", "-l", "place=scatter")
        submitted = self.site.qsub("h1", f"exec sh {script}\n", *(request or wanted))
        job.base.with_suffix(".id").write_text(submitted.id)

    def exit_code(self, job: EngineJob) -> int | None:
        return self.site.job(job.id).wait()

    def processes(self, host: str) -> list[tuple[int, str]]:
        return [(pid, line) for pid, line in super().processes(host) if "/lib/mom.py" not in line]

    def jobs(self) -> list[str]:
        records = (self.site.job(path.stem) for path in (self.site.folder / "server").glob("*.json"))
        return [f"{job.id} {job.state}" for job in records if job.state in "QHR"]  # one that exits asks dead hosts too

    def reboot(self, host: str) -> None:
        self.lab.reboot(host)
        self.site.boot(host)


class MpiEngine(Engine):
    """`muster run --engine mpi` on h1."""

    summoner = "mpirun"

    def __init__(self, lab: Lab, folder: Path, flavour: str) -> None:
        super().__init__(lab, folder)
        self.name = flavour
        self.programs = ("mpirun", "orted") if flavour == "openmpi" else ("mpiexec.hydra", "hydra_pmi_proxy")
        self.bin = folder / flavour
        self.bin.mkdir()
        mpirun = "/usr/bin/mpirun.openmpi" if flavour == "openmpi" else "/usr/bin/mpiexec.hydra"
        (self.bin / "mpirun").write_text(f'#!/bin/sh\nexec {mpirun} "$@"\n')
        (self.bin / "mpirun").chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH with the mpirun of this flavor."""
        return f"{self.bin}:{PLAIN['PATH']}"

    def options(self, ranks: Ranks) -> tuple[str, ...]:
        root = ("--mpi-args=--allow-run-as-root",) if self.name == "openmpi" else ()
        where = ("-H", ",".join(f"{host}:{count}" for host, count in ranks.items())) if ranks else ()
        return ("--engine", "mpi", *root, *where)

    def _submit(self, job: EngineJob, script: Path, ranks: Ranks, request: Sequence[str]) -> None:
        job.holder = self.lab.popen(
            "h1", ["sh", str(script)], env=PLAIN, stdin=subprocess.DEVNULL, start_new_session=True
        )


class Firewall:
    """Closes h1's port for agents to one host, as soon as the port is known: when agents are summoned."""

    def __init__(self, engine: Engine, host: str) -> None:
        self.engine = engine
        self.host = host
        self._bin = engine.folder / f"firewall-{time.monotonic_ns()}" / "bin"

    @property
    def env(self) -> dict[str, str]:
        """Where srun, pbsdsh and mpirun are such that they raise the firewall first."""
        return {"PATH": f"{self._bin}:{self.engine.path}", "PBS_EXEC": str(self._bin.parent)}

    def __enter__(self) -> Firewall:
        program = self.engine.summoner
        real = shutil.which(program, path=self.engine.path)
        self._bin.mkdir(parents=True)
        order = 'json.loads(os.environ.get("MUSTER_DIAL") or open(sys.argv[1]).read())["port"]'
        port = f"{sys.executable} -c 'import json, os, sys; print({order})' $(echo \"$*\" | grep -o '/[^ ]*order.json')"
        source = self.engine.lab.address(self.host)
        (self._bin / program).write_text(
            f"""#!/bin/sh
case "$*" in *order.json*|*MUSTER_DIAL*)
  nft add table inet wall
  nft add chain inet wall in '{{ type filter hook input priority 0; }}'
  nft add rule inet wall in ip saddr {source} tcp dport $({port}) reject with tcp reset;;
esac
exec {real} "$@"
"""
        )
        (self._bin / program).chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        done = self.engine.lab.run("h1", ["nft", "delete", "table", "inet", "wall"], timeout=30)
        assert done.returncode == 0, f"no firewall was raised: {done.stderr}"
