# Runs on a host, where the available container programs and devices are known.
# Arguments: the seven from `Container.run`, then the user's options, the image and the agent's command; each `set --`
# inserts something before those.
# It is sent as one line (`script` in container.py), because csh does not allow newlines in quotes: hence the semicolons.
# For csh and fish, it must not contain single quotes, a ! before a word, or two backslashes in a row.
keeper=$1 program=$2 image=$3 cwd=$4 folder=$5 share=$6 settled=$7; shift 7;
host=$(uname -n); host=${host%%.*}; name=muster-${folder##*/}-$$;
fail() { printf "muster: %s: %s\n" "$host" "$2" >&2; exit "$1"; };

# A PBS task starts with an empty environment, but podman finds its helpers through PATH.
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin};
[ "$HOME" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6);
export PATH HOME;

there() { command -v "$1" >/dev/null 2>&1; };
if [ "$program" ]; then there "$program" || fail 121 "$program not found";
else
  for program in podman docker apptainer ""; do there "$program" && break; done;
  [ "$program" ] || fail 121 "found no podman, docker or apptainer";
fi;
# docker may be podman: Debian and Fedora have a package that replaces it.
kind=$program;
[ "$kind" = docker ] && case $(docker --version 2>/dev/null) in *odman*) kind=podman;; esac;

# The value of --mount is a line of CSV.
field() { case $1 in *[,\"]*) printf "\"%s\"" "$(printf %s "$1" | sed "s/\"/\"\"/g")";; *) printf %s "$1";; esac; };
mount() { printf "type=bind,%s,%s%s" "$(field "src=$1")" "$(field "dst=$1")" "$2"; };
mine=;
if [ "$cwd" ]; then
  cd "$cwd" 2>/dev/null || fail 122 "directory $cwd does not exist";
  set -- --mount "$(mount "$cwd")" "$@";
else
  # The code is sent to a directory of the job on this host, which keeps what the ranks write.
  state=${XDG_STATE_HOME:-$HOME/.local/state};
  mine=$state/muster/jobs/${folder##*/};
  (umask 077; mkdir -p "$mine") || fail 122 "could not create directory $mine";
  set -- --mount "$(mount "$mine")" "$@";
fi;
# The job directory on the machine that runs `muster`, if this host shares it.
[ -d "$folder" ] && [ "$folder" != "$mine" ] && set -- --mount "$(mount "$folder" ,ro)" "$@";

# Pass only variables of schedulers, mpirun and Muster: the image has its own PATH and libraries.
names="MUSTER_DIAL|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|NCPUS|(SLURMD?|PBS|OMPI|PMIX?|MPI|HYDI?)_[A-Za-z0-9_]+";
variables() { awk "BEGIN { for (name in ENVIRON) if (name ~ /^($names)\$/) print name }" </dev/null; };

if [ "$kind" = apptainer ]; then
  for variable in $(variables); do export "APPTAINERENV_$variable=$(printenv "$variable")"; done;
  [ "$mine" ] && export "APPTAINERENV_XDG_STATE_HOME=$state";
  # It mounts the home directory, whose user packages are for the host's Python.
  export APPTAINERENV_PYTHONNOUSERSITE=1;
  [ "$cwd" ] && set -- --pwd "$cwd" "$@";
  [ "$share" ] || set -- --pid "$@";
  case $settled in *gpus*) ;; *) [ -e /dev/nvidiactl ] && set -- --nv "$@";; esac;
  case $image in *://*) echo "$host is pulling $image" >&2;; esac;
  exec "$program" exec --cleanenv "$@";
fi;

# Pull the image separately, because `run` would keep pulling for minutes after the job has ended. The parent of this
# shell is sshd, muster, or a daemon of the scheduler.
here() { "$program" image inspect "$image" >/dev/null 2>&1; };
wanted() { read -r pid comm letter parent rest </proc/$$/stat; [ "$parent" = "$PPID" ]; };
case $settled in *pull*) ;; *)
  if here; then :;
  elif [ "$share" ] && [ "${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}" != 0 ]; then
    # One rank of each host pulls; if that fails, mpirun ends the others.
    until here; do wanted || exit 123; sleep 1; done;
  else
    echo "$host is pulling $image" >&2;
    "$program" pull "$image" </dev/null >&2 & pull=$! ;
    (while kill -0 "$pull"; do wanted || kill "$pull"; sleep 1; done) </dev/null >/dev/null 2>&1 &
    wait "$pull" || fail 123 "$program could not pull $image";
  fi;;
esac;

[ "$cwd" ] && set -- --workdir "$cwd" "$@";
[ "$mine" ] && set -- --env "XDG_STATE_HOME=$state" "$@";
if [ "$share" ]; then
  # Each MPI rank of a host has its own container: the ranks find each other by process id, read each other's memory,
  # and share the directory for temporary files.
  set -- --pid host --cap-add SYS_PTRACE "$@";
  tmp=${TMPDIR:-/tmp};
  [ "$tmp" = "$cwd" ] || set -- --mount "$(mount "$tmp")" "$@";
  [ "$TMPDIR" ] && set -- --env TMPDIR "$@";
fi;
user=0:0;
if [ "$kind" = docker ]; then
  # Its daemon is not restricted to the GPUs of a Slurm job, so list them; inside they are numbered from 0.
  case $settled in *gpus*) ;; *) if [ -e /dev/nvidiactl ]; then
    gpus=all ids=${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS};
    if [ "$ids" ] && [ "$CUDA_VISIBLE_DEVICES" ]; then
      gpus="\"device=$ids\"";
      CUDA_VISIBLE_DEVICES=$(echo "$ids" | awk -F, "{ for (i = 0; i < NF - 1; i++) printf i \",\"; print i }");
    fi;
    set -- --gpus "$gpus" "$@";
  fi;; esac;
  # Its daemon is root: run as the current user, or files that the ranks write would belong to root.
  [ "$(id -u)" = 0 ] || case $(docker info --format "{{.SecurityOptions}}" 2>/dev/null) in *rootless*) ;; *)
    user=$(id -u):$(id -g);
    for group in $(id -G); do set -- --group-add "$group" "$@"; done;
    set -- --env HOME=/tmp --env "USER=$(id -un)" "$@";;
  esac;
  [ -d /dev/infiniband ] && set -- --ulimit memlock=-1 "$@";
else
  # With rootless podman, root inside is the user outside.
  [ "$(id -u)" = 0 ] || set -- --annotation run.oci.keep_original_groups=1 "$@";
  case $settled in *gpus*) ;; *)
    if grep -qs nvidia.com/gpu /etc/cdi/* /var/run/cdi/*; then set -- --device nvidia.com/gpu=all "$@";
    else for file in /dev/nvidia* /dev/nvidia-caps/*; do [ -c "$file" ] && set -- --device "$file" "$@"; done; fi;;
  esac;
fi;
for file in /dev/infiniband/* /dev/gdrdrv; do [ -c "$file" ] && set -- --device "$file" "$@"; done;
for variable in $(variables); do set -- --env "$variable" "$@"; done;
case $settled in *network*) ;; *) set -- --network host "$@";; esac;
# Use the host's name and its /dev/shm, which is large enough for data loaders.
set -- --uts host --ipc host --security-opt label=disable "$@";
# A log would duplicate everything that the agent sends, and the entrypoint of many images is not a wrapper.
set -- --rm --interactive --name "$name" --log-driver none --entrypoint "" --user "$user" "$@";

# A shell outside of the job, the keeper, calls `run`, because a scheduler signals and kills the job's processes but not
# the container: if `run` is killed between creating and starting a container, the container waits forever, and `run`
# does not forward a signal that also kills its helper. The keeper receives our signals, reports how `run` exited, and
# notices the end of the job by a pipe that closes with this shell.
pipes=$(mktemp -d) || fail 125 "could not create a temporary directory";
mkfifo "$pipes/leash" "$pipes/code" "$pipes/out" "$pipes/err";
# The program must not notice that the connection broke: podman would remove the container, but the agent inside waits
# for another connection, over which it repeats what got lost.
relay() { exec 3<&- 7<&- 8<&- 9<&-; trap "" HUP INT TERM; cat; cat >/dev/null; };
exec 3<>"$pipes/out" 8<"$pipes/out" 9>"$pipes/out";
relay <&8 2>/dev/null & out=$! ;
exec 3<>"$pipes/err" 8<"$pipes/err" 7>"$pipes/err";
relay <&8 >&2 2>/dev/null & err=$! ;
exec 3<&0 4<>"$pipes/leash" 5<"$pipes/leash" 6<>"$pipes/code" 8<"$pipes/code";
rm -r "$pipes";
there setsid && setsid=setsid || setsid=;
keeper=$( ($setsid /bin/sh -c "$keeper" muster "$kind" "$program" "$name" "$@" <&3 >&9 2>&7 3<&- 4<&- 7<&- 8<&- 9<&- & echo $! ) );
(trap "" HUP INT TERM USR1 USR2; read -r code <&8; exit "${code:-1}") 3<&- 4<&- 5<&- 6<&- 7<&- 9<&- & reader=$! ;
exec </dev/null 3<&- 5<&- 6<&- 7<&- 8<&- 9<&-;
for signal in HUP INT TERM USR1 USR2; do trap "kill -s $signal $keeper 2>/dev/null" "$signal"; done;
while wait "$reader"; code=$?; kill -0 "$reader" 2>/dev/null; do :; done;
# Failures of the program itself, after its own message; the agent does not use these codes.
case $code in 125|126|127) wait "$out" "$err"; fail "$code" "$program exited with code $code";; esac;
exit "$code";
