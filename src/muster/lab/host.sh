# Init of one lab host: bash runs this as pid 1 of fresh net, uts, ipc, pid and mount namespaces.
# Input from the owner: NAME ADDRESS DIR DISK SHM BIND (one path per line) HOME SSHD, GPUS (number of fake GPUs; empty: the
# machine's own), and RUN_AS ("UID GID") where the lab lives in a user namespace. Prints `built PID`, waits for the cable, prints `up`, then reads its pipe until the
# owner closes it: pid 1 ends, and the kernel kills whatever runs in the host and frees links and mounts.
unset SCRIPT # this text
set -e
read -r pid _ </proc/self/stat # /proc is still the machine's, so this is our pid as the owner sees it
hostname "$NAME"

disk=$DIR/$NAME
mkdir -p "$disk" # a rebooted host has left it empty
mount -t tmpfs -o "size=$DISK,mode=755" muster-lab "$disk"
cd "$disk"
mkdir upper work root
if [ -z "$RUN_AS" ]; then
  # The upper layer must be on a different file system than "/", hence the tmpfs.
  mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work muster-lab root
else
  # A user namespace may not overlay "/" (its submounts are locked), but it may overlay most directories in it.
  mount --bind root root # pivot_root needs a mount point
  for path in /*; do
    name=${path#/}
    case $name in
    proc | sys | dev | run | tmp) mkdir "root/$name" ;;
    *)
      if [ -L "$path" ]; then
        cp -P "$path" root/
      elif [ -d "$path" ]; then
        mkdir "root/$name" "upper/$name" "work/$name"
        mount -t overlay -o "userxattr,lowerdir=$path,upperdir=upper/$name,workdir=work/$name" \
          muster-lab "root/$name" 2>/dev/null || mount --rbind "$path" "root/$name"
      fi
      ;;
    esac
  done
fi

# From here on every path is inside the host, so that no symlink can lead a write to the machine's own files.
cd root
mkdir .machine
pivot_root . .machine
cd /
mount -t tmpfs -o mode=755 muster-lab /dev
mkdir /dev/pts /dev/shm
cd /.machine/dev
devices=(null zero full random urandom tty)
for device in fuse kfd nvidia*; do
  [ ! -c "$device" ] || [[ -n $GPUS && $device == nvidia* ]] || devices+=("$device")
done
cp -dR fd stdin stdout stderr /dev/
if [ -z "$RUN_AS" ]; then
  cp -dR --preserve=mode "${devices[@]}" /dev/
else # no mknod in a user namespace
  for device in "${devices[@]}"; do : >"/dev/$device" && mount --bind "$device" "/dev/$device"; done
fi
# A null device looks like a GPU to programs that only list devices, such as Slurm.
for ((gpu = 0; gpu < GPUS; gpu++)); do
  mknod -m 666 "/dev/nvidia$gpu" c 1 3 2>/dev/null || { : >"/dev/nvidia$gpu" && mount --bind null "/dev/nvidia$gpu"; }
done
cd /
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
mount -t proc proc /proc
# A fresh sysfs shows this host's own /sys/class/net.
mount -t sysfs sysfs /sys 2>/dev/null || mount --rbind /.machine/sys /sys
mount --rbind /.machine/sys/fs/cgroup /sys/fs/cgroup 2>/dev/null || true
mount -t tmpfs -o "mode=1777,size=$SHM" muster-lab /dev/shm
mount -t tmpfs -o mode=755 muster-lab /run
mount -t tmpfs -o "mode=1777,size=$DISK" muster-lab /tmp
mkdir -p /run/sshd /run/lock /run/muster-lab/disk
cp -r "/.machine$DIR/ssh/." "/.machine$DIR/boot" /run/muster-lab/
mount --bind "/.machine$disk" /run/muster-lab/disk # the handle by which the disk can be filled

# Before the bind mounts, so that these are the host's copies. A slow .bashrc would delay every ssh command.
rm -f "$HOME/.bashrc" "$HOME/.bash_profile" "$HOME/.profile" "$HOME/.zshenv"
while IFS= read -r path; do
  [ -n "$path" ] || continue
  mkdir -p "$path"
  mount --rbind "/.machine$path" "$path"
done <<<"$BIND"
mkdir -p "$HOME/.ssh"
mount -t tmpfs -o mode=700 muster-lab "$HOME/.ssh"
cp /run/muster-lab/{id_ed25519,id_ed25519.pub,authorized_keys,known_hosts,config} "$HOME/.ssh/"

echo "$NAME" >/run/muster-lab/hostname
: >/run/muster-lab/resolv.conf # lookups of unknown names fail at once
replaced=(hosts hostname resolv.conf)
{ rm -f "${replaced[@]/#//etc/}" && cp "${replaced[@]/#//run/muster-lab/}" /etc/; } 2>/dev/null ||
  for file in "${replaced[@]}"; do mount --bind "/run/muster-lab/$file" "/etc/$file"; done
if [ -z "$RUN_AS" ] && read -r account </etc/shadow && [[ $account == root:!* ]]; then
  # sshd without PAM refuses a locked account, and Ubuntu locks root.
  sed -i '1s/^root:![^:]*/root:*/' /etc/shadow
fi
umount -l /.machine
rmdir /.machine

echo "built $pid"
read -r _ || exit 0
ip -b - <<END
link set lo up
link set eth0 addrgenmode none
addr add $ADDRESS/24 dev eth0
link set eth0 up
$(</run/muster-lab/neighbors)
END
start_sshd=("$SSHD" -f /run/muster-lab/sshd_config -E /run/muster-lab/sshd.log)
if [ -n "$RUN_AS" ]; then
  # As the mapped root, sshd fails in setgroups(); in a nested namespace it runs with the user's real ids.
  echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
  read -r uid gid <<<"$RUN_AS"
  start_sshd=(unshare -U --map-user="$uid" --map-group="$gid" -- "${start_sshd[@]}")
fi
"${start_sshd[@]}"
until [ -s /run/muster-lab/sshd.pid ]; do sleep .01; done # written when sshd listens; the owner has a timeout
for script in /run/muster-lab/boot/*.sh; do
  # shellcheck source=/dev/null # they come with the services of the lab
  [ ! -e "$script" ] || . "$script"
done
echo up
read -r _ || true
