"""A small server that speaks Backblaze B2's native API over HTTP, for tests: real clients, chosen faults."""

from tests.b2server.http import B2Server
from tests.b2server.state import ALL_CAPABILITIES, Fault, Key

__all__ = ["ALL_CAPABILITIES", "B2Server", "Fault", "Key"]
