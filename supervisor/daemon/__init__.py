"""The loop that joins sensors, core, effects and journal, and what else lives in the daemon's process."""
