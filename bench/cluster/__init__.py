"""A cluster that never was, for a run over many machines: its faults (``draw``), ours in it (``head``), one table."""
