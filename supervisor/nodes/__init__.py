"""A run over several machines: the agent of each, and the head's side of it. Loaded only with ``[nodes]``."""
