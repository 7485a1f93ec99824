"""Puts the units on a machine with systemd, and takes them away again."""
