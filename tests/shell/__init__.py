"""The hard shell: what other users of the machine, and files that they can write, cannot do to a run."""
