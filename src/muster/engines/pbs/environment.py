"""Reads the hosts of a PBS job, and the rank of a task (OpenPBS, PBS Pro, Torque, NCI Gadi).

The hosts come from the environment, PBS_NODEFILE and `qstat -f`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.engines.allocation import Allocation
from muster.engines.rank_variables import RankVariables, rank_and_size
from muster.errors import UsageError
from muster.hosts import Host
from muster.user_file import read_user_file

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_ATTRIBUTE = re.compile(r"^    ([A-Za-z_][\w.]*) = (.*)$", re.MULTILINE)
_CHUNK = re.compile(r"\(([^()]*)\)")
_VNODE = re.compile(r"([^:]+?)(?:\[[^\]]*\])?((?::[^:]*)*)")  # `n1[0]` is a part of the host n1
_GPUS = re.compile(r":ngpus=([0-9]{1,4})(?![0-9])")
_GPU_LINE = re.compile(r"(.+)-gpu[0-9]+")  # Torque's form, such as `n1-gpu0`
_COUNT = re.compile(r"[0-9]{1,6}")
_SCRIPT_HINT = "call `muster run` from the job script itself; pbsdsh tasks may have no PBS_NODEFILE"
_BROKEN_HINT = "check the output of `cat $PBS_NODEFILE` in the job, or use `--engine ssh -H host1,host2`"
_EMPTY_HINT = "a chunk with mpiprocs=0 has no line in it; request mpiprocs=1 or more in `qsub -l select=…`"


def in_pbs_job(env: Mapping[str, str]) -> bool:
    """Whether this is the environment of a PBS job; a qsub on PATH is no proof, because Slurm has one too."""
    return bool(env.get("PBS_ENVIRONMENT") and env.get("PBS_JOBID"))


def nodefile_text(env: Mapping[str, str]) -> str:
    """The content of PBS_NODEFILE; the only function here that reads a file."""
    path = env.get("PBS_NODEFILE")
    if not path:
        raise UsageError("PBS_NODEFILE is not set, so the job's hosts are unknown", hint=_SCRIPT_HINT)
    try:
        return read_user_file(path).decode()
    except OSError as error:
        raise UsageError(f"could not read PBS_NODEFILE {path}: {error.strerror}", hint=_SCRIPT_HINT) from None
    except ValueError:  # not UTF-8, or a NUL in the path
        raise UsageError(f"PBS_NODEFILE {path} is not a text file", hint=_BROKEN_HINT) from None


def nodefile_lines(nodefile: str) -> dict[str, int]:
    """Each host with the index (from 0) of its first line, as `pbsdsh -n` expects, in order of appearance."""
    lines: dict[str, int] = {}
    for index, name in enumerate(_names(nodefile)):
        lines.setdefault(name, index)
    return lines


def read_pbs(
    env: Mapping[str, str], nodefile: str, qstat: str, *, silence: str = "", gpufile: str | None = None
) -> Allocation:
    """The allocation of a job.

    `nodefile` is the content of PBS_NODEFILE, `qstat` the output of `qstat -f $PBS_JOBID`, `silence` why there is none,
    and `gpufile` the content of Torque's PBS_GPUFILE. A host has `slots` only if PBS reports its GPUs, and `tasks` only
    if its lines in the nodefile mean ranks.
    """
    job = env.get("PBS_JOBID")
    if not job:
        raise UsageError("not inside a PBS job (PBS_JOBID is not set)", hint="run it in a job script or in `qsub -I`")
    names = _names(nodefile)
    hosts = tuple(dict.fromkeys(names))
    attributes = _attributes(qstat, job)
    gpus = _gpus(hosts, env, attributes, gpufile)
    ranks = _ranks(names, env, attributes)
    if not attributes and not gpus.of:
        why = silence or "qstat does not know this job"
        ranks = replace(ranks, note=f"could not determine the GPUs that PBS allocated ({why}); {_instead(ranks)}")
    return Allocation(
        kind="PBS job",
        id=job,
        hosts=tuple(Host(name=name, slots=gpus.of.get(name), tasks=ranks.of.get(name)) for name in hosts),
        notes=tuple(note for note in (gpus.note, ranks.note) if note),
    )


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """A number per host, never 0, for the hosts that have one, and where it comes from."""

    of: Mapping[str, int]
    note: str = ""


_UNKNOWN = _Counts(of={})


def _instead(ranks: _Counts) -> str:
    """What sets the number of ranks if qstat is silent."""
    if ranks.of:
        return "each line of PBS_NODEFILE becomes one rank, use --nproc N for another number per host"
    return "each host reports its own GPUs, use --nproc N if they are not all yours"


def _names(nodefile: str) -> list[str]:
    names: list[str] = []
    for number, line in enumerate(nodefile.split("\n"), start=1):
        name = line.strip()
        if not name:
            continue
        if not _NAME.fullmatch(name):
            raise UsageError(f"line {number} of PBS_NODEFILE is not a host name: {name[:60]!r}", hint=_BROKEN_HINT)
        names.append(name)
    if not names:
        raise UsageError("PBS_NODEFILE lists no hosts", hint=_EMPTY_HINT)
    return names


def _attributes(qstat: str, job: str) -> dict[str, str]:
    """The attributes of this job from the output of `qstat -f`, which wraps long lines with a tab."""
    for block in re.split(r"^Job Id:", qstat.replace("\r\n", "\n").replace("\n\t", ""), flags=re.MULTILINE)[1:]:
        # Some sites give PBS_JOBID a longer server name than qstat prints.
        if block.partition("\n")[0].strip().partition(".")[0] == job.partition(".")[0]:
            found: dict[str, str] = {}
            for name, value in _ATTRIBUTE.findall(block):
                # Variable_List comes last, and a user's variable in it may contain anything, even such lines.
                found.setdefault(name, value.strip())
            return found
    return {}


def _gpus(hosts: Sequence[str], env: Mapping[str, str], attributes: Mapping[str, str], gpufile: str | None) -> _Counts:
    """The number of GPUs that PBS allocated on each host, from the first source that has it."""
    given = _from_vnodes(hosts, attributes)
    if given:
        return _Counts(of=given, note="GPUs per host from exec_vnode of `qstat -f`")
    for source, total in (
        ("PBS_NGPUS", env.get("PBS_NGPUS")),  # on NCI Gadi, the total over all hosts
        ("Resource_List.ngpus of `qstat -f`", attributes.get("Resource_List.ngpus")),
    ):
        if total and _COUNT.fullmatch(total) and int(total) > 0:
            return _shared_out(hosts, source, int(total))
    listed = _from_gpufile(hosts, gpufile or "")
    return _Counts(of=listed, note="GPUs per host from PBS_GPUFILE") if listed else _UNKNOWN


def _shared_out(hosts: Sequence[str], source: str, total: int) -> _Counts:
    each, rest = divmod(total, len(hosts))
    if rest:
        return _Counts(of={}, note=f"{source} is {total} for {len(hosts)} hosts, so each host reports its own GPUs")
    if len(hosts) == 1:
        return _Counts(of={hosts[0]: total}, note=f"GPUs from {source}")
    return _Counts(of=dict.fromkeys(hosts, each), note=f"GPUs per host from {source}: {total} over {len(hosts)} hosts")


def _from_vnodes(hosts: Sequence[str], attributes: Mapping[str, str]) -> dict[str, int]:
    """GPUs by host from exec_vnode; empty if there are none, or if some are on an unknown host."""
    chunks = _CHUNK.findall(attributes.get("exec_vnode", ""))
    # exec_host has one host per chunk, while vnodes may have other names.
    places = [place.partition("/")[0] for place in attributes.get("exec_host", "").split("+")]
    if len(places) != len(chunks):
        places = [""] * len(chunks)
    found: Counter[str] = Counter()
    for chunk, place in zip(chunks, places, strict=True):
        for vnode, gpus in _vnodes(chunk):
            host = same_host(vnode, hosts) or same_host(place, hosts)
            if host is None and gpus:
                return {}
            if host is not None:
                found[host] += gpus
    return {host: gpus for host, gpus in found.items() if gpus}


def _vnodes(chunk: str) -> Iterator[tuple[str, int]]:
    """Name (without index) and GPUs of each vnode in a chunk such as `n1[0]:ncpus=2:ngpus=1+n1[1]:ncpus=2`."""
    for part in chunk.split("+"):
        vnode = _VNODE.fullmatch(part)
        if vnode:
            yield vnode[1], sum(map(int, _GPUS.findall(vnode[2])))


def _from_gpufile(hosts: Sequence[str], gpufile: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for line in gpufile.split():
        gpu = _GPU_LINE.fullmatch(line)
        host = same_host(gpu[1], hosts) if gpu else None
        if host is None:
            return {}
        found[host] += 1
    return dict(found)


def same_host(name: str, hosts: Sequence[str]) -> str | None:
    """The host of the nodefile with this name, with or without a domain in either name."""
    if name in hosts:
        return name
    short, dot, _ = name.partition(".")
    fits = [host for host in hosts if host.partition(".")[0] == short and not (dot and "." in host)]
    return fits[0] if len(fits) == 1 else None


def _ranks(names: Sequence[str], env: Mapping[str, str], attributes: Mapping[str, str]) -> _Counts:
    """The number of ranks requested on each host, if the lines of the nodefile mean ranks.

    PBS writes one line per rank. Only a job that asked for no ranks, and got one line per host, leaves the number open.
    """
    if env.get("PBS_NCI_NCPUS_PER_NODE") or (len(names) > 1 and env.get("PBS_NCPUS") == str(len(names))):
        return _Counts(of={}, note="PBS_NODEFILE has one line per CPU, so its lines do not set the number of ranks")
    lines = Counter(names)
    asked = "Resource_List.mpiprocs" in attributes or "mpiprocs=" in attributes.get("Resource_List.select", "")
    if attributes and not asked and not env.get("PBS_NUM_PPN") and max(lines.values()) == 1:
        return _UNKNOWN
    word = "mpiprocs" if asked else "ppn" if env.get("PBS_NUM_PPN") else "one for each chunk"
    return _Counts(of=lines, note=f"ranks on hosts without GPUs from the lines of PBS_NODEFILE ({word})")


# --- tasks of a job -------------------------------------------------------------------------------------------


def job_task(env: Mapping[str, str]) -> RankVariables | None:
    """The rank of a task started by pbsdsh or pbs_tmrsh; None in the job script itself."""
    if not {"PBS_JOBID", "PBS_NODENUM"} <= env.keys() or _is_script(env):
        return None
    job, node = env["PBS_JOBID"], env["PBS_NODENUM"]
    if {"PBS_VNODENUM", "PBS_NP"} <= env.keys():  # Torque numbers the tasks; OpenPBS only the hosts
        rank, size = rank_and_size(env, "PBS_VNODENUM", "PBS_NP")
        why = f"PBS_VNODENUM={rank} and PBS_NP={size}"
        local_rank = local_size = None
    elif "WORLD_SIZE" in env:
        rank, size = rank_and_size(env, "PBS_NODENUM", "WORLD_SIZE")
        why = f"PBS_NODENUM={rank} and WORLD_SIZE={size}, one task on each host"
        local_rank, local_size = 0, 1
    else:
        raise UsageError(
            f"this is a task of PBS job {job} on its host number {node} (PBS_NODENUM), "
            "but PBS does not provide the number of tasks",
            hint="call `muster run` from the job script, or set RANK, WORLD_SIZE and MASTER_ADDR in each task",
        )
    return RankVariables(
        launcher="PBS task",
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        why=f"PBS_JOBID={job}, {why}",
        job=("PBS_JOBID", job),
    )


def _is_script(env: Mapping[str, str]) -> bool:
    # The script is task 1 of host 0. OpenPBS numbers tasks in hexadecimal (00000004, 20000003).
    try:
        return int(env["PBS_TASKNUM"], 16) == 1 and env["PBS_NODENUM"] == "0"
    except ValueError:
        raise UsageError(f"PBS_TASKNUM={env['PBS_TASKNUM']} is not a PBS task number") from None
