"""The job as processes: launch under a shim, find what belongs to it, stop it, and what it holds."""
