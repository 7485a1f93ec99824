"""The fleet: providers of pods, against services of our own on loopback."""
