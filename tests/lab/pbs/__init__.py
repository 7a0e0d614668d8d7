"""A stand-in for PBS on lab hosts, since no PBS can be installed from Debian or PyPI.

    with PbsSite(lab, folder, flavour="openpbs", kill_delay=2.0) as site:
        job = site.qsub("h1", script, select="2:ncpus=4:ngpus=2:mpiprocs=2", place="scatter", walltime=60)
        job.wait_for_output("ready")
        job.qdel()
        job.wait(30), job.exit_status, job.output

On every host there are qsub, qstat, qdel, qsig, qalter, qrerun, pbs_release_nodes, pbsdsh, pbs_tmrsh and pbs_attach,
and a mom on port 15003 that lives as long as the site. The programs are in `site.bin`: /etc/profile.d/pbs.sh puts it
first on the PATH of login shells, `site.path` is a PATH for commands a test starts, and /etc/pbs.conf names its parent
as PBS_EXEC. There is no server process: what a server knows is in files of the folder that all hosts share.

What it copies, and from where:

- seen on real OpenPBS of three and four nodes (HEAD of 2026 and 23.06.06): the environment and folder of script and
  tasks; the nodefile of each kind of request; output only through the job's file, which comes after the end, 0600;
  exit codes of pbsdsh, pbs_tmrsh, qstat and qdel; who gets which signal on qdel, qsig and at the walltime, and after
  which share of kill_delay; what survives (setsid, plain ssh) and what does not; that a dead host changes nothing; that
  of two values for a resource the first counts; jobs held for `-k oed`; a -V that does nothing; vnodes and numbers in
  exec_host; defaults of the site for chunks; a server that is down or hangs (`site.server`); a mom that dies alone
  (`site.kill_mom`); released hosts; that suspension and accounting work by session, with those that were attached; that
  scripts and tasks ignore SIGHUP
- read in OpenPBS's source (commit cd7ab5eda): the words and the loop of pbsdsh, pbs_tmrsh and pbs_attach; that an
  index beyond the nodefile wraps around; that a task's session is killed when its first process ends, but waits for
  the SIGKILL while the job is being deleted; the folding of `qstat -f`
- read in Torque's source, never run: its variables, PBS_GPUFILE, pbsdsh -u and -h, and -o as capture of stdout; no
  pbs_tmrsh, no pbs_attach, no exec_vnode

What it does not copy: users (everyone is root), queues and limits, qsub -I, dependencies, holds, hooks and cgroups
(GPUs are only counted), vnodes with names of their own, prologues, the seconds by which the real one polls late, and
the 60 s for which a job with a dead host stays in state E.
"""

from __future__ import annotations

from pbs.site import Job, PbsSite

__all__ = ["Job", "PbsSite"]
