"""A page of a run, for browsers: what happened, on one axis of time. Reads, and never writes."""
