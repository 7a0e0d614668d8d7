# The switch of a lab: a network namespace with a bridge; it also cleans up when the owner is gone.
# Input from the owner: ADDRESS, empty if the lab has no network of its own. Prints `ready DIR`, the new directory of the lab, then reads its pipe until that closes.
# $DIR/cgroups, if it exists, lists the cgroups of the lab, children before parents.
unset SCRIPT # this text
set -e
DIR=$(mktemp -d "${TMPDIR:-/tmp}/muster-lab-XXXXXXXX")
sweep() {
  if [ -e "$DIR/cgroups" ]; then
    while IFS= read -r group; do
      [ -d "$group" ] || continue
      # A frozen init cannot notice that its pipe has closed.
      [ ! -e "$group/cgroup.kill" ] || echo 1 >"$group/cgroup.kill"
      [ ! -e "$group/freezer.state" ] || echo THAWED >"$group/freezer.state"
      for _ in {1..200}; do rmdir "$group" && break || sleep .02; done
    done <"$DIR/cgroups"
  fi
  rm -rf --one-file-system "$DIR"
} 2>/dev/null
trap sweep EXIT
if [ -n "$ADDRESS" ]; then
  ip -b - <<END
link set lo up
link add br0 type bridge mcast_snooping 0
link set br0 addrgenmode none
addr add $ADDRESS/24 dev br0
link set br0 up
END
fi
mkdir "$DIR/ssh" "$DIR/boot"
echo "ready $DIR"
read -r _ || true
