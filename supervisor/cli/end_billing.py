"""The very last act of a pod: it ends its own billing, with the key that its provider put there for this.

Only where the run file says so, the store shows that this pod gave the run back and holds no step that is nowhere else,
and no other run has a daemon here. What fails is said, and changes no exit code.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from supervisor.base import http, logs
from supervisor.base.errors import SupervisorError
from supervisor.checkpoints import claims
from supervisor.checkpoints.writers import host_of
from supervisor.cli import which
from supervisor.config.settings import RunFile, load
from supervisor.storage import open_store

TRIES, PAUSE_S = 3, 5.0
"""The pause is above the gap that Vast.ai wants between two requests (3 s; docs.vast.ai, rate limits)."""


@dataclass(frozen=True)
class OwnPod:
    """How this pod is destroyed with its own key. ``key`` is never shown."""

    name: str  # for people
    method: str
    url: str
    key: str
    body: bytes = b""


def find_own_pod(environ: Mapping[str, str]) -> OwnPod | None:
    """By what the provider sets inside; None where it is none that gives a pod such a key.

    Vast.ai: CONTAINER_API_KEY may start, stop and destroy this instance only. RunPod: its key is of this pod.
    """
    key, name = environ.get("CONTAINER_API_KEY"), environ.get("CONTAINER_ID")
    if key and name:
        url = environ.get("VAST_URL", "https://console.vast.ai")
        return OwnPod(
            f"Vast.ai instance {name}", "DELETE", f"{url}/api/v0/instances/{quote(name, safe='')}/", key, b"{}"
        )
    key, name = environ.get("RUNPOD_API_KEY"), environ.get("RUNPOD_POD_ID")
    if key and name:
        url = environ.get("RUNPOD_API_BASE_URL", "https://api.runpod.io")
        asked = {
            "query": "mutation End($id: String!) { podTerminate(input: {podId: $id}) }",
            "variables": {"id": name},
        }
        return OwnPod(f"RunPod pod {name}", "POST", f"{url}/graphql", key, json.dumps(asked).encode())
    return None


def end_own_billing(path: Path, environ: Mapping[str, str], sleep: Callable[[float], None] = time.sleep) -> None:
    """Destroy this pod where ``hooks.end_billing`` says so, and where nothing is lost by it."""
    try:
        run_file = load(path)
        if not run_file.hooks.end_billing:
            return
        why_not = _why_not(run_file, environ)
    except SupervisorError as error:
        why_not = f"it cannot be looked at what would be lost ({error})"
    pod = find_own_pod(environ)
    if not why_not and pod is None:
        why_not = "its provider gave it no key for that (CONTAINER_API_KEY, RUNPOD_API_KEY)"
    if why_not or pod is None:
        logs.say("warning", "end-billing", f"This pod does not end its own billing: {why_not}. End it by hand.")
        return
    logs.say("info", "end-billing", f"All is in the store. Destroying {pod.name} (hooks.end_billing).")
    for number in range(TRIES):
        if number:
            sleep(PAUSE_S)
        if not (problem := _destroy_pod(pod)):
            logs.say("info", "end-billing", f"{pod.name} is being destroyed.")
            return
    logs.say("error", "end-billing", f"{pod.name} is still billed: {problem}. End it by hand.")


def _why_not(run_file: RunFile, environ: Mapping[str, str]) -> str:
    """What would be lost, a clause; "" for nothing. Raises StoreError."""
    from supervisor.fleet.run_look import look_at_run  # with it the fleet's controller, for which few runs have a use

    store, run_id = run_file.store, run_file.run.id
    if run_file.store_url.startswith("file:"):
        return "its steps are in a folder, which may go with it (store.url)"
    if others := [one.id for one in which.list_runs_with_daemon() if one.id != run_id]:
        return f"run {others[0]} is still watched here"
    opened = open_store(run_file.store_url, store.service, environ, region=store.region)
    claim = look_at_run(opened, run_id).claim
    if not claim.released or host_of(claims.look(opened, run_id).writer) != socket.gethostname():
        return "the store does not show that this pod gave the run back"
    if claim.unpublished is None:
        return "it is not known which steps are only on its disk"
    if claim.unpublished:
        return f"step {max(claim.unpublished)} is only on its disk"
    return ""


def _destroy_pod(pod: OwnPod) -> str:
    """Why it did not work, a clause without the key; "" when it did, or when the pod is gone already."""
    headers = {"Authorization": f"Bearer {pod.key}", "Content-Type": "application/json"}
    try:
        page = http.ask(pod.url, pod.method, headers, body=pod.body)
    except http.NoAnswerError as error:
        return str(error)
    if pod.method == "DELETE" and page.status in (404, 410):
        return ""
    try:
        told = json.loads(page.text)
    except ValueError:
        told = None
    if not 200 <= page.status < 300:
        return f"HTTP {page.status}"
    # Vast.ai says so in `success`, RunPod answers 200 to all and says what failed in `errors`.
    refused = not isinstance(told, dict) or told.get("success") is False or told.get("errors")
    return "it was refused" if refused else ""
