"""Sends one message with apprise (github.com/caronc/apprise). No daemon imports that: 14 MB, and it may hang."""

from __future__ import annotations

import json
import sys


def main() -> int:
    """``{url, title, body, type}`` on standard input; 0 when it was sent."""
    from apprise import Apprise

    asked = json.load(sys.stdin)
    service = Apprise()
    sent = service.add(asked["url"]) and service.notify(
        body=asked["body"], title=asked["title"], notify_type=asked["type"]
    )
    return 0 if sent else 1


if __name__ == "__main__":
    sys.exit(main())
