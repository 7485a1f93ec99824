"""``rl-supervisor logs``: what attempts left in the store, also those of pods that are gone."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime

from supervisor.base.secrets import mask_secrets
from supervisor.cli import store_commands, where
from supervisor.cli.render import log_for_stdout, safe, table


def logs(options: argparse.Namespace) -> int:
    """List them, print those of one attempt, or write them to a folder. Raises SupervisorError."""
    found = store_commands.logs(where.run_file_of(options), options.attempt)["logs"]
    if options.to is not None and options.attempt is not None:
        for name, text in found.items():
            target = options.to / name.replace("/", "-")  # "JOURNAL/NAME", each checked when it was read
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(mask_secrets(text))  # an older version may have sent it
        print(f"{len(found)} logs are in {options.to}.")
    elif options.as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif options.attempt is None:
        rows = [("ATTEMPT", "LOG", "SENT", "POD")]
        for log in found:
            when = datetime.fromtimestamp(log["uploaded_at"], UTC).strftime("%Y-%m-%d %H:%M UTC")
            rows.append((str(log["attempt"]), safe(log["name"]), when, log["journal"][:8]))
        print("\n".join(table(rows)) if found else "No attempt has left a log in the store yet.")
    else:
        for name, text in found.items():
            print(f"==> {safe(name)} <==")
            if name.endswith("-trace.jsonl"):
                print("A trace for `rl-supervisor replay`: take it along with --to DIR.\n")
                continue
            print(log_for_stdout(text))
    return 0
