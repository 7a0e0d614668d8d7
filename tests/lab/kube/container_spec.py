"""From a pod's document to what its containers run: command, environment, volumes."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from kube.container import ContainerSpec
from kube.http_server import Json

Lookup = Callable[[str, str], Json | None]
"""Resource and name to the object of the pod's namespace."""


class ConfigMissing(Exception):
    """A container needs a Secret, a ConfigMap or a key that does not exist."""


def container_spec(pod: Json, container: Json, base_env: Mapping[str, str], lookup: Lookup) -> ContainerSpec:
    """What a container of a pod runs."""
    spec: Json = pod["spec"]
    security: Json = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
    env = dict(base_env)
    for one in container.get("env", []):
        env[one["name"]] = _expanded(_value(one, pod, lookup), env)
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    command = [_expanded(word, env) for word in (*container.get("command", ()), *container.get("args", ()))]
    return ContainerSpec(
        name=container["name"],
        command=tuple(command or ("sleep", "infinity")),
        env=env,
        hostname=spec.get("hostname", pod["metadata"]["name"])[:63],
        working_dir=container.get("workingDir", "/"),
        user=int(security.get("runAsUser", 1000 if security.get("runAsNonRoot") else 0)),
        locked_down=bool(security.get("readOnlyRootFilesystem")),
        mounts=tuple(
            _mount(volumes[mount["name"]], mount["mountPath"], lookup) for mount in container.get("volumeMounts", [])
        ),
    )


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by a variable that is known."""
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda found: env.get(found[1], found[0]), text)


def _value(variable: Json, pod: Json, lookup: Lookup) -> str:
    source: Json = variable.get("valueFrom", {})
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    for reference, resource in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if reference in source:
            wanted = source[reference]
            return _data(resource, wanted["name"], lookup)[wanted["key"]].decode()
    return str(variable.get("value", ""))


def _field(pod: Json, path: str) -> str:
    found = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if found:
        return str(pod["metadata"].get(found[1], {}).get(found[2], ""))
    current: Any = pod
    for part in path.split("."):
        current = current.get(part, "")
    return str(current)


def _data(resource: str, name: str, lookup: Lookup) -> dict[str, bytes]:
    found = lookup(resource, name)
    if found is None:
        raise ConfigMissing(f'{resource.rstrip("s")} "{name}" not found')
    data: dict[str, str] = found.get("data", {})
    decode = base64.b64decode if resource == "secrets" else str.encode
    return {key: decode(text) for key, text in data.items()}


def _mount(volume: Json, path: str, lookup: Lookup) -> str:
    """The shell command that mounts a volume."""
    target = shlex.quote(path)
    if "hostPath" in volume:
        source = shlex.quote(volume["hostPath"]["path"])
        return f"mkdir -p {target}; [ {source} = {target} ] || mount --bind {source} {target}"
    size = str(volume.get("emptyDir", {}).get("sizeLimit", "256Mi")).removesuffix("i").lower()
    lines = [f"mkdir -p {target}", f"mount -t tmpfs -o mode=1777,size={size} volume {target}"]
    for kind, resource, named in (("secret", "secrets", "secretName"), ("configMap", "configmaps", "name")):
        if kind in volume:
            data = _data(resource, volume[kind][named], lookup)
            items = volume[kind].get("items") or [{"key": key, "path": key} for key in data]
            for item in items:
                text = base64.b64encode(data[item["key"]]).decode()
                lines.append(f"printf %s {text} | base64 -d > {target}/{shlex.quote(item['path'])}")
    return "\n".join(lines)
