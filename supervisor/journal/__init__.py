"""The flight recorder: what the core consumed and decided, its older part, traces and their replay."""
