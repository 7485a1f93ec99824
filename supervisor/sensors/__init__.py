"""Sensors: they look at the world beside the core and post facts. They never judge, never act, never block it."""
