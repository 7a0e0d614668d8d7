"""Containers: the agent's command wrapped, so that any engine starts it inside an image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from muster.errors import HostError

PROGRAMS = ("podman", "docker", "apptainer")

# Runs on the host, in any POSIX shell, because only there it is known which program and which GPUs there are.
# $1 is the program (empty: the first that is there), $2 the folder to work in (empty: none is mounted), $3 says whether
# processes and /tmp are the host's; then come the user's own arguments, the image, and the agent. Each `set --` puts
# something before them.
# - host network and IPC: ranks meet over the host's interfaces, and its /dev/shm is large enough for data loaders
# - own PID namespace with the agent as process 1: when it ends, the kernel ends every process of the container
# - only variables a scheduler or Muster set come along; the image has its own PATH and libraries
_SCRIPT = r"""
p=$1 cwd=$2 share=$3
shift 3
for p in "$p" podman docker apptainer; do [ "$p" ] && command -v "$p" >/dev/null 2>&1 && break; p=; done
[ "$p" ] || { echo "muster: no container program (podman, docker, apptainer) is on this host" >&2; exit 127; }
state=${XDG_STATE_HOME:-$HOME/.local/state}
mkdir -p "$state/muster"
if [ "${p##*/}" = apptainer ]; then
  [ "$cwd" ] && set -- --bind "$cwd" --pwd "$cwd" "$@"
  [ -e /dev/nvidiactl ] && set -- --nv "$@"
  exec "$p" exec --bind "$state/muster" "$@"
fi
[ "$cwd" ] && set -- -v "$cwd:$cwd" -w "$cwd" "$@"
[ "$share" ] && set -- --pid host -v "${TMPDIR:-/tmp}:${TMPDIR:-/tmp}" "$@"
for n in $(env | sed -n "s/^\(MUSTER_DIAL\|CUDA_VISIBLE_DEVICES\|OMP_NUM_THREADS\)=.*/\1/p
s/^\(\(SLURM\|SLURMD\|PBS\|OMPI\|PMIX\|PMI\|MPI\)_[A-Za-z0-9_]*\)=.*/\1/p"); do set -- -e "$n" "$@"; done
if [ "${p##*/}" = docker ]; then
  [ -e /dev/nvidiactl ] && set -- --gpus all "$@"
else
  if [ -e /etc/cdi/nvidia.yaml ] || [ -e /var/run/cdi/nvidia.yaml ]; then set -- --device nvidia.com/gpu=all "$@"
  else for d in /dev/nvidia*; do [ -c "$d" ] && set -- --device "$d" "$@"; done; fi
  set -- --security-opt label=disable "$@"
fi
exec "$p" run --rm -i --network host --uts host --ipc host -v "$state/muster:$state/muster" \
  -e XDG_STATE_HOME="$state" "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Container:
    """An image and how it is run."""

    image: str
    program: str = ""
    """podman, docker or apptainer; empty for whichever a host has."""
    args: tuple[str, ...] = ()
    """The user's own, before the image."""
    cwd: str = ""
    """Mounted at the same place inside and made the working directory; empty where the code is sent instead."""
    files: tuple[str, ...] = ()
    """Files and folders beside it that are mounted for reading."""
    shares_processes: bool = False
    """Whether it sees the host's processes and /tmp: the containers of MPI's ranks on one host must see each other."""

    def run(self, agent: Sequence[str]) -> tuple[str, ...]:
        """The command line, for a host, that runs `agent` inside the image."""
        mounts = [word for path in self.files for word in ("-v", f"{path}:{path}:ro")]
        share = "share" if self.shares_processes else ""
        return ("sh", "-c", _SCRIPT, "muster", self.program, self.cwd, share, *mounts, *self.args, self.image, *agent)


def container_reason(box: Container, text: str) -> tuple[str, str] | None:
    """What went wrong with the container, and what to do, if these words of its program say so."""
    program = box.program or "the container program"
    for sign, message, hint in _FAILURES:
        if sign.search(text):
            return message.format(image=box.image, program=program), hint.format(image=box.image)
    return None


def explain_container_failure(host: str, box: Container, code: int | None, text: str) -> HostError:
    """What a container program's words mean when no agent came."""
    reason = container_reason(box, text)
    if reason is not None:
        return HostError(host, reason[0], hint=reason[1])
    last = text.splitlines()[-1:] or [f"code {code}"]
    return HostError(host, f"no agent came up in {box.image}: {last[0]}", hint="try the image by hand on that host")


_FAILURES = (
    (
        re.compile(r"no container program|(?:podman|docker|apptainer): (?:command )?not found"),
        "{program} is not on this host",
        "install podman, docker or apptainer there, or name one with `--container`",
    ),
    (
        re.compile(
            r"image not known|no such image|unable to find image|pull access denied|manifest unknown|"
            r"could not open image|did not resolve to an alias|initializing source docker|"
            r"repository does not exist|while making image",
            re.IGNORECASE,
        ),
        "there is no image {image}, and it cannot be fetched",
        "pull or load it there first: `podman pull {image}`, `docker pull {image}`",
    ),
    (
        re.compile(r"permission denied.*docker|docker.*permission denied|dial unix .*permission denied", re.IGNORECASE),
        "docker does not let you in",
        "you are not in the group `docker` there; podman needs no such thing: `--container podman`",
    ),
    (
        re.compile(r"Cannot connect to the Docker daemon"),
        "the Docker daemon does not run there",
        "start it, or use `--container podman`",
    ),
    (
        re.compile(r"could not select device driver"),
        "docker cannot give GPUs to containers there",
        "install nvidia-container-toolkit on that host",
    ),
    (
        re.compile(r"(?:executable file|python3?)[`\"']?.* not found|no such file or directory.*python", re.IGNORECASE),
        "there is no python3 in {image}",
        "name the interpreter inside the image with `--python PATH`",
    ),
    (
        re.compile(r"statfs .*: no such file or directory|bind source path does not exist", re.IGNORECASE),
        "the working directory is not on this host, so it cannot be mounted",
        "`--sync` sends this folder to every host before the start",
    ),
)
