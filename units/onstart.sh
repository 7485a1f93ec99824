#!/usr/bin/env bash
# Start rl-supervisor in a container that has no systemd (Vast.ai's on-start script, RunPod, plain docker).
#
#   onstart.sh [--foreground] [NAME]
#   onstart.sh [NAME] -- COMMAND [WORD ...]
#   onstart.sh --node [NAME]
#
# Runs /etc/rl-supervisor/NAME.toml. It may be called at every container start, twice at once and by hand: exactly one
# daemon runs. Without --foreground it returns at once and writes to a log. It turns into `rl-supervisor onstart --restart`,
# which obeys the daemon's exit codes: 0 (finished), 93 (a person is needed) and 94 (this pod is unfit) end it; 75,
# crashes, and 93 while the job lives are tried again, with back-off.
#
# With --node it becomes this machine's agent, in a run over several machines ([nodes] of the run file).
#
# A provider's SIGTERM goes to process 1 of the container alone: where that is the provider's own script, the
# daemon in the background does not get it. So, where notice is given (RunPod), be process 1: `--foreground` as the
# container's command, or `-- COMMAND` with what it started until now (`onstart.sh my-run -- /start.sh`). COMMAND then runs
# beside the daemon. SIGTERM is handed to the daemon, and once that has left well, to COMMAND. When the daemon ends by
# itself, COMMAND goes on, so that ssh still works; the end of all is the end of COMMAND then.
#
# Environment, all optional:
#   RL_SUPERVISOR_RUN           NAME, when it is not the argument; default: the only run file there is
#   RL_SUPERVISOR_RUN_FILE_B64  the run file itself, base64, written when /etc/rl-supervisor/NAME.toml does not exist
#   RL_SUPERVISOR_PACKAGE       what pip installs when rl-supervisor is missing: a git URL, a wheel, a folder
#   RL_SUPERVISOR_VENV          where; default /opt/rl-supervisor (as another user: ~/.local/share/rl-supervisor)
#   RL_SUPERVISOR_ETC           folder of run files; default /etc/rl-supervisor (as another user: ~/.config/rl-supervisor
#                               where a run file is, or none is in /etc/rl-supervisor)
#   RL_SUPERVISOR_LOG           log file; default /var/log/rl-supervisor/NAME.log (as another user: below ~/.local/state)
#   RL_SUPERVISOR_LOCKS         folder of the locks; default /run/rl-supervisor (as another user: /tmp/rl-supervisor-UID)
#   RL_SUPERVISOR_BACKOFF       first wait in seconds, doubled up to 300; default 5
#   RL_SUPERVISOR_TRUST_FILES   1: obey files that others can write, for volumes that show every file so (SECURITY.md)
# Keys (B2_APPLICATION_KEY_ID, B2_APPLICATION_KEY, WANDB_API_KEY ...) come from NAME.env beside the run file, else from this
# script's environment, else from the container's (process 1), else from /etc/environment (Vast.ai's images write it for
# ssh), else from /etc/rp_environment (RunPod's start.sh writes it). No key is ever on a command line.
# As another user than root XDG_CONFIG_HOME, XDG_STATE_HOME and XDG_DATA_HOME count; without a home, or with one that is
# read-only, everything goes below /var/tmp/rl-supervisor-UID.
set -uo pipefail
shopt -s execfail # a program that cannot be started is tried again
umask 022         # not the caller's: no other user may change what is installed and written here

# A signal that comes while bash is in a $( ) is lost now and then (5.2: "trap: line 2: unexpected EOF"), so where a trap is
# set there is none, here neither.
say() { TZ=UTC0 printf '%(%Y-%m-%dT%H:%M:%SZ)T rl-supervisor onstart: %s\n' -1 "$*" >&2; }
need_person() {
  say "$*"
  exit 93
}

# take_over LINE [force]: export NAME=value unless NAME is set. Nothing in the line is executed.
take_over() {
  local line=${1#export } key value
  key=${line%%=*}
  value=${line#*=}
  [[ $line == *=* && $key =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || return 0
  case $key in BASH* | SHELLOPTS | EUID | UID | PPID | PWD | OLDPWD | SHLVL | _ | IFS) return 0 ;; esac
  # What is assigned to one of these is reckoned out, and a command in brackets run with it.
  case $key in HISTCMD | LINENO | OPTIND | RANDOM | SECONDS | SRANDOM) return 0 ;; esac
  if [[ $value =~ ^\"(.*)\"$ || $value =~ ^\'(.*)\'$ ]]; then value=${BASH_REMATCH[1]}; fi
  [[ -n ${2:-} || -z ${!key+set} ]] && export "$key=$value"
  return 0
}

# others_can_write FILE: prints who else can change or swap it and succeeds, or fails. As supervisor/base/trust.py, which is not
# installed yet when this is asked: each folder, link and file on the way belongs to root or us, and only they may write.
others_can_write() {
  local left=$1 at='' word target links=0 uid gid mode
  [[ ${RL_SUPERVISOR_TRUST_FILES:-} == 1 ]] && return 1
  [[ $left == /* ]] || left=$PWD/$left
  while [[ -n $left ]]; do
    word=${left%%/*}
    if [[ $left == */* ]]; then left=${left#*/}; else left=''; fi
    case $word in '' | .) continue ;; ..) at=${at%/*} && continue ;; esac
    at=$at/$word
    read -r uid gid mode < <(stat -c '%u %g %a' -- "$at" 2>/dev/null) || return 1
    if [[ $uid -ne 0 && $uid -ne $(id -u) ]] && ! [[ $(id -u) -eq 0 && $uid == "${SUDO_UID:-}" ]]; then
      echo "$at belongs to user $uid" && return 0
    fi
    if [[ -L $at ]]; then
      [[ $((++links)) -le 40 ]] && target=$(readlink -- "$at") || return 1
      if [[ $target == /* ]]; then at=''; else at=${at%/*}; fi
      left=$target${left:+/$left}
    elif [[ -n $left && -d $at && $((8#$mode & 8#1000)) -ne 0 ]]; then
      continue # sticky: what lies in it is its owner's, who is judged himself
    elif [[ $((8#$mode & 8#002)) -ne 0 ]] || { [[ $((8#$mode & 8#020)) -ne 0 ]] && ! private_group "$uid" "$gid"; }; then
      echo "others can write $at (mode $mode): chmod go-w $at" && return 0
    fi
  done
  return 1
}

# private_group UID GID: the group of that user alone.
private_group() {
  [[ $2 -eq 0 ]] || awk -F: -v u="$1" -v g="$2" '
    FILENAME == "/etc/passwd" { if ($3 == u) name = $1; else if ($4 == g) shared = 1 }
    FILENAME == "/etc/group" && $3 == g { alone = name != "" && $1 == name && ($4 == "" || $4 == name) }
    END { exit !(alone && !shared) }' /etc/passwd /etc/group
}

# From ssh the variables that were given to the container are missing: its process 1 has them.
read_container_environment() {
  local line file why
  if : 2>/dev/null </proc/1/environ; then # -r is true of root also where a container may not open it
    while IFS= read -r -d '' line; do take_over "$line"; done </proc/1/environ
  fi
  for file in /etc/environment /etc/rp_environment; do
    if [[ -r $file ]] && why=$(others_can_write "$file"); then
      say "$file is not read: $why"
    elif [[ -r $file ]]; then
      while IFS= read -r line || [[ -n $line ]]; do take_over "$line"; done <"$file"
    fi
  done
}

read_own_environment() {
  local line why
  [[ -r $etc/$name.env ]] || return 0
  if why=$(others_can_write "$etc/$name.env"); then
    need_person "$etc/$name.env is not obeyed, since others could change it: $why. Where a volume shows every file so, move" \
      "it to /etc/rl-supervisor (RL_SUPERVISOR_ETC), or set RL_SUPERVISOR_TRUST_FILES=1 if you trust all who can write there"
  fi
  while IFS= read -r line || [[ -n $line ]]; do take_over "$line" force; done <"$etc/$name.env"
}

find_name() {
  local files
  name=${1:-${RL_SUPERVISOR_RUN:-}}
  if [[ -z $name ]]; then
    files=("$etc"/*.toml)
    [[ ${#files[@]} -eq 1 && -e ${files[0]} ]] ||
      need_person "which run? There is not exactly one run file in $etc: give its name, or set RL_SUPERVISOR_RUN"
    name=$(basename "${files[0]}" .toml)
  fi
  [[ $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || need_person "'$name' is no name of a run"
}

write_run_file() {
  [[ -e $etc/$name.toml ]] && return 0
  [[ -n ${RL_SUPERVISOR_RUN_FILE_B64:-} ]] ||
    need_person "$etc/$name.toml does not exist: write it (rl-supervisor init), or set RL_SUPERVISOR_RUN_FILE_B64"
  mkdir -p "$etc" || need_person "cannot make $etc: set RL_SUPERVISOR_ETC to a folder that this user may write"
  if ! base64 -d <<<"$RL_SUPERVISOR_RUN_FILE_B64" >"$etc/.$name.$$" || ! mv "$etc/.$name.$$" "$etc/$name.toml"; then
    rm -f "$etc/.$name.$$"
    need_person "RL_SUPERVISOR_RUN_FILE_B64 could not be written to $etc/$name.toml: is it base64, is there room?"
  fi
}

# Sets daemon to the program; installs it in an environment of its own when it is nowhere. Fails when that may work later.
find_daemon() {
  daemon=$venv/bin/rl-supervisor
  [[ -x $daemon ]] && return 0
  daemon=rl-supervisor
  type -P "$daemon" >/dev/null && return 0
  daemon=$venv/bin/rl-supervisor
  (install_package) 9>&- # need_person inside ends only the ( )
}

install_package() {
  local python
  umask 022
  [[ -n ${RL_SUPERVISOR_PACKAGE:-} ]] ||
    need_person "rl-supervisor is not installed: set RL_SUPERVISOR_PACKAGE to where pip finds it (a git URL, a wheel)"
  say "installing $RL_SUPERVISOR_PACKAGE in $venv"
  if command -v uv >/dev/null; then
    uv venv --quiet --allow-existing --python '>=3.11' "$venv" >&2 &&
      uv pip install --quiet --python "$venv/bin/python" "$RL_SUPERVISOR_PACKAGE" >&2 || return 1
  else
    for python in python3.14 python3.13 python3.12 python3.11 python3; do
      "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
      python=
    done
    [[ -n $python ]] || need_person "needs Python 3.11 or newer: apt-get install python3.11 python3.11-venv, or install uv"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || need_person "needs venv: apt-get install python3-venv"
    "$python" -m venv "$venv" >&2 &&
      "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$RL_SUPERVISOR_PACKAGE" >&2 || return 1
  fi
  [[ -x $venv/bin/rl-supervisor ]] || need_person "$RL_SUPERVISOR_PACKAGE was installed and brought no rl-supervisor"
}

# Waits, and no longer than until SIGTERM comes. It looks again and again, as until_ended does.
pause() {
  local waiting
  sleep "$1" 9>&- &
  waiting=$!
  while [[ -z $stopping && -d /proc/$waiting ]]; do sleep 0.2 9>&-; done
  if [[ -n $stopping ]]; then kill "$waiting" 2>/dev/null; fi
}

# Becomes the daemon's parent, with the same pid and the lock; comes back only when that cannot be. Until it is installed,
# that is tried again with back-off: the network of a fresh pod may need its time.
supervise() {
  local waits code daemon
  read -ra waits < <(awk -v s="${RL_SUPERVISOR_BACKOFF:-5}" \
    'BEGIN { for (s = s < 0.1 ? 0.1 : s; s < 300; s *= 2) printf "%s ", s; print 300 }')
  stopping=''
  trap 'stopping=1' TERM INT
  while :; do
    find_daemon
    code=$?
    [[ $code -eq 93 ]] && return 93
    if [[ $code -eq 0 && -z $stopping ]]; then
      export RL_SUPERVISOR_PID_FILE=$pid_file RL_SUPERVISOR_CUT_LOG=$cut_log
      if [[ -n $node ]]; then exec "$daemon" node "$etc/$name.toml"; fi
      exec "$daemon" onstart "$etc/$name.toml" --restart
      code=75
    fi
    if [[ -z $stopping ]]; then
      say "rl-supervisor could not be installed or started ($code); again in ${waits[0]} s"
      pause "${waits[0]}"
      if [[ ${#waits[@]} -gt 1 ]]; then waits=("${waits[@]:1}"); fi
    fi
    if [[ -n $stopping ]]; then
      say "stopped"
      return 0
    fi
  done
}

# The daemon first; COMMAND only when there is no daemon any more.
on_stop() {
  stopping=1
  if [[ -n $run ]]; then
    kill -TERM "$run" 2>/dev/null
  elif [[ -n $command ]]; then
    kill -TERM -- "-$command" 2>/dev/null
  fi
}

# Waits for a child by looking again and again: a `wait` that begins as a signal comes may sleep on.
until_ended() {
  while [[ -d /proc/$1 ]]; do read -rt 0.2 -u "$silent"; done
}

# Process 1 in the provider's place: the daemon and COMMAND side by side, each in a process group of its own.
beside() {
  local name=$1 code silent
  shift
  exec {silent}<> <(:) # nothing ever comes out of it
  run='' command='' stopping=''
  trap on_stop TERM INT
  set -m # else they would ignore Ctrl-C, and so would the shells of people who log in
  "$@" {silent}>&- &
  command=$!
  bash "${BASH_SOURCE[0]}" --foreground ${name:+"$name"} {silent}>&- &
  run=$!
  if [[ -n $stopping ]]; then kill -TERM "$run"; fi # it came before there was a daemon to tell
  until_ended "$run"
  wait "$run" # returns at once
  code=$?
  run=''
  if [[ -z $stopping ]]; then
    say "the supervision of ${name:-the run} has ended with $code; $1 goes on"
    until_ended "$command"
  fi
  kill -TERM -- "-$command" 2>/dev/null
  return "$code"
}

# The folders of a user who is not root.
own_folders() {
  local there=${HOME:-}
  if [[ $there != /* || ! -d $there || ! -w $there ]]; then
    there=/var/tmp/rl-supervisor-$(id -u)
    # shellcheck disable=SC2174 # /var/tmp itself is there
    mkdir -p -m 700 "$there" && [[ -O $there ]] ||
      need_person "has no home folder, and $there belongs to another user: set HOME to a folder that this user may write"
  fi
  locks=/tmp/rl-supervisor-$(id -u)
  logs=${XDG_STATE_HOME:-$there/.local/state}/rl-supervisor
  venv=${XDG_DATA_HOME:-$there/.local/share}/rl-supervisor
  etc=${XDG_CONFIG_HOME:-$there/.config}/rl-supervisor
  if ! compgen -G "$etc/*.toml" >/dev/null && compgen -G '/etc/rl-supervisor/*.toml' >/dev/null; then
    etc=/etc/rl-supervisor
  fi
}

foreground='' node=''
if [[ ${1:-} == --foreground || ${1:-} == --node ]]; then
  if [[ $1 == --node ]]; then node=1; fi
  foreground=1
  shift
fi
given=''
if [[ $# -gt 0 && $1 != -- ]]; then
  given=$1
  shift
fi
if [[ ${1:-} == -- ]]; then
  shift
  [[ $# -gt 0 ]] || need_person "which command is to run beside the daemon? onstart.sh [NAME] -- COMMAND [WORD ...]"
  beside "$given" "$@"
  exit
fi
read_container_environment
if [[ $(id -u) -eq 0 ]]; then
  locks=/run/rl-supervisor logs=/var/log/rl-supervisor venv=/opt/rl-supervisor etc=/etc/rl-supervisor
else
  own_folders
fi
etc=${RL_SUPERVISOR_ETC:-$etc}
name=''
find_name "$given"
read_own_environment
locks=${RL_SUPERVISOR_LOCKS:-$locks}
venv=${RL_SUPERVISOR_VENV:-$venv}
log=${RL_SUPERVISOR_LOG:-$logs/$name.log}
write_run_file
command -v flock >/dev/null || need_person "needs flock: apt-get install util-linux"
mkdir -p "$locks" || need_person "cannot make $locks: set RL_SUPERVISOR_LOCKS to a folder of yours"
[[ -O $locks ]] || need_person "$locks belongs to another user: set RL_SUPERVISOR_LOCKS to a folder of yours"
lock=$locks/onstart${node:+-node}-$name.lock
exec 9>>"$lock" || need_person "cannot write $lock"
if ! flock -n 9; then
  say "$name is supervised already"
  exit 0
fi

pid_file='' cut_log=''
if [[ -n $foreground ]]; then
  supervise
  exit
fi
umask 027 # of the log: others need not read it
mkdir -p "$(dirname "$log")" || need_person "cannot make $(dirname "$log"): set RL_SUPERVISOR_LOG"
pid_file=$locks/onstart-$name.pid cut_log=$log
say "supervising $name; log: $log; stop with: kill \$(cat $pid_file)"
set -m # a process group of its own, so that the end of the caller's terminal or session does not reach it
(
  trap '' HUP
  echo "$BASHPID" >"$pid_file"
  supervise
  code=$?
  rm -f "$pid_file"
  exit "$code"
) </dev/null >>"$log" 2>&1 &
disown
