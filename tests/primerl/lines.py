"""Lines as prime-rl's loggers write them to files and terminals: colours are forced in each of them.

Source: utils/logger.py at d70a00f6e, fc6fd48fa and c7a6573de (January, March and August 2026); loguru's level colours.
"""

from __future__ import annotations

LEVELS = {"DEBUG": "\x1b[34m\x1b[1m", "INFO": "\x1b[1m", "SUCCESS": "\x1b[32m\x1b[1m", "WARNING": "\x1b[33m\x1b[1m"}
LEVELS |= {"ERROR": "\x1b[31m\x1b[1m"}


def coloured(level: str, message: str, at: str = "07:26:12") -> str:
    """One line without its end."""
    on = LEVELS[level]
    return f"\x1b[2m{at}\x1b[0m {on}{level: >7}\x1b[0m {on}\x1b[22m{message}\x1b[0m\x1b[0m"
