"""Wraps the agent's command so that any engine starts it in a container."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from muster.errors import HostError, UsageError
from muster.spec import RunSpec

PROGRAMS = ("podman", "docker", "apptainer")

PULL_LIMIT = 1800.0
"""Seconds until an agent must have answered if an image is pulled; some images have 20 GB."""

_HIDING = frozenset(("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var"))
"""Directories of every image; with the host's directory mounted over one of them, nothing in the image would run."""

_NO_CHANNEL = r"-[dit]*[dt][dit]*|--tty(=true)?|--detach(=true)?"
"""Options that are often copied from other commands and would disconnect the agent's stdin or stdout."""

_SETTLING = (
    ("network", r"--net(work)?(=.*)?$"),
    ("gpus", r"--gpus(=.*)?$|--nv(ccli)?$|.*nvidia\.com/gpu|.*/dev/nvidia"),
    ("pull", r"--pull(=.*)?$|--rootfs(=true)?$"),
)
"""Settings that the user's own options take over, with the pattern of these options; they must not be given twice."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """An image and how it is run: as the user on the host, with the agent as process 1.

    When the agent exits, the kernel ends all other processes of the container, and the program removes it.
    """

    image: str
    program: str = ""
    """podman, docker or apptainer; empty for the first one that a host has."""
    args: tuple[str, ...] = ()
    """The user's own options, placed before the image."""
    cwd: str = ""
    """Mounted at the same path and used as the working directory; empty if the code is sent instead."""
    folder: str = ""
    """The job directory on this machine, named after the job; mounted read-only on hosts that share it."""
    shares_processes: bool = False
    """Whether it shares the host's processes and /tmp, because the MPI ranks of one host must see each other."""

    def __post_init__(self) -> None:
        if not self.image or self.image.startswith("-"):
            raise UsageError(
                f"--image: `{self.image}` is not an image name",
                hint="for example `--image docker.io/pytorch/pytorch:latest`",
            )
        if self.args and not self.args[0].startswith("-"):
            raise UsageError(
                f"--container-args: `{self.args[0]}` is not an option",
                hint='use options of `podman run`, for example `--container-args "-v /data:/data"`',
            )
        channel = next((word for word in self.args if re.fullmatch(_NO_CHANNEL, word)), None)
        if channel is not None:
            raise UsageError(
                f"--container-args: `{channel}` would cut the connection to the agent in the container", hint="omit it"
            )
        if self.cwd in _HIDING:
            raise UsageError(
                f"cannot mount {self.cwd} into the container: it would hide the image's own {self.cwd}",
                hint="change to your project directory",
            )

    def run(self, agent: Sequence[str]) -> tuple[str, ...]:
        """The command line that runs `agent` in the container on a host."""
        share = "share" if self.shares_processes else ""
        settled = " ".join(what for what, sign in _SETTLING if any(re.match(sign, word) for word in self.args))
        fixed = (script("container_keeper"), self.program, self.image, self.cwd, self.folder, share, settled)
        return ("/bin/sh", "-c", script("container"), "muster", *fixed, *self.args, self.image, *agent)


def container_of(spec: RunSpec, folder: str) -> Container | None:
    """The container that a run requests, or None."""
    if spec.image is None:
        return None
    return Container(
        image=spec.image,
        program=spec.container or "",
        args=spec.container_args,
        cwd="" if spec.sync else spec.cwd,
        folder=folder,
    )


@cache
def script(name: str) -> str:
    """A shell script that runs on the host, as one line."""
    lines = Path(__file__).with_name(f"{name}.sh").read_text().splitlines()
    return " ".join(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def without_scripts(command: str) -> str:
    """A command line for display, with placeholders for the 5 KB of shell scripts."""
    return command.replace(script("container"), "(starts a container)").replace(
        script("container_keeper"), "(keeps it)"
    )


def pull_in(line: str) -> tuple[str, str] | None:
    """The host and the image, if this line says that an image is being pulled."""
    found = re.fullmatch(r"(\S+) is pulling (\S+)", line.strip())
    return (found[1], found[2]) if found else None


def too_slow_pull(host: str, image: str) -> HostError:
    """The error if an agent has not started within PULL_LIMIT."""
    return HostError(
        host,
        f"pulling {image} and starting the agent took more than {PULL_LIMIT / 60:.0f} minutes",
        hint="pull the image beforehand",
    )


def container_reason(box: Container, text: str) -> tuple[str, str] | None:
    """Error and hint for a container failure, if this output of the program or of our script contains one."""
    failed = re.search(_PROGRAM_FAILED, text)
    # The last output of the program before our own message; an engine's output may come before or after.
    before = text[: failed.start() if failed else None].splitlines()
    said = [line for line in before if line.strip()]
    last = said[-1].strip() if said else ""
    program = failed[1] if failed else box.program or "the container program"
    for sign, message, hint in _FAILURES:
        found = re.search(sign, text)
        if found:
            words = {
                "image": box.image,
                "program": program,
                "last": last,
                "cause": last.rpartition(": ")[2],
                **found.groupdict(),
            }
            return message.format_map(words), hint.format_map(words)
    return None


def code_reason(box: Container, code: int) -> tuple[str, str] | None:
    """Error and hint for a container failure, from the exit code alone."""
    return next(((words.format(image=box.image), hint) for number, words, hint in _CODES if number == code), None)


def host_in(text: str) -> str | None:
    """The host whose container failed, according to this output."""
    own = re.search(_OWN, text)
    return own[1] if own else None


def explain_container_failure(host: str, box: Container, code: int | None, text: str) -> HostError:
    """Explain the output of a container program that did not start an agent."""
    reason = container_reason(box, text)
    if reason is not None:
        return HostError(host, reason[0], hint=reason[1])
    last = text.splitlines()[-1:] or [f"exit code {code}"]
    return HostError(
        host, f"the agent did not start in {box.image}: {last[0]}", hint="run the image by hand on that host"
    )


_OWN = r"muster: (\S+): .+"
_PROGRAM_FAILED = r"muster: \S+: (\S+) (?:could not pull|exited with code) "

_OTHER_PROGRAM = "install it there, or choose another with `--container {}`".format("|".join(PROGRAMS))
_OTHER_PYTHON = "give the path of the Python inside the image with `--python PATH`"
_SYNC = "use `--sync` to send the working directory to every host first"
_PULL = "load it there, or check the name with `{program} pull {image}`"
_SEE_OUTPUT = "see the output file of the job"

_FAILURES = (
    (
        r"muster: \S+: (?P<what>found no podman, docker or apptainer)",
        "{what}",
        "install one of them there, or run without `--image`",
    ),
    (r"muster: \S+: (?P<what>.* not found)", "{what}", _OTHER_PROGRAM),
    (
        r"muster: \S+: directory (?P<folder>.*) does not exist",
        "could not mount the working directory {folder}: it does not exist there",
        _SYNC,
    ),
    (
        r"muster: \S+: (?P<what>could not create directory .*)",
        "{what}",
        "set XDG_STATE_HOME there to a directory you can write to",
    ),
    (
        r"(?i)permission denied.*docker|docker.*permission denied|dial unix .*permission denied",
        "docker denied access",
        "add yourself to the group `docker` there, or use `--container podman`",
    ),
    (
        r"Cannot connect to the Docker daemon",
        "the Docker daemon is not running there",
        "start it, or use `--container podman`",
    ),
    (
        r"could not select device driver",
        "docker cannot pass GPUs to containers there",
        "install nvidia-container-toolkit on that host",
    ),
    (
        r"did not resolve to an alias|short-name resolution enforced",
        "image {image} not found, and podman does not know its registry",
        "use its full name, for example `docker.io/{image}`",
    ),
    (
        r"(?i)unauthorized|authentication required|pull access denied|requested access .* denied",
        "image {image} not found, and the registry denied access to it",
        "check the name; if the image is private, log in there first: `{program} login`",
    ),
    (
        r"muster: \S+: \S+ could not pull ",
        "image {image} not found, and {program} could not pull it ({cause})",
        _PULL,
    ),
    (
        r"(?i)could not open image",
        "apptainer could not find the image {image}",
        "give a file, or a source such as `docker://{image}`",
    ),
    (
        r"(?i)image not known|no such image|unable to find image|while making image",
        "image {image} not found",
        _PULL,
    ),
    (
        r"(?i)executable file (?:\S+ )?not found|\bexec\b.* no such file or directory|python\S* not found",
        "Python not found in {image}",
        _OTHER_PYTHON,
    ),
    (
        r"muster: Python (?P<what>3.9 or newer is required.*)",
        "Python {what} in {image}",
        _OTHER_PYTHON,
    ),
    (
        _PROGRAM_FAILED,
        "{program} could not start {image}: {last}",
        "run it by hand there: `{program} run --rm {image} true`",
    ),
)

_CODES = (
    (121, "container program not found", _OTHER_PROGRAM),
    (122, "could not mount the working directory: it does not exist there", _SYNC),
    (123, "image {image} not found, and it could not be pulled", _SEE_OUTPUT),
    (125, "the container did not start", _SEE_OUTPUT),
    (126, "the Python in {image} is not executable", _OTHER_PYTHON),
    (127, "Python not found in {image}", _OTHER_PYTHON),
)
