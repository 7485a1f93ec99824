"""A Prime Intellect of our own on loopback, for tests: a market, pods, chosen faults, and a ledger of what was rented.

It is made from the vendor's OpenAPI document (as kept in api-evangelist/prime-intellect, openapi/_original), from its
client (PrimeIntellect-ai/prime) and from its issues, not from our client, so that both do not share one misreading.
What only an account would tell is guessed and said so here: that an offer which is gone is answered with 404, that a
name with other characters than letters, digits and dashes is refused by the server as the vendor's client refuses it,
and that a log is one JSON text.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fleet.fake_service import FakeService, Fault, ServiceHandler

KEY = "pit_0123456789abcdef-of-the-tests"
TEMPLATE = "cm2szl4a20001tl3pyq7ua6o7"
ROUTES = (
    ("search", "GET", r"/api/v1/availability/gpus"),
    ("clusters", "GET", r"/api/v1/availability/multi-node"),
    ("list", "GET", r"/api/v1/pods/"),
    ("create", "POST", r"/api/v1/pods/"),
    ("status", "GET", r"/api/v1/pods/status"),
    ("log", "GET", r"/api/v1/pods/([0-9a-f]{32})/log"),
    ("one", "GET", r"/api/v1/pods/([0-9a-f]{32})"),
    ("destroy", "DELETE", r"/api/v1/pods/([0-9a-f]{32})"),
    ("credit", "GET", r"/api/v1/billing/wallet"),
)
STATUS_FAULTS: dict[str, tuple[int, object]] = {
    "401": (401, {"detail": "Invalid or expired API key"}),
    "402": (402, {"detail": "Insufficient balance. Please add funds to continue."}),
    "403": (403, {"detail": "This API key has no permission for instances"}),
    "404": (404, {"detail": "Not Found"}),
    "404 page": (404, "<html><body><h1>404 Not Found</h1></body></html>"),
    "408": (408, {"detail": "Request timeout"}),
    "409": (409, {"detail": "Conflict"}),
    "422": (422, {"errors": [{"param": "pod.gpuType", "details": "Input should be 'H100_80GB' or 'A100_80GB'"}]}),
    "stock": (400, {"detail": "Requested GPU is out of stock"}),
    "429": (429, {"detail": "Rate limit exceeded"}),
    "500": (500, {"detail": "Internal Server Error"}),
    "502": (502, "<html><body><h1>502 Bad Gateway</h1></body></html>"),
    "malformed": (200, '{"data": [{"id": 1'),
    "html": (200, "<html>Under maintenance</html>"),
    "array": (200, "[]"),
    "empty": (200, {}),
}
ACTED_FAULTS = {"late", "reset", "lost", "drip", "nulls"}
GPU_TYPES = {"CPU_NODE", "A100_80GB", "H100_80GB", "H200_141GB", "RTX4090_24GB"}
REGIONS = {"canada", "eu_east", "eu_north", "eu_west", "united_states"}
IMAGES = {"ubuntu_22_cuda_12", "cuda_12_6_pytorch_2_7", "prime_rl", "custom_template"}
POD_FIELDS = {
    *("name", "cloudId", "gpuType", "socket", "gpuCount", "diskSize", "vcpus", "memory", "maxPrice", "image"),
    *("customTemplateId", "dataCenterId", "country", "security", "envVars", "jupyterPassword", "sshKeyId"),
    *("autoRestart", "prepaidForHr"),
}
SPEC: dict[str, Any] = dict.fromkeys(
    ("minCount", "defaultCount", "maxCount", "pricePerUnit", "step", "defaultIncludedInPrice", "additionalInfo")
)
OFFER: dict[str, Any] = {
    "cloudId": "n3-H100x2",
    "gpuType": "H100_80GB",
    "socket": "SXM5",
    "provider": "hyperstack",
    "region": "canada",
    "dataCenter": "CANADA-1",
    "country": "CA",
    "gpuCount": 2,
    "gpuMemory": 160,
    "disk": SPEC | {"minCount": 50, "defaultCount": 100, "maxCount": 2000, "pricePerUnit": 0.001, "step": 1},
    "vcpu": SPEC | {"defaultCount": 60},
    "memory": SPEC | {"defaultCount": 360},
    "internetSpeed": 2000,
    "interconnect": None,
    "interconnectType": None,
    "provisioningTime": 5,
    "stockStatus": "Available",
    "security": "secure_cloud",
    "prices": {"onDemand": 4.0, "communityPrice": None, "isVariable": False, "currency": "USD"},
    "images": ["ubuntu_22_cuda_12", "cuda_12_6_pytorch_2_7", "custom_template"],
    "isSpot": None,
    "prepaidTime": None,
}


@dataclass
class Rental:
    """One line of the ledger: who asked for what, and until when it bills."""

    pod: str
    label: str
    env: dict[str, str]
    since_s: float
    until_s: float | None = None


@dataclass
class Refusal(Exception):
    status: int
    answer: object


@dataclass
class FakePrime(FakeService):
    """Use as a context manager; ``url`` is where it listens. Times are of ``clock``."""

    clock: Callable[[], float] = time.monotonic
    key: str = KEY
    credit: object = 25.5
    page_size: int = 100
    templates: tuple[str, ...] = (TEMPLATE,)
    offers: list[dict[str, Any]] = field(default_factory=list)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    ledger: list[Rental] = field(default_factory=list)
    logs: dict[str, object] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def handler(self) -> type[ServiceHandler]:
        return _Handler

    # ------------------------------------------------------------ what tests do

    def add_offer(self, **fields: Any) -> dict[str, Any]:
        """A kind of machine on the market. Each has a ``cloudId`` of its own."""
        with self.lock:
            row = OFFER | {"cloudId": f"n3-H100x2-{len(self.offers)}"} | fields
            self.offers.append(row)
            return row

    def add_pod(self, name: str | None, **fields: Any) -> str:
        """A pod that a person made."""
        with self.lock:
            pod_id = f"{len(self.ledger) + 1:032x}"  # never one that was
            self.pods[pod_id] = {
                "id": pod_id,
                "userId": "u1",
                "name": name,
                "type": "HOSTED",
                "providerType": "hyperstack",
                "status": "PROVISIONING",
                "installationStatus": "PENDING",
                "installationFailure": None,
                "createdAt": "2026-11-20T05:31:56Z",
                "gpuName": "H100_80GB",
                "gpuCount": 2,
                "socket": "SXM5",
                "priceHr": 4.0,
                "stoppedPriceHr": 0.005,
                "provisioningPriceHr": 0.0,
                "environmentType": "custom_template",
                "sshConnection": None,
                "ip": None,
                "resources": None,
                "isSpot": None,
            } | fields
            self.ledger.append(Rental(pod_id, name or "", {}, self.clock()))
            return pod_id

    def fail(self, name: str, at: str, times: int = 1, retry_after: str = "") -> None:
        assert name in {*STATUS_FAULTS, *ACTED_FAULTS}, name
        assert at in {route for route, _, _ in ROUTES}, at
        self.faults.append(Fault(name, at, times, retry_after))

    def set_state(self, pod_id: str, status: str, installation: str | None = "FINISHED", failure: str = "") -> None:
        with self.lock:
            self.pods[pod_id] |= {"status": status, "installationStatus": installation}
            self.pods[pod_id]["installationFailure"] = failure or None

    def living(self) -> list[Rental]:
        """What bills now."""
        with self.lock:
            return [rental for rental in self.ledger if rental.until_s is None]

    def rental(self, pod_id: str) -> Rental:
        return next(rental for rental in self.ledger if rental.pod == pod_id)

    # ------------------------------------------------------------ what clients ask

    def answer(self, route: str, pod_id: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        with self.lock:
            self.asked.append((route, body or query))
            if route in ("one", "destroy", "log") and pod_id not in self.pods:
                raise Refusal(404, {"detail": "Pod not found"})
            return getattr(self, f"_answer_{route}")(pod_id, query, body)

    def _answer_search(self, _: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        found = list(self.offers)
        for value in query.get("gpu_type", []):
            if value not in GPU_TYPES:
                raise Refusal(422, {"errors": [{"param": "gpu_type", "details": f"{value} is no GPU type"}]})
            found = [row for row in found if row["gpuType"] == value]
        if "regions" in query:
            if wrong := set(query["regions"]) - REGIONS:
                raise Refusal(422, {"errors": [{"param": "regions", "details": f"{sorted(wrong)} are no regions"}]})
            found = [row for row in found if row["region"] in query["regions"]]
        if "gpu_count" in query:
            found = [row for row in found if row["gpuCount"] == int(query["gpu_count"][0])]
        page, size = (int(query.get(name, ["1"])[0]) for name in ("page", "page_size"))
        if not (page >= 1 and 1 <= size <= 100):
            raise Refusal(422, {"errors": [{"param": "page_size", "details": "between 1 and 100"}]})
        size = min(size, self.page_size)
        return {"items": found[(page - 1) * size : page * size], "totalCount": len(found)}

    def _answer_clusters(self, _: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        return {"items": [], "totalCount": 0}

    def _answer_create(self, _: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        pod, provider = body.get("pod"), body.get("provider")
        if not isinstance(pod, dict) or not isinstance(provider, dict) or set(pod) - POD_FIELDS:
            raise Refusal(422, {"errors": [{"param": "pod", "details": f"not permitted: {json.dumps(body)}"}]})
        self._check(pod)
        if isinstance(self.credit, int | float) and self.credit <= 0:
            raise Refusal(*STATUS_FAULTS["402"])
        keys = (("cloudId", "cloudId"), ("socket", "socket"), ("gpuCount", "gpuCount"), ("dataCenter", "dataCenterId"))
        for row in self.offers:
            same = all(row[offered] == pod.get(wanted) for offered, wanted in keys)
            if same and row["provider"] == provider.get("type") and row["stockStatus"] != "Unavailable":
                break
        else:
            raise Refusal(404, {"detail": "No such configuration"})
        if row["provider"] == "massedcompute" and pod.get("maxPrice") is None:  # PrimeIntellect-ai/prime #141
            raise Refusal(400, {"detail": "Missing field: max_price not specified"})
        price = row["prices"]["communityPrice"] or row["prices"]["onDemand"]
        price += (row["disk"].get("pricePerUnit") or 0) * (pod.get("diskSize") or row["disk"]["defaultCount"])
        pod_id = self.add_pod(
            pod["name"], providerType=row["provider"], gpuName=row["gpuType"], gpuCount=row["gpuCount"],
            priceHr=price, isSpot=row["isSpot"], environmentType=pod["image"],
        )  # fmt: skip
        self.ledger[-1].env = {one["key"]: one["value"] for one in pod.get("envVars") or []}
        row["stockStatus"] = "Unavailable"
        return self.pods[pod_id]

    def _check(self, pod: dict[str, Any]) -> None:
        def refuse(param: str) -> None:
            raise Refusal(422, {"errors": [{"param": f"pod.{param}", "details": f"{pod.get(param)!r} is not valid"}]})

        if not re.fullmatch(r"[A-Za-z0-9-]*[A-Za-z][A-Za-z0-9-]*", pod.get("name") or "x"):
            refuse("name")
        if pod.get("image", "ubuntu_22_cuda_12") not in IMAGES:
            refuse("image")
        if (pod.get("image") == "custom_template") != (pod.get("customTemplateId") in self.templates):
            refuse("customTemplateId")
        if not isinstance(pod.get("diskSize", 1) or 1, int):
            refuse("diskSize")
        for one in pod.get("envVars") or []:
            if set(one) != {"key", "value"} or not all(isinstance(value, str) for value in one.values()):
                refuse("envVars")

    def _answer_list(self, _: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        offset, limit = (int(query.get(name, [default])[0]) for name, default in (("offset", "0"), ("limit", "100")))
        rows = list(self.pods.values())
        return {
            "data": rows[offset : offset + min(limit, self.page_size)],
            "total_count": len(rows),
            "offset": offset,
            "limit": limit,
        }

    def _answer_status(self, _: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        rows = [self.pods[one] for one in query.get("pod_ids", []) if one in self.pods]
        names = ("providerType", "status", "sshConnection", "ip", "priceHr", "installationStatus")
        return {"data": [{"podId": row["id"]} | {name: row[name] for name in names} for row in rows]}

    def _answer_one(self, pod_id: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        return self.pods[pod_id]

    def _answer_destroy(self, pod_id: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        """A pod that is over stays in the list for a while (seen by users: TERMINATED beside the living)."""
        self.rental(pod_id).until_s = self.rental(pod_id).until_s or self.clock()
        self.pods[pod_id]["status"] = "TERMINATED" if self.pods[pod_id]["status"] == "DELETING" else "DELETING"
        return {"status": self.pods[pod_id]["status"]}

    def _answer_log(self, pod_id: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        return self.logs.get(pod_id, "")

    def _answer_credit(self, _: str, query: dict[str, list[str]], body: dict[str, Any]) -> object:
        row = {"wallet_id": "w1", "balance_usd": self.credit, "currency": "USD"}
        return row | {"total_billings": 0, "recent_billings": []}


class _Handler(ServiceHandler):
    service: FakePrime

    def serve(self) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = [(r, m) for r, method, p in ROUTES if method == self.command and (m := re.fullmatch(p, parts.path))]
        if not known:
            self._send_elsewhere(parts.path, parts.query)
            return
        route, match = known[0]
        fault = self.service.take_fault(route)
        name = fault.name if fault else ""
        if name == "reset":
            self.reset()
        elif name in STATUS_FAULTS:
            self._send(*STATUS_FAULTS[name], retry_after=fault.retry_after if fault else "")
        elif self.headers.get("Authorization") != f"Bearer {self.service.key}":
            self._send(*STATUS_FAULTS["401"])
        else:
            self._work(route, (*match.groups(), "")[0], parse_qs(parts.query), data, name)

    def _send_elsewhere(self, path: str, query: str) -> None:
        """FastAPI's own: a path that lacks its last slash is redirected, any other one is not found."""
        slashed = f"{path}/"
        if any(method == self.command and re.fullmatch(p, slashed) for _, method, p in ROUTES):
            self.send_response(307)
            self.send_header("Location", f"{self.service.url}{slashed}{'?' if query else ''}{query}")
            self.send_header("Content-Length", "0")
            self.send_header("Connection", "close")  # or the redirected request may come on the one that is closed here
            self.end_headers()
        else:
            self._send(*STATUS_FAULTS["404"])

    def _work(self, route: str, pod_id: str, query: dict[str, list[str]], data: bytes, fault: str) -> None:
        status = 200
        try:
            answer = self.service.answer(route, pod_id, query, json.loads(data or b"{}"))
        except Refusal as refusal:
            status, answer = refusal.status, refusal.answer
        if fault == "lost":
            self.reset()
        elif fault == "late":
            self.service.released.wait(20)
        elif fault == "drip":
            self.drip(json.dumps(answer).encode())
        else:
            self._send(status, _without_values(answer) if fault == "nulls" else answer, is_json=True)

    def _send(self, status: int, answer: object, retry_after: str = "", *, is_json: bool = False) -> None:
        data = (answer if isinstance(answer, str) and not is_json else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(data)


def _without_values(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: _without_values(value) if isinstance(value, list) else None for name, value in answer.items()}
    return [_without_values(one) if isinstance(one, dict) else None for one in answer]
