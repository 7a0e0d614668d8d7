"""The shell profile of a host prints nothing in non-interactive logins."""

from __future__ import annotations

from muster.agent.probes import operating_system
from muster.check.cluster_facts import Cluster
from muster.check.definition import Check
from muster.check.finding import Finding, Findings, Fix

SYMPTOM = "scp, rsync and mpirun fail with `protocol error`, `Received message too long`, or garbled output"

GUARDS = {
    # shell: (its profile, the line that ends it in non-interactive shells)
    "bash": ("~/.bashrc", r"case \$- in *i*) ;; *) return ;; esac"),
    "sh": ("~/.profile", r"case \$- in *i*) ;; *) return ;; esac"),
    "zsh": ("~/.zshenv", "[[ -o interactive ]] || return"),
    "tcsh": ("~/.cshrc", r"if (! \$?prompt) exit"),
    "csh": ("~/.cshrc", r"if (! \$?prompt) exit"),
}


def judge(cluster: Cluster) -> Findings:
    """A note, because Muster skips such output."""
    files = cluster.answers(operating_system.profile)
    for machine in cluster.machines:
        said = machine.noise.strip()
        if not said:
            continue
        system = machine.answer(operating_system.system)
        shell = system["shell"].rpartition("/")[2] if system else ""
        path, guard = GUARDS.get(shell, ("", ""))
        fix = Fix(say="let the profile print only in interactive shells, where `$-` contains i")
        if path in files.get(machine.name, []):
            fix = Fix(command=f'sed -i "1i {guard}" {path}', on=machine.name)
        what = f"the shell profile prints in non-interactive logins: `{said.splitlines()[0][:60]}`"
        yield Finding("note", (machine.name,), what, SYMPTOM, fix, row=21)


CHECK = Check(probe=operating_system.profile, judge=judge)
