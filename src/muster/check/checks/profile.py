"""The shell profile of a host says nothing to programs that log in."""

from __future__ import annotations

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = (
    "scp, rsync and mpirun break: `protocol error`, `Received message too long`, or garbage where numbers should be"
)

GUARDS = {
    # shell: (its file, the line that ends it for programs)
    "bash": ("~/.bashrc", r"case \$- in *i*) ;; *) return ;; esac"),
    "sh": ("~/.profile", r"case \$- in *i*) ;; *) return ;; esac"),
    "zsh": ("~/.zshenv", "[[ -o interactive ]] || return"),
    "tcsh": ("~/.cshrc", r"if (! \$?prompt) exit"),
    "csh": ("~/.cshrc", r"if (! \$?prompt) exit"),
}


def judge(cluster: Cluster) -> Findings:
    """Muster skips such words, so it is a note."""
    files = cluster.answers(operating_system.profile)
    for machine in cluster.machines:
        said = machine.noise.strip()
        if not said:
            continue
        system = machine.answer(operating_system.system)
        shell = system["shell"].rpartition("/")[2] if system else ""
        path, guard = GUARDS.get(shell, ("", ""))
        fix = Fix(say="let the profile print only where `$-` contains i, in an interactive shell")
        if path in files.get(machine.name, []):
            fix = Fix(command=f'sed -i "1i {guard}" {path}', on=machine.name)
        what = f"its shell profile prints where nobody reads it: `{said.splitlines()[0][:60]}`"
        yield Finding("note", (machine.name,), what, SYMPTOM, fix, row=21)


CHECK = Check(probe=operating_system.profile, judge=judge)
