# Starts Slurm in a lab host; sourced by its init. CONTROLLER is the host with slurmctld.
# /etc/slurm is the host's own copy, so that the configuration of the machine is not used.
rm -rf /etc/slurm
mkdir -p /etc/slurm /run/munge /var/spool/slurmd /var/spool/slurmctld
chmod 755 /run/munge # required by munged
cp /run/muster-lab/boot/{slurm,gres}.conf /etc/slurm/
# Its files are in a directory of root: Debian's belong to the user munge, which munged rejects when run as root.
munged --key-file=/run/muster-lab/boot/munge.key --seed-file=/run/munge/seed --log-file=/run/munge/munged.log \
  --pid-file=/run/munge/munged.pid </dev/null >/dev/null
start() { # the log disappears with the host, so print its end
  "$1" </dev/null >/dev/null && return
  tail -n 1 "/var/log/$1.log" >&2 2>/dev/null
  return 1
}
[ "$NAME" != "$CONTROLLER" ] || start slurmctld
start slurmd
# Wait until it listens. If it never does, the owner reports the node as missing, with the end of its log.
for _ in {1..200}; do (exec 3<>/dev/tcp/127.0.0.1/6818) 2>/dev/null && break || sleep .02; done
