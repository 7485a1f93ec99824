#!/bin/bash
# Made by: rl-supervisor slurm script {shown}. What it asks for stands in [slurm] of that file.
{options}
set -u
program=({program}) run={run}
{setup}{agents}told='' sent=''
trap 'told=--told' TERM
for try in 1 2 3; do
  {srun} "${{program[@]}}" slurm step "$run" &
  step=$!
  while [[ -d /proc/$step ]]; do
    # The daemon publishes and leaves. It may not have begun yet when the signal comes.
    if [[ -n $told && -z $sent ]] && "${{program[@]}}" slurm tell "$run"; then sent=1; fi
    sleep 1
  done
  wait "$step"
  code=$?
  # Where nanny and daemon were killed, the next ones look after what lives here, without the queue.
  [[ $code -gt 128 && -z $told ]] || break
done
trap '' TERM # what requeues this job ends this script as well, and must not be ended halfway
${{told:+timeout 30}} "${{program[@]}}" slurm ended "$run" --code "$code" $told
end=$?
# The file system that holds the program hangs. A job that runs into its wall time would not come back.
if [[ $end -eq 124 ]]; then {requeue}; fi
exit "$end"
