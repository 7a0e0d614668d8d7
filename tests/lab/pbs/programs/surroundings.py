"""What a job's script and its tasks find around them: nodefile, environment, folders."""

from __future__ import annotations

import shutil
from pathlib import Path

from records import Record
from request import Chunk, nodefile_lines
from wire import HOME, PORT, SITE, TORQUE

MOM_PATH = "/bin:/usr/bin"
"""All that mom has in her environment (PBS_HOME/pbs_environment)."""


def lines(record: Record) -> list[tuple[str, int]]:
    """The nodefile: for each line the host and the number of threads of a task there."""
    chunks = nodefile_lines(record["chunks"])
    return [(chunk["host"], _threads_of(chunk)) for chunk in chunks]


def _threads_of(chunk: Chunk) -> int:
    return chunk.get("ompthreads", chunk["ncpus"])


def hosts(record: Record) -> list[str]:
    """The hosts in the order of their first chunk, which is that of PBS_NODENUM; with mpiprocs=0 they have no line."""
    return list(dict.fromkeys(chunk["host"] for chunk in record["chunks"]))


def nodefile(record: Record) -> Path:
    return HOME / "aux" / record["id"]


def gpufile(record: Record) -> Path:
    return HOME / "aux" / f"{record['id']}gpu"


def scratch(record: Record) -> Path:
    return Path(f"/var/tmp/pbs.{record['id']}")


def furnish(record: Record) -> None:
    """Make what a job needs on a host."""
    write_nodefile(record)
    scratch(record).mkdir(parents=True, exist_ok=True, mode=0o700)
    if TORQUE:
        given: dict[str, int] = {}
        text = ""
        for chunk in record["chunks"]:
            for _ in range(chunk["ngpus"]):
                number = given.get(chunk["host"], 0)
                given[chunk["host"]] = number + 1
                text += f"{chunk['host']}-gpu{number}\n"
        gpufile(record).write_text(text)


def write_nodefile(record: Record) -> None:
    nodefile(record).parent.mkdir(parents=True, exist_ok=True)
    nodefile(record).write_text("".join(f"{host}\n" for host, _ in lines(record)))


def clear(record: Record) -> None:
    """Remove what `furnish` made."""
    for file in (nodefile(record), gpufile(record)):
        file.unlink(missing_ok=True)
    shutil.rmtree(scratch(record), ignore_errors=True)


def script_environment(record: Record, shell: str) -> dict[str, str]:
    """The environment of the login shell that starts the script, before any profile."""
    user = {"USER": record["user"], "LOGNAME": record["user"], "SHELL": shell}
    env = {**_common(record), **user, "PBS_NODENUM": "0", "PBS_TASKNUM": "1", "PBS_NODEFILE": str(nodefile(record))}
    return {**env, **_threads(_threads_of(record["chunks"][0]))}


def task_environment(record: Record, host: str, line: int, task: int) -> dict[str, str]:
    """The environment of a task: nothing of the script's, and no PBS_NODEFILE on the first host."""
    node = hosts(record).index(host)
    env = {**_common(record), **_threads(lines(record)[line][1])}
    env |= {"PBS_NODENUM": str(node), "PBS_TASKNUM": f"{task:08X}"}
    if TORQUE:
        env["PBS_VNODENUM"] = str(line)
    elif node > 0:
        env["PBS_NODEFILE"] = str(nodefile(record))
    return env


def _common(record: Record) -> dict[str, str]:
    env = {
        "PATH": MOM_PATH,
        **record["variables"],
        "HOME": SITE["home"],
        "ENVIRONMENT": "BATCH",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": record["id"],
        "PBS_JOBNAME": record["name"],
        "PBS_QUEUE": record["queue"],
        "PBS_JOBCOOKIE": record["cookie"],
        "PBS_MOMPORT": str(PORT),
        "PBS_JOBDIR": SITE["home"],
        "TMPDIR": str(scratch(record)),
    }
    if record["account"]:
        env["PBS_ACCOUNT"] = record["account"]
    if record["index"] is not None:
        env |= {"PBS_ARRAY_INDEX": str(record["index"]), "PBS_ARRAY_ID": f"{record['number']}[].{SITE['server']}"}
    return {**env, **_torque(record)} if TORQUE else env


def _torque(record: Record) -> dict[str, str]:
    count = len(lines(record))
    env = {
        "PBS_NUM_NODES": str(len(record["chunks"])),
        "PBS_NUM_PPN": str(record["chunks"][0].get("mpiprocs", 1)),
        "PBS_NP": str(count),
        "PBS_VNODENUM": "0",
        "PBS_GPUFILE": str(gpufile(record)),
    }
    return {**env, "PBS_WALLTIME": str(record["walltime"])} if record["walltime"] else env


def _threads(number: int) -> dict[str, str]:
    return {"NCPUS": str(number), "OMP_NUM_THREADS": str(number)}
