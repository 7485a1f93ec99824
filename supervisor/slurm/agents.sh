rank=0
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  (until srun --nodes=1 --ntasks=1 --nodelist="$host" --overlap \
    "${program[@]}" node "$run" --name "$host" --rank "$rank"; do sleep 20; done) &
  rank=$((rank + 1))
done
