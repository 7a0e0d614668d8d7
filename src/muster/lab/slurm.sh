# Starts Slurm in a lab host; sourced by its init. CONTROLLER is the host with slurmctld.
# /etc/slurm is the host's own copy: whatever the machine is configured for must not be seen here.
rm -rf /etc/slurm
mkdir -p /etc/slurm /run/munge /var/spool/slurmd /var/spool/slurmctld
chmod 755 /run/munge # munged insists
cp /run/muster-lab/boot/{slurm,gres}.conf /etc/slurm/
# Its files lie in a folder of root's: Debian's own belong to the user munge, which munged run by root refuses.
munged --key-file=/run/muster-lab/boot/munge.key --seed-file=/run/munge/seed --log-file=/run/munge/munged.log \
  --pid-file=/run/munge/munged.pid </dev/null >/dev/null
start() { # the log goes with the host, so its end must be told
  "$1" </dev/null >/dev/null && return
  tail -n 1 "/var/log/$1.log" >&2 2>/dev/null
  return 1
}
[ "$NAME" != "$CONTROLLER" ] || start slurmctld
start slurmd
# Until it listens. One that never does is found missing by the owner, which then tells what its log says.
for _ in {1..200}; do (exec 3<>/dev/tcp/127.0.0.1/6818) 2>/dev/null && break || sleep .02; done
