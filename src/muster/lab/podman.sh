# Sets up podman on a lab host; sourced by its init. IMAGE is the name under which image.tar is imported.
# The host's disk is an overlay, which cannot hold another overlay.
mkdir -p /etc/containers /var/lib/containers
mount -t tmpfs -o "mode=711,size=$DISK" muster-lab /var/lib/containers
cat >/etc/containers/storage.conf <<'END'
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
END
# podman raises its limits on open files and processes, which root without CAP_SYS_RESOURCE may not do: keep ours.
# Control groups belong to the machine and would be left behind there.
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
# crun rejects a cgroup v2 hierarchy mounted next to those of v1.
umount /sys/fs/cgroup/unified 2>/dev/null || true
podman import --quiet /run/muster-lab/boot/image.tar "$IMAGE" </dev/null >/dev/null
