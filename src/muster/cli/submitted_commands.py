"""Commands about a job of `muster submit --k8s` whose first pod does not run: it waits, or it has ended."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from muster.api.arguments import natural
from muster.engines.kubernetes.submitted import FirstPod, SubmittedJob
from muster.errors import HostError, MusterError
from muster.jobs.job_folders import short_id
from muster.jobs.remote_states import refresh

_ENDED = ("Succeeded", "Failed")


def without_pod(name: str, argv: Sequence[str], folder: Path, submitted: SubmittedJob) -> int | None:
    """Do what a command can do without the controller, and return the exit code; None if the first pod runs."""
    pod = submitted.first_pod()
    if pod is not None and pod.phase == "Running":
        return None
    refresh([folder])
    if name == "stop":
        return _stop(folder, submitted, pod)
    if pod is None:
        raise MusterError(
            f"job {folder.name} has no pods, yet or any more",
            hint=f"see `kubectl get {' '.join(submitted.where)} {submitted.kind},pods`",
        )
    if pod.phase not in _ENDED:
        why = f": {pod.reason}" if pod.reason else ""
        raise HostError(
            pod.name,
            f"has not started yet{why}",
            hint=f"see `kubectl describe {' '.join(submitted.where)} pod {pod.name}`; "
            f"`muster stop {short_id(folder.name)}` deletes the job",
        )
    if name == "logs":
        return _logs(argv, submitted, pod)
    raise HostError(
        pod.name,
        f"has ended with exit code {pod.exit_code}" + (f" ({pod.reason})" if pod.reason else ""),
        hint=f"`muster logs {short_id(folder.name)}` prints its output",
    )


def _stop(folder: Path, submitted: SubmittedJob, pod: FirstPod | None) -> int:
    """Delete a job whose controller does not run yet, which nobody else could stop."""
    if pod is not None and pod.phase in _ENDED:
        sys.stderr.write(f"muster: job {folder.name} has ended with exit code {pod.exit_code}\n")
        return 0
    submitted.delete()
    sys.stderr.write(f"muster: deleted {submitted.kind} {submitted.name}, which had not started\n")
    return 0


def _logs(argv: Sequence[str], submitted: SubmittedJob, pod: FirstPod) -> int:
    """Print what the controller has printed: the lines of all ranks, and Muster's own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--lines", type=natural)
    parser.add_argument("-f", "--follow", action="store_true")
    parser.add_argument("-t", "--timestamps", action="store_true")
    chosen, rest = parser.parse_known_args(list(argv))
    ignored = [word for word in rest if word.startswith("-")]
    if ignored:
        sys.stderr.write(f"muster: ignoring {', '.join(ignored)}: the job has ended, and its pod's log has all lines\n")
    options = (
        *((f"--tail={chosen.lines}",) if chosen.lines is not None else ()),
        *(("--timestamps",) if chosen.timestamps else ()),
    )
    return subprocess.run(submitted.logs_argv(pod.name, *options), stdin=subprocess.DEVNULL).returncode
