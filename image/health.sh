#!/bin/sh
# The image's HEALTHCHECK: does somebody look after the run? Ends with 1 only where no daemon answers and no job lives: what
# replaces an unhealthy container must never end a training for it. Any daemon's answer will do, whatever its run does.
nanny=$(pgrep -o -x rl-nanny)
if [ -n "$nanny" ]; then # its run file may lie anywhere and name a socket anywhere: supervisorctl reads it as one of its own
  file=$(tr '\0' '\n' <"/proc/$nanny/cmdline" | grep '\.toml$' | tail -n 1)
  if [ -n "$file" ]; then
    RL_SUPERVISOR_ETC=$(dirname "$file")
    export RL_SUPERVISOR_ETC
  fi
fi
if timeout 20 supervisorctl status --json 2>/dev/null | grep -q '"uptime_s"'; then # only a daemon says for how long it runs
  echo "The daemon answers."
  exit 0
fi
for name in rl-shim rl-exit rl-signal; do
  if pgrep "^$name" >/dev/null; then
    echo "No daemon answers. The job lives, and the next daemon takes it over."
    exit 0
  fi
done
echo "No daemon answers, and no job lives."
exit 1
