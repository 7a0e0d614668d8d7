"""`muster submit --k8s`: writes a manifest whose pods all run one `muster run`, and creates it with kubectl."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from muster.api.run_options import check_env_files, spec_of
from muster.api.torchrun_options import refuse
from muster.cli import run
from muster.engines.kubernetes.kubectl import ask_kubectl, current_context, explain_kubectl, find_kubectl
from muster.engines.kubernetes.manifest import PodRequest, job_object, manifest_text
from muster.engines.kubernetes.submitted import SubmittedJob
from muster.errors import MusterError, UsageError
from muster.hosts import Host
from muster.job import make_job_folder, new_job_id
from muster.jobs.job_folders import short_id
from muster.jobs.remote_place import RemotePlace, write_place, write_state_copy
from muster.jobs.state import HostState, JobState
from muster.submit.batch_script import join
from muster.submit.batch_units import read_memory, read_time
from muster.submit.request import check_name, job_name, without_secrets
from muster.user_file import read_user_file

if TYPE_CHECKING:
    from muster.cli.submit import CommandLine

_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9][A-Za-z0-9._-]*")
"""The name of a resource that a vendor's device plugin offers."""

_LONGEST_NAME = 40
"""Characters of a Job's name before its end; with the index, a pod's hostname must stay below 64."""

_ASK_LIMIT = 10
"""Seconds for the API server to say which kinds it knows."""

_ELSEWHERE = {
    "partition": ("--partition", "put the label of your queueing system into a file for --overlay"),
    "account": ("--account", "put a label into a file for --overlay"),
    "requeue": (
        "--requeue",
        "use `--min-hosts N` or `--spares N`: pods that are evicted or preempted are then replaced",
    ),
    "signal": ("--signal", "`--time` ends pods with SIGTERM first"),
    "extra": ("--extra", "put more fields into a file for --overlay"),
    "modules": ("--module", "install it in the image"),
}
"""Options for other schedulers, by their name, and what to do instead."""


def submit_to_kubernetes(options: argparse.Namespace, line: CommandLine) -> int:
    """Print or create the objects that the command line describes, and return the exit code."""
    request, namespace = make_request(options, line)
    place = _place(namespace) if not options.dry_run else None
    jobset = _knows_jobset(place)
    job = job_object(request, jobset=jobset)
    if options.overlay is not None:
        job = with_overlay(job, options.overlay)
    text = manifest_text(request, job, jobset=jobset)
    if place is None:
        sys.stdout.write(text)
        return 0
    submitted = SubmittedJob(
        context=place[0],
        namespace=place[1],
        kind="jobset" if jobset else "job",
        name=request.name,
        job_id=request.job_id,
        python=_python(options.venv),
    )
    file = _create(text, request.name, submitted)
    job, there = short_id(request.job_id), f" -n {namespace}" if namespace else ""
    delete = f"kubectl delete{there} -f {file.name}"
    try:
        _keep(request, submitted, line.script)
    except (MusterError, OSError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MusterError(
            f"submitted {submitted.kind} {request.name}, but could not record it on this machine ({why})",
            hint=f"delete it with `{delete}`",
        ) from None
    steps = [
        (f"muster logs -f {job}", "follow its output, once its first pod runs"),
        (f"muster stop {job}", "stop it"),
        (f"kubectl get pods{there} -l muster/job={request.job_id}", "show its pods, also those that wait"),
        (delete, "remove it with its pods and their logs"),
    ]
    width = max(len(step) for step, _ in steps)
    said = [f"submitted {submitted.kind} {request.name} to namespace {place[1]}; its manifest is {file.name}"]
    said += [f"  {step:<{width}}  {purpose}" for step, purpose in steps]
    sys.stderr.write("\n".join(said) + "\n")
    print(request.job_id)
    return 0


def make_request(options: argparse.Namespace, line: CommandLine) -> tuple[PodRequest, str | None]:
    """Return the request and its namespace; checks everything that can be checked before pods start."""
    for dest, (flag, instead) in _ELSEWHERE.items():
        if getattr(options, dest):
            raise UsageError(f"{flag} has no effect with --k8s", hint=instead)
    typed = ("muster", "submit", *line.own, *line.run)
    run_options, script = run.parse([*line.run, *line.script], places=False, typed=typed)
    for dest in ("hosts", "hostfile", "lab", "pods"):
        if getattr(run_options, dest, None) is not None:
            raise UsageError(f"--{dest} cannot be used with `muster submit --k8s`", hint="set --nodes instead")
    if not script:
        example = "muster submit --k8s --nodes 2 --gpus-per-node 8 --image IMAGE train.py"
        raise UsageError("no script to run", hint=f"for example `{example}`")
    if any("\udc80" <= letter <= "\udcff" for word in (*line.own, *line.run, *line.script) for letter in word):
        raise UsageError("the command line is not valid UTF-8, as a manifest must be", hint="check names of files")
    refuse(run_options)
    run.check_controller(run_options)
    check_env_files(run_options)
    spec = spec_of(run_options, script)
    if spec.image is None:
        raise UsageError(
            "--k8s needs an image: the pods run Muster and the script from it",
            hint="add `--image IMAGE`; the image needs torch, `pip install torchmuster` and your code",
        )
    nodes = options.nodes or 1
    if spec.spares and spec.spares >= nodes:
        hint = f"request more than {nodes} with --nodes"
        raise UsageError(f"--spares {spec.spares} leaves no pod for ranks", hint=hint)
    if not _RESOURCE.fullmatch(options.gpu_resource):
        raise UsageError(
            f"--gpu-resource {options.gpu_resource}: not the name of a resource",
            hint="`kubectl describe nodes` lists them, for example amd.com/gpu",
        )
    name = check_name(options.name) if options.name is not None else job_name(script[0], module=run_options.module)
    job_id = new_job_id(script[0], re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:_LONGEST_NAME])
    request = PodRequest(
        typed=_typed(line),
        command=(_muster(options.venv), "run", *_for_pods(line.run), *line.script),
        job_id=job_id,
        name=_dns_label(name, job_id),
        image=spec.image,
        token=secrets.token_hex(32),
        nodes=nodes,
        gpus=options.gpus_per_node,
        gpu_resource=options.gpu_resource,
        memory=read_memory(options.mem) if options.mem is not None else None,
        seconds=read_time(options.time) if options.time is not None else None,
        grace=spec.grace,
        replaces_pods=bool(spec.spares or spec.min_hosts),
        env=spec.env,
    )
    return request, spec.namespace


def _typed(line: CommandLine) -> str:
    """The command line for the manifest, without secrets."""
    own = [word for word in line.own if word != "--dry-run"]
    return join(("muster", "submit", *own, *without_secrets(line.run)[0], *line.script))


def _for_pods(words: Sequence[str]) -> list[str]:
    """The options of `muster run` for the pods: without the image, and without variables, which the pods have."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in ("--image", "--env", "--env-file", "-n", "--namespace"):
            if not equals:
                next(rest, None)
            continue
        kept.append(word)
    return kept


def _dns_label(name: str, job_id: str) -> str:
    """A name that Kubernetes accepts, with the random end of the job's id."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")
    return f"{plain}-{job_id.rpartition('-')[2]}"


def _muster(venv: str | None) -> str:
    """The command in the image."""
    return "muster" if venv is None else f"{venv.rstrip('/')}/bin/muster"


def _python(venv: str | None) -> str:
    """The interpreter in the image."""
    return "python3" if venv is None else f"{venv.rstrip('/')}/bin/python"


# --- the cluster --------------------------------------------------------------------------------------------------


def _place(namespace: str | None) -> tuple[str, str]:
    """The context and the namespace of kubectl; inside a cluster there is no context."""
    find_kubectl()
    context = current_context()
    if namespace:
        return context, namespace
    chosen = ask_kubectl("config", "view", "--minify", "-o", "jsonpath={..namespace}").strip() if context else ""
    return context, chosen or "default"


def _knows_jobset(place: tuple[str, str] | None) -> bool:
    """Whether the cluster has JobSet; False if it does not answer, which submitting then reports."""
    where = ("--context", place[0]) if place is not None and place[0] else ()
    try:
        argv = [find_kubectl(), "get", "--raw", "/apis/jobset.x-k8s.io", *where, f"--request-timeout={_ASK_LIMIT}s"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=3 * _ASK_LIMIT)
    except (UsageError, OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def with_overlay(job: dict[str, Any], path: str) -> dict[str, Any]:
    """The Job with the fields of the user's file, which kubectl merges as it does in `kubectl patch`."""
    try:
        patch = read_user_file(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"--overlay {path}: could not read it ({why.lower()})", hint="give a YAML or JSON file"
        ) from None
    argv = [find_kubectl(), "patch", "--local", "-f", "-", "--type=strategic", "-o", "json"]
    try:
        with tempfile.NamedTemporaryFile(prefix="muster-") as file:  # mode 0600; everybody can read arguments
            file.write(patch)
            file.flush()
            argv.append(f"--patch-file={file.name}")
            done = subprocess.run(argv, input=json.dumps(job).encode(), capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise MusterError("kubectl did not merge --overlay within 60 s", hint="try again") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise UsageError(
            f"--overlay {path}: kubectl could not merge it ({said[0].removeprefix('error: ')})",
            hint="write fields of a Job, such as `spec: {template: {spec: {nodeSelector: {pool: a100}}}}`",
        )
    return _in_order(json.loads(done.stdout), job)


def _in_order(merged: Any, like: Any) -> Any:
    """The same object with its keys in the order of another one, because kubectl sorts them."""
    if isinstance(merged, list):
        found = cast("list[Any]", merged)
        known = cast("list[Any]", like if isinstance(like, list) else [])
        by_name = {_name(each): each for each in known}
        return [_in_order(each, by_name.get(_name(each), {"name": None})) for each in found]
    if not isinstance(merged, dict):
        return merged
    fields, order = cast("dict[str, Any]", merged), cast("dict[str, Any]", like if isinstance(like, dict) else {})
    keys = [*(key for key in order if key in fields), *(key for key in fields if key not in order)]
    return {key: _in_order(fields[key], order.get(key)) for key in keys}


def _name(item: Any) -> Any:
    return cast("dict[str, Any]", item).get("name") if isinstance(item, dict) else None


def _create(text: str, name: str, submitted: SubmittedJob) -> Path:
    """Write the manifest into the working directory, and create its objects; removes both if that fails."""
    path = Path(f"{name}.yaml")
    try:
        # Readable by the user alone: it contains the secrets of the job.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise MusterError(f"{path}: could not write the manifest ({error.strerror})") from None
    try:
        argv = [find_kubectl(), "create", *submitted.where, "-f", str(path)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        if done.returncode:
            raise explain_kubectl(done.stderr.decode(errors="replace"))
    except BaseException as error:
        path.unlink(missing_ok=True)
        _clean_up(submitted)
        if isinstance(error, subprocess.TimeoutExpired):
            raise MusterError("kubectl did not answer within 120 s", hint="check `kubectl get jobs`") from None
        raise
    return path


def _clean_up(submitted: SubmittedJob) -> None:
    """Delete what was created before something was refused, as far as that is allowed."""
    try:
        submitted.delete()
    except MusterError:
        pass  # the first error is the one to report


def _keep(request: PodRequest, submitted: SubmittedJob, script: Sequence[str]) -> None:
    """Remember the job on this machine, where other commands look for it."""
    folder = make_job_folder(request.job_id)
    host = f"{request.name}-0"
    write_place(folder, RemotePlace(host=Host(name=host), submitted=submitted, confirmed=True))
    now = time.time()
    state = JobState(
        id=request.job_id,
        command=join(script),
        cwd=os.getcwd(),
        engine="kubernetes-job",
        begin=now,
        now=now,
        phase="connecting",
        controller=0,
        host=host,
        hosts=tuple(HostState(name=f"{request.name}-{index}") for index in range(request.nodes)),
    )
    write_state_copy(folder, state.as_data())
