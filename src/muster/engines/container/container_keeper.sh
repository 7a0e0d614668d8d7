# Runs a container for container.sh, outside of the job, and removes it if it failed. Sent as one line as well.
# It has the stdin, stdout and stderr of the agent; descriptor 5 closes with container.sh, which reads from 6.
kind=$1 program=$2 name=$3; shift 3;
run= signalled= missed=;
for signal in HUP INT TERM USR1 USR2; do
  trap "signalled=yes; if [ \"\$run\" ]; then kill -s $signal \$run; else missed=\"\$missed $signal\"; fi" "$signal";
done;
exec 3<&0;
"$program" run "$@" <&3 3<&- 5<&- 6<&- & run=$! ;
# Signals that arrived before `run` was started.
for signal in $missed; do kill -s "$signal" "$run"; done;
exec </dev/null >/dev/null 2>&1 3<&-;
end_it() {
  if [ "$kind" = podman ]; then
    # A container that is being created exists within a second. Its monitor, conmon, knows about it even if podman does
    # not, and cleans up when its only child, process 1 of the container, has exited.
    sleep 1;
    for file in $(grep -ls -e "$name" /proc/[0-9]*/cmdline); do
      pid=${file#/proc/}; pid=${pid%/cmdline}; comm=;
      read -r comm <"/proc/$pid/comm";
      [ "$comm" = conmon ] && kill -9 $(cat "/proc/$pid/task/$pid/children");
    done;
    "$program" rm --force --time=0 "$name" && return;
  fi;
  "$program" rm --force "$name";
};
# Repeatedly, because on a busy host the container may be created only after the first attempt to remove it.
(read -r word <&5 || while kill -0 "$run"; do end_it; sleep 1; done) 6<&- & watcher=$! ;
while wait "$run"; code=$?; kill -0 "$run"; do :; done;
# Not TERM, which a subshell that has just started would lose, because it still has our traps.
kill -9 "$watcher";
echo "$code" >&6;
exec 6<&-;
# podman also exits with 0 if SIGTERM ended it before the container was started.
[ "$code$signalled" = 0 ] || end_it;
