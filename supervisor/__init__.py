"""Keeps one long-running RL job alive on one rented GPU pod."""

__version__ = "0.1.0"
