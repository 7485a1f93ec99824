"""The run file: its tables, how it is read, and the settings that the core gets from it."""
