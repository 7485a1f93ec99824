"""A run on Slurm: the script and the ends of a job by themselves, and by choice on a real Slurm of four nodes."""
