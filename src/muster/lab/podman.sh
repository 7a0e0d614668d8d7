# Makes podman work in a lab host; sourced by its init. IMAGE is the name under which to import image.tar.
# An overlay cannot lie on the host's disk, which is one itself.
mkdir -p /etc/containers /var/lib/containers
mount -t tmpfs -o "mode=711,size=$DISK" muster-lab /var/lib/containers
cat >/etc/containers/storage.conf <<'END'
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
END
# podman asks for more open files and processes than a root without CAP_SYS_RESOURCE may give: stay at what we have.
# Control groups are the machine's, and would be left behind there.
cat >/etc/containers/containers.conf <<END
[containers]
default_ulimits = ["nofile=$(ulimit -Sn):$(ulimit -Hn)", "nproc=$(ulimit -Su):$(ulimit -Hu)"]
cgroups = "disabled"
[engine]
runtime = "crun"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
sed -i 's/unlimited/-1/g' /etc/containers/containers.conf
# crun refuses a version 2 hierarchy beside those of version 1.
umount /sys/fs/cgroup/unified 2>/dev/null || true
podman import --quiet /run/muster-lab/boot/image.tar "$IMAGE" </dev/null >/dev/null
