#!/bin/bash
# Starts a part of prime-rl on its machine, as the launcher's own script does: bash part.sh NAMES LIMIT PROGRAM ...
# It runs in the checkout. NAMES: variables that what it was given wins with, over .env.
read -ra names <<<"$1"
kept=$(declare -px "${names[@]}" 2>/dev/null)
[ -z "$2" ] || ulimit -l "$2"
shift 2
# shellcheck source=/dev/null
[ -f .env ] && . ./.env
eval "$kept"
# InfiniBand alone, where there is some.
if [ -z "${NCCL_IB_HCA:-}" ]; then
  for port in /sys/class/infiniband/*/ports/*; do
    [ "$(cat "$port/link_layer" 2>/dev/null)" = InfiniBand ] || continue
    device=${port%/ports/*} device=${device##*/}
    case ",${NCCL_IB_HCA:-}," in *",$device,"*) ;; *) export NCCL_IB_HCA="${NCCL_IB_HCA:+$NCCL_IB_HCA,}$device" ;; esac
  done
fi
exec "$@"
