#!/usr/bin/env bash
# Measures which lines and branches of src/muster the tests run: tools/coverage.sh [ARGUMENTS OF PYTEST]...
#
# sshd, slurmd and agents start interpreters too, without the variables of the test. So a .pth file in a copy of .venv
# starts coverage.py in each of them. The copy and the data are below /tmp, because lab hosts share sys.prefix with this
# machine only there; what they write elsewhere is lost with them.
set -eu
cd "$(dirname "$0")/.."
copy=/tmp/muster-coverage
if [ "$(cat "$copy/made-for" 2>/dev/null)" != "$PWD" ]; then
    rm -rf "$copy"
    cp -al .venv "$copy" 2>/dev/null || cp -aT .venv "$copy" # sed replaces files, so those of .venv stay as they are
    grep -rlI "$PWD/.venv" "$copy/bin" "$copy/pyvenv.cfg" | xargs sed -i "s#$PWD/.venv#$copy#g"
    "$copy/bin/python" -m pip install --quiet 'coverage>=7.10' # the first with `patch`
    # Read before its a1_coverage.pth, which looks at the variable.
    for folder in "$copy"/lib/python3*/site-packages; do
        echo "import os; os.environ.setdefault('COVERAGE_PROCESS_START', '$copy/settings')" >"$folder/a0_coverage.pth"
    done
    echo "$PWD" >"$copy/made-for"
fi
cat >"$copy/settings" <<END
[run]
branch = true
source = $PWD/src/muster
data_file = $copy/data/run
parallel = true
patch = subprocess, fork, execv, _exit
END
rm -rf "$copy/data"
mkdir -m 1777 "$copy/data" # ranks may run as another user
"$copy/bin/python" -m pytest -p no:cacheprovider "$@" || echo "pytest: exit code $?; see the failures above" >&2

export COVERAGE_RCFILE="$copy/settings" COVERAGE_PROCESS_START= # not for the commands below
"$copy/bin/coverage" combine --quiet
rm -f "$copy"/data/run.* # of interpreters that were killed while they wrote
"$copy/bin/coverage" report --sort=-miss --skip-covered
for package in src/muster/[a-z]*/; do
    printf '%-24s %3s %%\n' "$package" "$("$copy/bin/coverage" report --include="$package*" --format=total)"
done
