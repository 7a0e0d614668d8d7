"""Simulated hardware and services that lab hosts do not have: programs and files that look like the real ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.scoreboard.stage import Stage

NVIDIA_SMI = """\
#!/usr/bin/python3
# Answers as the real one (580.159.04 on an H200) does, from /run/shim/gpus.json.
import json, os, sys
state = json.load(open("/run/shim/gpus.json"))
arguments = sys.argv[1:]
if "--gpu-reset" in arguments:
    number = int(arguments[arguments.index("-i") + 1])
    state["gpus"][number].update({"ecc.errors.uncorrected.volatile.total": "0"})
    json.dump(state, open("/run/shim/gpus.json", "w"))
for argument in arguments:
    what, _, fields = argument.partition("=")
    if what == "--query-gpu":
        for gpu in state["gpus"]:
            print(", ".join(gpu.get(field, "[N/A]") for field in fields.split(",")))
    elif what == "--query-compute-apps":
        for process in state["processes"]:
            if os.path.exists(f"/proc/{process['pid']}"):
                print(", ".join(process[field] for field in fields.split(",")))
    elif what == "--query-remapped-rows":
        for gpu in state["gpus"]:
            print(", ".join(gpu.get(field.replace("gpu_uuid", "uuid"), "No") for field in fields.split(",")))
"""


def gpu(host: str, number: int, **changes: str) -> dict[str, str]:
    """A healthy H200."""
    return {
        "index": str(number),
        "uuid": f"GPU-{host}-{number}",
        "name": "NVIDIA H200",
        "driver_version": "580.159.04",
        "memory.total": "143771",
        "memory.used": "0",
        "temperature.gpu": "35",
        "ecc.errors.uncorrected.volatile.total": "0",
        "clocks_throttle_reasons.hw_thermal_slowdown": "Not Active",
        "clocks_throttle_reasons.hw_power_brake_slowdown": "Not Active",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "fabric.state": "Completed",
        **changes,
    }


def put_gpus(stage: Stage, host: str, gpus: Sequence[dict[str, str]], processes: Sequence[dict[str, str]] = ()) -> None:
    """Give a host an nvidia-smi that reports these GPUs and processes."""
    state: dict[str, Any] = {"gpus": list(gpus), "processes": list(processes)}
    stage.write(host, "/run/shim/gpus.json", json.dumps(state))
    stage.write(host, "/usr/local/bin/nvidia-smi", NVIDIA_SMI, 0o755)


def healthy_gpus(stage: Stage, count: int) -> None:
    """The same GPUs on every host, and a torch that can use them."""
    for host in stage.lab.names:
        put_gpus(stage, host, [gpu(host, number) for number in range(count)])
        cuda_torch(stage, host)


def cuda_torch(stage: Stage, host: str) -> None:
    """Make the host's torch report that it was built for CUDA."""
    edit_torch_version(stage, host, "s/^cuda.*/cuda: Optional[str] = '13.0'/")


def edit_torch_version(stage: Stage, host: str, expression: str) -> None:
    """Change, by an expression of sed, what a host's torch reports of itself."""
    edit_for_one_host(stage, host, f"{torch_folder()}/version.py", expression)


def edit_for_one_host(stage: Stage, host: str, path: str, expression: str) -> None:
    """Mount an edited copy of a file over it: hosts share an installation below /tmp with this machine."""
    stage.sh(host, f'new=$(mktemp) && sed "{expression}" {path} > $new && chmod 644 $new && mount --bind $new {path}')


def torch_folder() -> str:
    """The directory of torch."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    return spec.submodule_search_locations[0]


SYSTEMCTL = """\
#!/bin/sh
case "$1" in
  is-active) cat /run/shim/fabricmanager; grep -q ^active /run/shim/fabricmanager ;;
  start | restart) echo active > /run/shim/fabricmanager ;;
esac
"""


def put_fabric_manager(stage: Stage, host: str, state: str, version: str = "580.159.04") -> None:
    """NVSwitches and their fabric manager."""
    stage.sh(host, "mknod /dev/nvidia-nvswitch0 c 1 3; mkdir -p /run/shim")
    stage.write(host, "/run/shim/fabricmanager", state + "\n")
    stage.write(host, "/usr/local/bin/systemctl", SYSTEMCTL, 0o755)
    stage.write(
        host, "/usr/local/bin/nv-fabricmanager", f"#!/bin/sh\necho 'Fabric Manager version is : {version}'\n", 0o755
    )


MODPROBE = "#!/bin/sh\nmkdir -p /dev/infiniband && mknod /dev/infiniband/uverbs0 c 1 3\n"

INFINIBAND = """\
set -e
mkdir -p /run/class/net /run/class/infiniband/mlx5_0/ports/1
mount --bind /sys/class/net /run/class/net
echo '4: ACTIVE' > /run/class/infiniband/mlx5_0/ports/1/state
mount --rbind /run/class /sys/class
"""


MEMLOCK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>
/* What pam_limits would do at a login, on a machine that may not raise its own limits. */
int getrlimit64(__rlimit_resource_t what, struct rlimit64 *limit) {
  static int (*real)(__rlimit_resource_t, struct rlimit64 *);
  if (!real) real = dlsym(RTLD_NEXT, "getrlimit64");
  int code = real(what, limit);
  if (what == RLIMIT_MEMLOCK) {
    int little = access("/run/shim/little-memlock", F_OK) == 0 && access("/etc/security/limits.d/memlock.conf", F_OK);
    limit->rlim_cur = limit->rlim_max = little ? 65536 : RLIM64_INFINITY;
  }
  return code;
}
"""


def put_infiniband(stage: Stage, host: str, *, devices: bool = True) -> None:
    """An InfiniBand adapter in /sys, its device file, and a sufficient limit of locked memory."""
    stage.write(host, "/run/shim/memlock.c", MEMLOCK)
    stage.sh(host, "gcc -shared -fPIC -o /run/shim/memlock.so /run/shim/memlock.c -ldl")
    stage.write(host, "/root/.bashrc", "export LD_PRELOAD=/run/shim/memlock.so\n")
    stage.env["LD_PRELOAD"] = "/run/shim/memlock.so"
    stage.sh(host, INFINIBAND)
    stage.write(host, "/usr/local/sbin/modprobe", MODPROBE, 0o755)
    stage.write(host, "/usr/local/bin/modprobe", MODPROBE, 0o755)
    if devices:
        stage.sh(host, "modprobe ib_uverbs")


FAST_CLOCK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
/* Ahead as long as the file is there. */
static int ahead(void) { return access("/run/shim/ahead", F_OK) == 0 ? 7 : 0; }
int clock_gettime(clockid_t id, struct timespec *t) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(id, t);
  if (id == CLOCK_REALTIME) t->tv_sec += ahead();
  return code;
}
"""


def put_clock_ahead(stage: Stage, host: str) -> None:
    """A clock that is 7 s ahead for every program of a login, and a chronyc that corrects it."""
    stage.write(host, "/run/shim/clock.c", FAST_CLOCK)
    stage.sh(host, "gcc -shared -fPIC -o /run/shim/clock.so /run/shim/clock.c -ldl && touch /run/shim/ahead")
    stage.write(host, "/root/.bashrc", "export LD_PRELOAD=/run/shim/clock.so\n")
    stage.write(host, "/usr/local/bin/chronyc", "#!/bin/sh\nrm -f /run/shim/ahead\n", 0o755)
