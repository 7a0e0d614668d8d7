# Runs a container for container.sh, outside of the job, and removes it if it did not end well. One line, as that is.
# It has the stdin, stdout and stderr of the agent; descriptor 5 closes with container.sh, which reads from 6.
kind=$1 program=$2 name=$3; shift 3;
run= signalled= missed=;
for signal in HUP INT TERM USR1 USR2; do
  trap "signalled=yes; if [ \"\$run\" ]; then kill -s $signal \$run; else missed=\"\$missed $signal\"; fi" "$signal";
done;
exec 3<&0;
"$program" run "$@" <&3 3<&- 5<&- 6<&- & run=$! ;
# What came before this shell knew whom to pass it on to.
for signal in $missed; do kill -s "$signal" "$run"; done;
exec </dev/null >/dev/null 2>&1 3<&-;
end_it() {
  if [ "$kind" = podman ]; then
    # One that was to be made is made within a second. Its monitor, conmon, knows of it also where podman does not, and
    # cleans up when its only child, process 1 of the container, has ended.
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
# Again and again, because on a busy host the container may be made only after it was looked for.
(read -r word <&5 || while kill -0 "$run"; do end_it; sleep 1; done) 6<&- & watcher=$! ;
while wait "$run"; code=$?; kill -0 "$run"; do :; done;
# Not TERM: a subshell that has only begun still has our traps, and loses it.
kill -9 "$watcher";
echo "$code" >&6;
exec 6<&-;
# podman says 0 also where SIGTERM has ended it before the container was started.
[ "$code$signalled" = 0 ] || end_it;
