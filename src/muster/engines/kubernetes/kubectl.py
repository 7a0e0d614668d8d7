"""Runs the user's own kubectl, with its contexts, plugins and proxies, and explains what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

from muster.engines.kubernetes.pod_reasons import Json, part
from muster.errors import MusterError, UsageError

_REQUEST_LIMIT = 20
"""Seconds for one request to the API server."""

_LIMIT = 60.0
"""Seconds for one kubectl; a credential plugin may ask a slow service first."""

FORBIDDEN = re.compile(
    r'cannot (\w+) resource "([\w./-]+)"(?: in API group "([\w.-]*)")?(?:.*? namespace "([\w.-]+)")?'
)


def find_kubectl() -> str:
    """The path of kubectl, or UsageError."""
    found = shutil.which("kubectl")
    if found is None:
        raise UsageError("kubectl is not installed here", hint="install it, and check that `kubectl get pods` works")
    return found


def where_options(context: str, namespace: str | None) -> tuple[str, ...]:
    """The options of kubectl that choose cluster and namespace."""
    return (*(("--context", context) if context else ()), *(("-n", namespace) if namespace else ()))


def ask_kubectl(*words: str) -> str:
    """Run kubectl and return its output, or raise MusterError."""
    argv = (find_kubectl(), *words, f"--request-timeout={_REQUEST_LIMIT}s")
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        raise MusterError(
            f"kubectl did not answer within {_LIMIT:.0f} s", hint=f"check that `kubectl {words[0]} pods` works"
        ) from None
    if done.returncode:
        raise explain_kubectl(done.stderr.decode(errors="replace"))
    return done.stdout.decode(errors="replace")


def ask_json(*words: str) -> Json:
    """Run kubectl and return the object that it prints, which is empty if it prints nothing, or raise MusterError."""
    text = ask_kubectl(*words, "-o", "json")
    try:
        return part(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        raise MusterError(
            f"the output of `kubectl {words[0]}` is not JSON",
            hint=f"check that `kubectl {words[0]} {words[1]} -o json` prints nothing else",
        ) from None


def current_context() -> str:
    """The context that kubectl uses if none is given; empty inside a cluster, where it needs none."""
    try:
        return ask_kubectl("config", "current-context").strip()
    except MusterError:
        return ""


def current_namespace(context: str) -> str:
    """The namespace that kubectl uses in a context if none is given."""
    words = ("config", "view", "--minify", "-o", "jsonpath={..namespace}", *where_options(context, None))
    try:
        return ask_kubectl(*words).strip() or "default"
    except MusterError:  # in a pod there may be no configuration
        return "default"


def explain_kubectl(text: str) -> MusterError:
    """Turn kubectl's error output into one sentence with a hint; its exit code is 1 for everything."""
    # Lines such as `E1118 01:02:03.456789 … "Unhandled Error"` are for developers of kubectl.
    lines = [line.strip() for line in text.splitlines() if line.strip() and not re.match(r"[EWI]\d{4} ", line)]
    last = (lines or [line.strip() for line in text.splitlines() if line.strip()] or ["no message"])[-1]
    last = re.sub(r"^(error: |Error from server( \(\w+\))?: )", "", last)
    denied = FORBIDDEN.search(text)
    if denied:
        return MusterError(f"Kubernetes denied a request: {last}", hint=missing_rule(denied))
    for sign, hint in _FAILURES:
        if sign in text:
            return MusterError(f"kubectl: {last}", hint=hint)
    return MusterError(f"kubectl: {last}", hint="check that `kubectl get pods` works from here")


def missing_rule(denied: re.Match[str]) -> str:
    """The rule that a Role lacks, from the text of a refusal."""
    verb, resource, group, namespace = denied.groups()
    where = f" in namespace {namespace}" if namespace else ""
    verbs = "create, get" if resource == "pods/exec" else verb
    rule = f'{{apiGroups: ["{group or ""}"], resources: ["{resource}"], verbs: [{verbs}]}}'
    return f"add this rule to your Role{where}: {rule}"


_FAILURES = (
    ("was refused - did you specify", "check that the cluster runs, and `kubectl config current-context`"),
    ("Unable to connect to the server", "check your network or VPN, and `kubectl config current-context`"),
    ("must be logged in", "log in to the cluster, then try `kubectl get pods`"),
    ("Unauthorized", "log in to the cluster, then try `kubectl get pods`"),
    ("current-context", "choose a cluster with `kubectl config use-context NAME`"),
    ("does not exist", "`kubectl config get-contexts` lists the contexts"),
    ("unable to parse", "write a label selector, such as app=train or 'app in (a, b)'"),
)
"""What kubectl prints, and the hint."""
