# Waits on stdin for the end of container.sh, and removes its container if it did not end well. One line, as that is.
kind=$1 program=$2 name=$3;
trap "" HUP INT TERM;
read -r word && exit 0;
if [ "$kind" = podman ]; then
  # One that was to be made is made within a second. Its monitor, conmon, knows of it also where podman does not, and
  # cleans up when its only child, process 1 of the container, has ended.
  sleep 1;
  for file in $(grep -ls -e "$name" /proc/[0-9]*/cmdline); do
    pid=${file#/proc/}; pid=${pid%/cmdline}; comm=;
    read -r comm <"/proc/$pid/comm";
    [ "$comm" = conmon ] && kill -9 $(cat "/proc/$pid/task/$pid/children");
  done;
  "$program" rm --force --time=0 "$name" && exit 0;
fi;
"$program" rm --force "$name";
