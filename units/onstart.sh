#!/usr/bin/env bash
# Start rl-supervisor in a container that has no systemd (Vast.ai's on-start script, RunPod, plain docker).
#
#   onstart.sh [--foreground] [NAME]
#
# Runs /etc/rl-supervisor/NAME.toml. It may be called at every container start, twice at once and by hand: exactly one
# daemon runs. Without --foreground it returns at once and writes to a log. It obeys the daemon's exit codes: 0 (finished),
# 93 (a person is needed) and 94 (this pod is unfit) end it; 75 and crashes are tried again, with back-off.
#
# Environment, all optional:
#   RL_SUPERVISOR_RUN           NAME, when it is not the argument; default: the only run file there is
#   RL_SUPERVISOR_RUN_FILE_B64  the run file itself, base64, written when /etc/rl-supervisor/NAME.toml does not exist
#   RL_SUPERVISOR_PACKAGE       what pip installs when rl-supervisor is missing: a git URL, a wheel, a folder
#   RL_SUPERVISOR_VENV          where; default /opt/rl-supervisor (as another user: ~/.local/share/rl-supervisor)
#   RL_SUPERVISOR_ETC           folder of run files; default /etc/rl-supervisor
#   RL_SUPERVISOR_LOG           log file; default /var/log/rl-supervisor/NAME.log
#   RL_SUPERVISOR_LOCKS         folder of the locks; default /run/rl-supervisor (as another user: /tmp/rl-supervisor-UID)
#   RL_SUPERVISOR_BACKOFF       first wait in seconds, doubled up to 300; default 5
# Keys (B2_APPLICATION_KEY_ID, B2_APPLICATION_KEY, WANDB_API_KEY ...) come from NAME.env beside the run file, else from this
# script's environment, else from the container's (process 1), else from /etc/environment.
set -uo pipefail

say() { printf '%s rl-supervisor onstart: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*" >&2; }
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
  if [[ $value =~ ^\"(.*)\"$ || $value =~ ^\'(.*)\'$ ]]; then value=${BASH_REMATCH[1]}; fi
  [[ -n ${2:-} || -z ${!key+set} ]] && export "$key=$value"
  return 0
}

# From ssh the variables that were given to the container are missing: its process 1 has them.
read_container_environment() {
  local line
  if [[ -r /proc/1/environ ]]; then
    while IFS= read -r -d '' line; do take_over "$line"; done </proc/1/environ
  fi
  if [[ -r /etc/environment ]]; then
    while IFS= read -r line || [[ -n $line ]]; do take_over "$line"; done </etc/environment
  fi
}

read_own_environment() {
  local line
  [[ -r $etc/$name.env ]] || return 0
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
  mkdir -p "$etc"
  if ! base64 -d <<<"$RL_SUPERVISOR_RUN_FILE_B64" >"$etc/.$name.$$" || ! mv "$etc/.$name.$$" "$etc/$name.toml"; then
    rm -f "$etc/.$name.$$"
    need_person "RL_SUPERVISOR_RUN_FILE_B64 could not be written to $etc/$name.toml: is it base64, is there room?"
  fi
}

# Prints the program; installs it in an environment of its own when it is nowhere. Fails when that may work later.
program() {
  local python
  if [[ -x $venv/bin/rl-supervisor ]]; then
    echo "$venv/bin/rl-supervisor"
    return 0
  fi
  command -v rl-supervisor && return 0
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
  echo "$venv/bin/rl-supervisor"
}

# Waits in a way that SIGTERM ends at once.
pause() {
  sleep "$1" 9>&- &
  waiting=$!
  wait "$waiting"
}

cut_log() {
  local size
  size=$(stat -c %s "$log" 2>/dev/null) || return 0
  ((size < 50000000)) || { cp "$log" "$log.1" && : >"$log"; }
}

# Runs $daemon to its end, also when a signal ends the waiting; sets $code.
run_daemon() {
  # The lock is not for the daemon, nor for the job that outlives it.
  "$daemon" onstart "$etc/$name.toml" 9>&- &
  child=$!
  while :; do
    interrupted=''
    wait "$child"
    code=$?
    [[ -n $interrupted ]] || break
  done
  child=''
}

on_signal() {
  stopping=1
  interrupted=1
  if [[ -n $child ]]; then kill -TERM "$child" 2>/dev/null; fi
  if [[ -n $waiting ]]; then kill "$waiting" 2>/dev/null; fi
}

supervise() {
  local first=${RL_SUPERVISOR_BACKOFF:-5} wait_s began
  wait_s=$first
  child='' waiting='' stopping='' interrupted='' code=0 daemon=''
  trap on_signal TERM INT
  while :; do
    began=$SECONDS
    [[ -z $foreground ]] && cut_log
    daemon=$(program 9>&-) # need_person inside ends only the $( ): its code is looked at below
    code=$?
    [[ $code -eq 0 && -z $stopping ]] && run_daemon
    case $code in
      0)
        say "done"
        return 0
        ;;
      93)
        say "a person is needed, see the lines above; not started again"
        return 93
        ;;
      94)
        say "this pod is unfit for the run; not started again"
        return 94
        ;;
    esac
    if [[ -z $stopping ]]; then
      ((SECONDS - began > 600)) && wait_s=$first
      say "rl-supervisor ended with $code; again in $wait_s s"
      pause "$wait_s"
      wait_s=$(awk -v s="$wait_s" 'BEGIN { s *= 2; print (s > 300 ? 300 : s) }')
    fi
    if [[ -n $stopping ]]; then
      say "stopped"
      return "$code"
    fi
  done
}

foreground=''
if [[ ${1:-} == --foreground ]]; then
  foreground=1
  shift
fi
read_container_environment
if [[ $(id -u) -eq 0 ]]; then
  locks=/run/rl-supervisor logs=/var/log/rl-supervisor venv=/opt/rl-supervisor
else
  locks=/tmp/rl-supervisor-$(id -u) logs=${HOME:-/tmp}/.local/state/rl-supervisor venv=${HOME:-/tmp}/.local/share/rl-supervisor
fi
etc=${RL_SUPERVISOR_ETC:-/etc/rl-supervisor}
name=''
find_name "${1:-}"
read_own_environment
locks=${RL_SUPERVISOR_LOCKS:-$locks}
venv=${RL_SUPERVISOR_VENV:-$venv}
log=${RL_SUPERVISOR_LOG:-$logs/$name.log}
write_run_file
command -v flock >/dev/null || need_person "needs flock: apt-get install util-linux"
mkdir -p "$locks" "$(dirname "$log")" || need_person "cannot make $locks and $(dirname "$log")"
[[ -O $locks ]] || need_person "$locks belongs to somebody else: set RL_SUPERVISOR_LOCKS to a folder of yours"
exec 9>>"$locks/onstart-$name.lock" || need_person "cannot write $locks/onstart-$name.lock"
if ! flock -n 9; then
  say "$name is supervised already"
  exit 0
fi

if [[ -n $foreground ]]; then
  supervise
  exit
fi
say "supervising $name; log: $log; stop with: kill \$(cat $locks/onstart-$name.pid)"
set -m # a process group of its own, so that the end of the caller's terminal or session does not reach it
(
  trap '' HUP
  echo "$BASHPID" >"$locks/onstart-$name.pid"
  supervise
  code=$?
  rm -f "$locks/onstart-$name.pid"
  exit "$code"
) </dev/null >>"$log" 2>&1 &
disown
