"""A RunPod of our own on loopback, for tests: GraphQL and v2 over one account, chosen faults, a ledger of what bills.

It is made from runpod/docs (openapi 2.0.0, sdks/graphql), from the queries of runpod-python, dstack, gpuhunt and
skypilot, and from errors that users report, not from our client, so that both do not share one misreading. What only
an account would tell is guessed, or can be chosen here: if the live price is for one GPU or for all (``whole_price``),
if an outbid pod comes back by itself (``wakes``), if each list shows the other's pods (``hidden``). GraphQL's texts
for a low bid and a low balance are guesses, and so is what a pod costs beside its GPUs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fleet import graphql
from tests.fleet.fake_service import FakeService, Fault, ServiceHandler

KEY = "rpa_0123456789ABCDEF-of-the-tests"
GPU = "NVIDIA H100 80GB HBM3"
SOLD = "There are no longer any instances available with the requested specifications. Please refresh and try again."
ROUTES = (
    ("list", "GET", r"/v2/pods"),
    ("create", "POST", r"/v2/pods"),
    ("destroy", "DELETE", r"/v2/pods/([^/]+)"),
    ("log", "GET", r"/v2/pods/([^/]+)/logs"),
    ("graphql", "POST", r"/graphql"),
)
ROOTS = {
    "gpuTypes": "search",
    "podRentInterruptable": "rent",
    "podFindAndDeployOnDemand": "deploy",
    "podTerminate": "terminate",
    "podBidResume": "bid",
    "podResume": "resume",
    "podStop": "stop",
    "pod": "one",
}


def problem(status: int, title: str, detail: str) -> tuple[int, dict[str, Any]]:
    return status, {"title": title, "status": status, "detail": detail}


def refusal(message: str, code: str = "RUNPOD") -> dict[str, Any]:
    """What GraphQL answers, with HTTP 200."""
    extensions = {"extensions": {"code": code}} if code else {}
    return {"errors": [{"message": message, "path": ["x"], **extensions}], "data": None}


STATUS_FAULTS: dict[str, tuple[int, object]] = {
    "401": problem(401, "Unauthorized", "missing bearer token"),
    "402": problem(402, "Payment Required", "insufficient balance"),
    "403": problem(403, "Forbidden", "this key lacks access"),
    "400": problem(400, "Bad Request", SOLD),
    "404": problem(404, "Not Found", "resource not found"),
    "404 page": (404, "<html><body><h1>404 Not Found</h1></body></html>"),
    "409": problem(409, "Conflict", "not now"),
    "410": problem(410, "Gone", "this API was retired"),
    "422": problem(422, "Unprocessable Entity", "Request validation failed."),
    "429": problem(429, "Too Many Requests", "rate limit exceeded for the minute window"),
    "500": problem(500, "Internal Server Error", "boom"),
    "502": (502, "<html><body><h1>502 Bad Gateway</h1></body></html>"),
    "malformed": (200, '{"pods": [{"id": "a"'),
    "html": (200, "<html>Under maintenance</html>"),
    "array": (200, "[]"),
    "empty": (200, {}),
    "null": (200, {"data": None}),
    "anonymous": (200, {"data": {"myself": None}}),
    "partial": (200, {"data": {"myself": {"pods": []}}, "errors": [{"message": "a resolver failed"}]}),
    "internal": (
        200,
        refusal("Something went wrong. Please try again later or contact support.", "INTERNAL_SERVER_ERROR"),
    ),
    "sold": (200, refusal(SOLD)),
    "poor": (200, refusal("Your account balance is too low to rent this pod.")),
    "low bid": (200, refusal("Your bid is below the lowest one.")),
    "unknown": (200, refusal("A sentence of next year.")),
    "no code": (200, refusal("A sentence of next year.", "")),
    "no session": (200, refusal("Context creation failed", "UNAUTHENTICATED")),
    "hasty": (200, refusal("Too many requests, slow down.")),
}
ACTED_FAULTS = {"late", "reset", "lost", "drip", "nulls"}

POD_BODY = {
    *("name", "image", "args", "disk", "ports", "env", "registry", "mounts", "cloud", "cpu", "gpu", "dataCenterIds"),
    *("globalNetworking", "startJupyter", "startSsh", "templateId"),
}
_LEAVES = (
    "containerDiskInGb costPerHr desiredStatus dockerArgs dockerId env gpuCount id imageName lastStatusChange machineId"
)
_LEAVES += " memoryInGb name podType port ports uptimeSeconds vcpuCount volumeInGb volumeMountPath"
_GPU = "maxGpuCount id displayName manufacturer memoryInGb cudaCores secureCloud communityCloud securePrice"
_GPU += " communityPrice oneMonthPrice threeMonthPrice oneWeekPrice communitySpotPrice secureSpotPrice"
TYPES: dict[str, dict[str, str]] = {
    "query": {"myself": "User", "gpuTypes": "GpuType", "pod": "Pod"},
    "mutation": {
        **dict.fromkeys(("podRentInterruptable", "podFindAndDeployOnDemand"), "Pod"),
        **dict.fromkeys(("podBidResume", "podResume", "podStop"), "Pod"),
        "podTerminate": "",
    },
    "User": {"id": "", "email": "", "clientBalance": "", "currentSpendPerHr": "", "pods": "Pod"},
    "Pod": dict.fromkeys(_LEAVES.split(), "") | {"machine": "Machine", "runtime": "Runtime"},
    "Machine": {"gpuDisplayName": "", "podHostId": ""},
    "Runtime": {"uptimeInSeconds": "", "ports": "Port"},
    "Port": dict.fromkeys(("ip", "isIpPublic", "privatePort", "publicPort", "type"), ""),
    "GpuType": dict.fromkeys(_GPU.split(), "") | {"lowestPrice": "LowestPrice"},
    "LowestPrice": dict.fromkeys(("minimumBidPrice", "uninterruptablePrice", "stockStatus"), ""),
}
_RENT = "name imageName cloudType gpuTypeId gpuCount containerDiskInGb volumeInGb volumeMountPath dockerArgs env ports"
_RENT += " dataCenterId minDownload minUpload startSsh supportPublicIp minVcpuCount minMemoryInGb"
INPUTS = {
    "gpuTypes": {"id", "ids"},
    "lowestPrice": {"gpuCount", "secureCloud", "dataCenterId", "minDisk", "minDownload", "minUpload", "countryCode"},
    "podRentInterruptable": {*_RENT.split(), "bidPerGpu"},
    "podFindAndDeployOnDemand": set(_RENT.split()),
    "podBidResume": {"podId", "bidPerGpu", "gpuCount"},
    "podResume": {"podId", "gpuCount"},
    **{name: {"podId"} for name in ("podTerminate", "podStop", "pod")},
}


@dataclass
class Machine:
    """``price`` and ``bid``: dollars an hour for one GPU, on demand and at the least; None where it is not let so."""

    id: str
    free: int
    price: float | None
    bid: float | None
    cloud: str = "SECURE"
    region: str = "EU-RO-1"
    gpu: str = GPU
    down: float = 2000.0
    up: float = 1500.0


@dataclass
class Rental:
    """One line of the ledger. GPUs bill while the pod is not stopped; there is no volume."""

    pod: str
    label: str
    env: dict[str, str]
    since_s: float
    until_s: float | None = None


@dataclass
class RefusalError(Exception):
    """What is answered in place of the thing asked for: an HTTP status for v2, an error for GraphQL."""

    status: int
    detail: str


@dataclass
class FakeRunpod(FakeService):
    """Use as a context manager; ``url`` is where it listens. Times are of ``clock``."""

    clock: Callable[[], float] = time.monotonic
    key: str = KEY
    credit: object = 25.5
    quota: int = 10**6  # requests a minute to v2
    whole_price: bool = True
    wakes: bool = False
    runs_at_once: bool = False
    machines: dict[str, Machine] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    hidden: set[tuple[str, str]] = field(default_factory=set)  # route of a list, pod
    ledger: list[Rental] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    keys_seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._times: list[float] = []
        self._made = 0

    def handler(self) -> type[ServiceHandler]:
        return _Handler

    # ------------------------------------------------------------ what tests do

    def add_machine(self, price: float | None = None, bid: float | None = None, gpus: int = 2, **more: Any) -> Machine:
        with self.lock:
            machine = Machine(f"m{self._next()}", gpus, price, bid, **more)
            self.machines[machine.id] = machine
            return machine

    def add_pod(self, machine: Machine, count: int = 2, **fields: Any) -> str:
        with self.lock:
            pod_id = f"pod{self._next()}abc"
            row = {"name": "", "image": "x", "env": {}, "args": "", "disk": 10, "bid": None, "status": "PROVISIONING"}
            self.pods[pod_id] = row | {"id": pod_id, "count": count, "machine": machine} | fields
            machine.free -= count
            self.ledger.append(Rental(pod_id, self.pods[pod_id]["name"], self.pods[pod_id]["env"], self.clock()))
            if self.runs_at_once:
                self.set_state(pod_id, "RUNNING")
            return pod_id

    def set_state(self, pod_id: str, status: str, desired: str = "") -> None:
        """``status`` as v2 tells it. ``desired`` as GraphQL does: by default what goes with it."""
        with self.lock:
            self.pods[pod_id] |= {"status": status, "desired": desired}

    def set_lowest_bid(self, machine: Machine, bid: float) -> None:
        """The market moves: pods of that machine with a lower bid stop; with ``wakes`` others come back."""
        with self.lock:
            machine.bid = bid
            for pod in self.pods.values():
                if pod["machine"] is machine and pod["bid"] is not None:
                    if pod["bid"] < bid:
                        self.set_state(pod["id"], "EXITED")
                    elif self.wakes:
                        self.set_state(pod["id"], "RUNNING")

    def fail(self, name: str, at: str, times: int = 1, retry_after: str = "") -> None:
        assert name in {*STATUS_FAULTS, *ACTED_FAULTS}, name
        assert at in {*(route for route, _, _ in ROUTES), *ROOTS.values(), "pods", "credit"}, at
        self.faults.append(Fault(name, at, times, retry_after))

    def living(self) -> list[Rental]:
        """What is rented now."""
        with self.lock:
            return [rental for rental in self.ledger if rental.until_s is None]

    # ------------------------------------------------------------ v2

    def answer(self, route: str, which: str, body: Any) -> tuple[int, Any]:
        with self.lock:
            self._times = [at for at in self._times if self.clock() - at < 60.0] + [self.clock()]
            if len(self._times) > self.quota:
                return STATUS_FAULTS["429"]  # type: ignore[return-value]
            if route in ("destroy", "log") and which not in self.pods:
                raise RefusalError(404, "pod not found")
            return getattr(self, f"_answer_{route}")(which, body)  # type: ignore[no-any-return]

    def _answer_list(self, which: str, body: Any) -> tuple[int, Any]:
        shown = [pod for pod in self.pods.values() if ("list", pod["id"]) not in self.hidden]
        return 200, {"pods": [self._show(pod) for pod in shown]}

    def _answer_create(self, which: str, body: Any) -> tuple[int, Any]:
        wrong = sorted(set(body) - POD_BODY)
        gpu = body.get("gpu") or {}
        if wrong or not body.get("name") or not body.get("image") or not isinstance(body.get("disk", 1), int):
            raise RefusalError(422, f"additional properties {wrong} not allowed, or name or image is missing: {body}")
        if set(gpu) - {"id", "count"} or not isinstance(body.get("env", {}), dict):
            raise RefusalError(422, f"gpu or env: {body}")
        cloud = body.get("cloud", "SECURE")
        if cloud not in ("SECURE", "COMMUNITY"):
            raise RefusalError(422, "cloud")
        machine = self._place(gpu.get("id"), gpu.get("count", 1), cloud, regions=body.get("dataCenterIds"))
        fields = {name: body[name] for name in ("name", "image", "args", "env", "disk") if name in body}
        return 201, self._show(self.pods[self.add_pod(machine, gpu.get("count", 1), **fields)])

    def _answer_destroy(self, which: str, body: Any) -> tuple[int, Any]:
        self._end(which)
        return 204, None

    def _answer_log(self, which: str, body: Any) -> tuple[int, Any]:
        rows = [{"source": "container", "line": line, "ts": "t"} for line in self.logs.get(which, "").splitlines()]
        return 200, [f"id: t/{number}\ndata: {json.dumps(row)}\n\n" for number, row in enumerate(rows)]

    def _show(self, pod: dict[str, Any]) -> dict[str, Any]:
        machine, runs = pod["machine"], pod["status"] not in ("EXITED", "TERMINATED")
        return {name: pod[name] for name in ("id", "name", "image", "args", "disk", "env", "status")} | {
            "ports": [],
            "registry": None,
            "actions": [],
            "mounts": {},
            "gpu": {"id": machine.gpu, "count": pod["count"]},
            "cloud": machine.cloud,
            "dataCenterId": machine.region,
            "cudaVersion": "12.8",
            "ssh": {"proxy": None, "direct": None},
            "template": None,
            "globalNetworking": {"enabled": False},
            "cost": self._cost(pod) if runs else 0.0,
            "locked": False,
            "runtime": {"uptime": 5, "ports": []} if pod["status"] == "RUNNING" else None,
            "createdAt": "2026-11-01T12:00:00Z",
            "startedAt": None,
        }

    # ------------------------------------------------------------ GraphQL

    def run(self, fields: list[graphql.Field]) -> dict[str, Any]:
        """All root fields of a query that is sound."""
        with self.lock:
            found = {}
            for one in fields:
                given = one.arguments.get("input") or {}
                found[one.alias] = graphql.select(getattr(self, f"_do_{one.name}")(given), one.selection)
            return {"data": found}

    def _do_myself(self, given: dict[str, Any]) -> Any:
        pods = [self._describe(pod) for pod in self.pods.values() if ("pods", pod["id"]) not in self.hidden]
        return {"id": "user1", "email": "a@example.org", "clientBalance": self.credit, "pods": pods}

    def _do_gpuTypes(self, given: dict[str, Any]) -> Any:
        names = sorted({machine.gpu for machine in self.machines.values()} | {GPU, "NVIDIA L4"})
        return [self._describe_gpu(name) for name in names if given.get("id") in (None, name)]

    def _describe_gpu(self, name: str) -> dict[str, Any]:
        def lowest(given: dict[str, Any]) -> dict[str, Any]:
            count = given["gpuCount"]
            fits = [
                machine
                for machine in self.machines.values()
                if machine.gpu == name
                and machine.free >= count
                and given.get("secureCloud") in (None, machine.cloud == "SECURE")
                and given.get("dataCenterId") in (None, machine.region)
                and machine.down >= given.get("minDownload", 0)
                and machine.up >= given.get("minUpload", 0)
            ]
            times = count if self.whole_price else 1
            return {
                "stockStatus": "Low" if fits else None,
                "uninterruptablePrice": _least(fits, "price", times),
                "minimumBidPrice": _least(fits, "bid", times),
            }

        row: dict[str, Any] = {"id": name, "displayName": name[7:], "memoryInGb": 80, "lowestPrice": lowest}
        for cloud in ("secure", "community"):
            here = [one for one in self.machines.values() if (one.gpu, one.cloud) == (name, cloud.upper())]
            row |= {f"{cloud}Price": _least(here, "price", 1), f"{cloud}SpotPrice": _least(here, "bid", 1)}
        return row

    def _do_podRentInterruptable(self, given: dict[str, Any]) -> Any:
        bid = given.get("bidPerGpu")
        if not isinstance(bid, int | float):
            raise RefusalError(200, "bidPerGpu is required")
        machine = self._place_given(given, bid)
        return self._describe(self.pods[self.add_pod(machine, given["gpuCount"], bid=bid, **_fields_of(given))])

    def _do_podFindAndDeployOnDemand(self, given: dict[str, Any]) -> Any:
        machine = self._place_given(given, None)
        return self._describe(self.pods[self.add_pod(machine, given["gpuCount"], **_fields_of(given))])

    def _do_podBidResume(self, given: dict[str, Any]) -> Any:
        pod = self._find(given, "pod not found")
        if pod["status"] != "EXITED":
            raise RefusalError(200, "Cannot resume a pod that is not in exited state")
        if pod["bid"] is None:
            raise RefusalError(200, "Cannot resume an on demand pod as a spot pod.")
        if given["bidPerGpu"] < (pod["machine"].bid or 0.0):
            raise RefusalError(200, "You have been outbid.")
        pod["bid"] = given["bidPerGpu"]
        self.set_state(pod["id"], "RUNNING")
        return self._describe(pod)

    def _do_podStop(self, given: dict[str, Any]) -> Any:
        pod = self._find(given, "pod not found")
        self.set_state(pod["id"], "EXITED")
        return self._describe(pod)

    def _do_podTerminate(self, given: dict[str, Any]) -> Any:
        self._end(self._find(given, "pod not found to terminate")["id"])

    def _do_pod(self, given: dict[str, Any]) -> Any:
        pod = self.pods.get(given["podId"])
        return None if pod is None else self._describe(pod)

    def _describe(self, pod: dict[str, Any]) -> dict[str, Any]:
        machine, status = pod["machine"], pod["status"]
        usual = status if status in ("EXITED", "TERMINATED") else "RUNNING"
        return {
            "id": pod["id"],
            "name": pod["name"],
            "imageName": pod["image"],
            "desiredStatus": pod.get("desired") or usual,
            "podType": "RESERVED" if pod["bid"] is None else "INTERRUPTABLE",
            "costPerHr": self._cost(pod),
            "gpuCount": pod["count"],
            "machineId": machine.id,
            "dockerArgs": pod["args"],
            "env": [f"{name}={value}" for name, value in pod["env"].items()],
            "machine": {"gpuDisplayName": machine.gpu[7:], "podHostId": f"{pod['id']}-64410065"},
            "runtime": {"uptimeInSeconds": 5, "ports": []} if status == "RUNNING" else None,
        }

    def _find(self, given: dict[str, Any], message: str) -> dict[str, Any]:
        pod = self.pods.get(given["podId"])
        if pod is None:
            raise RefusalError(200, message)
        return pod

    def _place_given(self, given: dict[str, Any], bid: float | None) -> Machine:
        region = given.get("dataCenterId")
        regions, least = ([region] if region else None), (given.get("minDownload", 0), given.get("minUpload", 0))
        where = (given["gpuTypeId"], given["gpuCount"], given["cloudType"])
        return self._place(*where, regions=regions, bid=bid, least=least)

    def _place(
        self,
        gpu: str,
        count: int,
        cloud: str,
        *,
        regions: list[str] | None,
        bid: float | None = None,
        least: tuple[float, float] = (0, 0),
    ) -> Machine:
        fits = [
            machine
            for machine in self.machines.values()
            if (machine.gpu, machine.free >= count) == (gpu, True)
            and cloud in ("ALL", machine.cloud)
            and (not regions or machine.region in regions)
            and (machine.bid if bid is not None else machine.price) is not None
            and (machine.down >= least[0] and machine.up >= least[1])
        ]
        if not fits:
            raise RefusalError(400, SOLD)
        if bid is None:
            return min(fits, key=lambda machine: machine.price or 0.0)
        cheapest = min(fits, key=lambda machine: machine.bid or 0.0)
        if bid < (cheapest.bid or 0.0):
            raise RefusalError(200, "Your bid is below the lowest one.")
        return cheapest

    def _end(self, pod_id: str) -> None:
        pod = self.pods.pop(pod_id)
        pod["machine"].free += pod["count"]
        next(rental for rental in self.ledger if rental.pod == pod_id).until_s = self.clock()

    def _cost(self, pod: dict[str, Any]) -> float:
        each = pod["machine"].price if pod["bid"] is None else pod["bid"]
        return float(pod["count"] * (each or 0.0) + pod["disk"] * 0.1 / 720)

    def _next(self) -> int:
        self._made += 1
        return self._made


def _least(machines: list[Machine], name: str, times: int) -> float | None:
    prices = [price * times for one in machines if (price := getattr(one, name)) is not None]
    return min(prices, default=None)


def _fields_of(given: dict[str, Any]) -> dict[str, Any]:
    env = {one["key"]: one["value"] for one in given.get("env") or []}
    names = {"name": "name", "image": "imageName", "args": "dockerArgs", "disk": "containerDiskInGb"}
    return {name: given.get(theirs) or "" for name, theirs in names.items()} | {"env": env}


class _Handler(ServiceHandler):
    service: FakeRunpod

    def serve(self) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = [(r, m) for r, method, p in ROUTES if method == self.command and (m := re.fullmatch(p, parts.path))]
        if not known:
            self._send(*problem(404, "Not Found", "no such route"))
            return
        route, match = known[0]
        asked = json.loads(data) if data else {name: one[0] for name, one in parse_qs(parts.query).items()}
        fields: list[graphql.Field] = []
        wrong = ""
        if route == "graphql":
            try:
                kind, fields = graphql.read(asked["query"], asked.get("variables") or {})
                graphql.check(kind, fields, TYPES, INPUTS)
                route, asked = _route_of(fields[0]), fields[0].arguments.get("input")
            except graphql.InvalidQueryError as error:
                wrong = str(error)
        self.service.asked.append((route, asked))
        self.service.keys_seen.add(self.headers.get("Authorization") or "")
        fault = self.service.take_fault(route)
        name = fault.name if fault else ""
        if name == "reset":
            self.reset()
        elif name in STATUS_FAULTS:
            self._send(*STATUS_FAULTS[name], retry_after=fault.retry_after if fault else "")
        elif self.headers.get("Authorization") != f"Bearer {self.service.key}":
            self._send(*STATUS_FAULTS["401"])
        elif wrong:
            self._send(400, refusal(wrong, "GRAPHQL_VALIDATION_FAILED"))
        else:
            self._finish(name, *self._work(route, unquote((*match.groups(), "")[0]), asked, fields))

    def _work(self, route: str, which: str, asked: Any, fields: list[graphql.Field]) -> tuple[int, Any]:
        try:
            return (200, self.service.run(fields)) if fields else self.service.answer(route, which, asked)
        except RefusalError as error:
            if fields:
                return 200, refusal(error.detail)
            return problem(error.status, "Refused", error.detail)

    def _finish(self, fault: str, status: int, answer: Any) -> None:
        if fault == "lost":
            self.reset()
        elif fault == "late":
            self.service.released.wait(20)
        elif fault == "drip":
            self.drip(json.dumps(answer).encode())
        elif isinstance(answer, list):
            self._stream(answer)
        else:
            retry = "12" if status == 429 else ""
            self._send(status, _without_values(answer) if fault == "nulls" else answer, retry_after=retry)

    def _send(self, status: int, answer: object, retry_after: str = "") -> None:
        data = b"" if answer is None else (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if isinstance(answer, str) else "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: list[str]) -> None:
        """It does not end by itself."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(f"{len(event.encode()):x}\r\n{event}\r\n".encode())
        self.wfile.flush()
        self.service.released.wait(20)


def _route_of(one: graphql.Field) -> str:
    if one.name == "myself":
        return "pods" if any(inside.name == "pods" for inside in one.selection) else "credit"
    return ROOTS[one.name]


def _without_values(answer: Any) -> Any:
    """Each value of each row is null; what holds the rows stays."""
    if isinstance(answer, dict):
        return {
            name: _without_values(value) if isinstance(value, dict | list) else None for name, value in answer.items()
        }
    return [dict.fromkeys(one) for one in answer]
