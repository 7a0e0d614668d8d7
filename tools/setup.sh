#!/usr/bin/env bash
# Prepares this checkout for `make demo` and `make test`: a `.venv` with pinned versions and, as root on Debian or
# Ubuntu, the packages of the virtual cluster and a headless browser. Without root it lists what is missing and continues
# with what is installed.
# PYTHON=python3.12 chooses the interpreter. A second run finds everything in place and prints nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
INSTALLED=$VENV/installed.cksum # checksum of the files that determine the contents of .venv
LAB_PROGRAMS=(
    ssh:openssh-client sshd:openssh-server ip:iproute2 nft:nftables ethtool:ethtool unshare:util-linux ps:procps
    # About 200 MB, half of it podman. Plain mpirun remains that of Open MPI: Debian gives it the higher priority.
    mpirun.openmpi:openmpi-bin mpiexec.hydra:mpich podman:podman crun:crun
    munged:munge slurmctld:slurmctld slurmd:slurmd srun:slurm-client
    kubectl:kubernetes-client
    zsh:zsh fish:fish mandoc:mandoc # for the tests of completion, Ctrl-Z and the man page
)
BROWSERS=(chromium-headless-shell chromium google-chrome)
SERVICE_POLICY=/usr/sbin/policy-rc.d # Debian runs it before it starts a service

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
    say "$@"
    exit 1
}
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

install_packages() ( # a subshell, so that its trap is its own
    apt=(timeout 900 apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2)
    say "installing Debian packages: $*"
    log=$(mktemp)
    leftovers=("$log")
    trap 'rm -f "${leftovers[@]}"' EXIT
    if [ ! -e "$SERVICE_POLICY" ]; then
        # The lab starts sshd, munged and so on in its own hosts; nothing should start on this machine.
        leftovers+=("$SERVICE_POLICY")
        printf '#!/bin/sh\nexit 101\n' >"$SERVICE_POLICY"
        chmod 755 "$SERVICE_POLICY"
    fi
    if ! { "${apt[@]}" update && DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "$@"; } \
        >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        say "apt-get failed to install them; see its output above"
    fi
)

missing_lab_packages() {
    local pair
    for pair in "${LAB_PROGRAMS[@]}"; do
        # sshd, nft and ethtool are in directories that are not in an ordinary user's PATH.
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || printf '%s\n' "${pair##*:}"
    done
}

prepare_lab() {
    local missing
    if [ "$(uname)" != Linux ]; then
        say "the virtual cluster needs Linux; tests that use it are skipped"
        return
    fi
    missing=$(missing_lab_packages | xargs)
    # shellcheck disable=SC2086 # one word per package
    if [ -n "$missing" ] && can_install; then
        install_packages $missing
        missing=$(missing_lab_packages | xargs)
    fi
    if [ -n "$missing" ]; then
        say "missing Debian packages: $missing"
        say "tests that need them are skipped; install them with: sudo apt-get install $missing"
    fi
}

prepare_browser() { # separately: some versions of Debian and Ubuntu lack the package, and apt would then install nothing
    command -v "${BROWSERS[@]}" >/dev/null && return
    [ "$(uname)" = Linux ] && can_install && install_packages chromium-headless-shell
    command -v "${BROWSERS[@]}" >/dev/null || say "Chromium is not installed, so the dashboard is not tested in a browser"
}

check_python() {
    command -v "$1" >/dev/null || die "there is no $1; install Python 3.10 or newer, or name one: make PYTHON=python3.12 …"
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        die "$1 is $("$1" --version 2>&1); Muster needs 3.10 or newer: make PYTHON=python3.12 …"
}

make_venv() {
    local python=$1 package
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian and Ubuntu keep these two modules in a package of their own.
        package=$("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')
        can_install && install_packages "$package"
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            die "$python cannot make a virtual environment; type: sudo apt-get install $package"
    fi
    "$python" -m venv --clear "$VENV"
}

prepare_venv() {
    local python=${PYTHON:-python3} wanted
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        check_python "$python"
        say "creating $VENV with $("$python" --version 2>&1)"
        make_venv "$python"
    elif [ -n "${PYTHON:-}" ] && [ "$("$python" --version 2>&1)" != "$("$VENV/bin/python" --version 2>&1)" ]; then
        check_python "$python"
        say "re-creating $VENV with $("$python" --version 2>&1)"
        make_venv "$python"
    fi
    wanted=$(cat requirements/*.txt pyproject.toml | cksum)
    if [ "$(cat "$INSTALLED" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    say "installing torch and the test tools in $VENV (takes minutes the first time)"
    local pip=("$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-input)
    # torch first and alone, so that nothing else can install a different version of it.
    "${pip[@]}" -r requirements/torch.txt
    "${pip[@]}" -r requirements/dev.txt -r requirements/docs.txt
    "${pip[@]}" --no-build-isolation --no-deps -e .
    printf '%s\n' "$wanted" >"$INSTALLED"
}

prepare_lab
prepare_browser
prepare_venv
