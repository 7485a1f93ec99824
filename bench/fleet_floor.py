"""The least that a look at a fleet needs, for `bench.fleet_tick`: the lists of three places, three objects of each run.

One request after the other, over urllib and b2sdk alone: nothing is decided, remembered, or checked. Where to ask is in
the environment, as for a controller; the one word is how many runs there are.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import urllib.request
from typing import Any

from b2sdk.v3 import B2Api, InMemoryAccountInfo

OBJECTS = ("latest.json", "writers/gen_00001.json", "writers/gen_00001.beat.json")
PODS = {"query": "query { myself { pods { id name desiredStatus costPerHr } } }"}


def ask(url: str, key: str, body: object = None) -> Any:
    """The JSON that is answered."""
    headers = {"Authorization": f"Bearer {os.environ[key]}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
        return json.load(answer)


def list_places() -> int:
    """How many pods the three places list."""
    found, after = 0, ""
    while True:
        page = ask(f"{os.environ['VAST_URL']}/api/v1/instances/?limit=25{after}", "VAST_API_KEY")
        found += len(page["instances"])
        if not page["next_token"]:
            break
        after = f"&after_token={page['next_token']}"
        time.sleep(1.0)  # the gap that Vast asks for
    runpod = os.environ["RUNPOD_API_BASE_URL"]
    found += len(ask(f"{runpod}/v2/pods", "RUNPOD_API_KEY")["pods"])
    ask(f"{runpod}/graphql", "RUNPOD_API_KEY", PODS)
    return found + len(
        ask(f"{os.environ['PRIME_API_BASE_URL']}/api/v1/pods/?offset=0&limit=100", "PRIME_API_KEY")["data"]
    )


def main() -> None:
    """List and read, and print how much was there."""
    pods = list_places()
    api = B2Api(InMemoryAccountInfo())
    keys = (os.environ["B2_APPLICATION_KEY_ID"], os.environ["B2_APPLICATION_KEY"])
    api.authorize_account(*keys, realm=os.environ["B2_REALM"])
    bucket, size = api.get_bucket_by_name("the-bucket"), 0
    for number in range(int(sys.argv[1])):
        for name in OBJECTS:
            data = io.BytesIO()
            bucket.download_file_by_name(f"runs/run-{number:03d}/{name}").save(data)
            size += len(data.getvalue())
    print(f"{pods} pods, {size} bytes")


if __name__ == "__main__":
    main()
