export RL_SUPERVISOR_HEAD="${{SKYPILOT_NODE_IPS%%$'\n'*}}:{port}"
start() {{
{boot}
}}
if [ "${{SKYPILOT_NODE_RANK:-0}}" != 0 ]; then
  set -- --node
else  # the first node's own agent begins when the daemon's start has installed rl-supervisor
  (until command -v "${{RL_SUPERVISOR_VENV:-/opt/rl-supervisor}}/bin/rl-supervisor" rl-supervisor >/dev/null; do
    sleep 1
  done
  start --node) &
fi
start "$@"
