#!/bin/sh
# The image's HEALTHCHECK: does somebody look after the run? Ends with 1 only where no daemon answers and no job lives: what
# replaces an unhealthy container must never end a training for it.
for socket in "${RL_SUPERVISOR_SOCKET_DIR:-/run/rl-supervisor}"/*.sock; do
  if [ -S "$socket" ] && curl --silent --fail-with-body --max-time 20 --unix-socket "$socket" http://localhost/healthz; then exit 0; fi
done
if pgrep '^rl-(shim|exit|signal)' >/dev/null; then
  echo "No daemon answers. The job lives, and the next daemon takes it over."
  exit 0
fi
echo "No daemon answers, and no job lives."
exit 1
