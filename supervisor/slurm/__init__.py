"""A run that a Slurm cluster carries: the script of its job, its submission, and what follows from each end of it."""
