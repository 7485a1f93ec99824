"""A Vast.ai of our own on loopback, for tests: offers, machines, bids, chosen faults, and a ledger of what was rented.

It is made from the vendor's documents and from reports of users, not from our client, so that both do not share one
misreading. What only an account would tell is guessed and said so here: that a wrong key gets 404 with ``auth_error``
is from a user's report, that a bid below the lowest is refused with 400 where ``cancel_unavail`` is set is a guess.
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

KEY = "vast-key-0123456789abcdef-of-the-tests"
GAPS_S = {"list": 1.0, "one": 2.0, "create": 4.5, "bid": 5.5, "destroy": 3.0, "search": 6.0}
ROUTES = (
    ("search", "POST", r"/api/v0/bundles/"),
    ("create", "PUT", r"/api/v0/asks/(\d+)/"),
    ("list", "GET", r"/api/v1/instances/"),
    ("retired", "GET", r"/api/v0/instances/"),
    ("bid", "PUT", r"/api/v0/instances/bid_price/(\d+)/"),
    ("log", "PUT", r"/api/v0/instances/request_logs/(\d+)/"),
    ("page", "GET", r"/logs/(\d+)"),
    ("one", "GET", r"/api/v0/instances/(\d+)/"),
    ("destroy", "DELETE", r"/api/v0/instances/(\d+)/"),
    ("credit", "GET", r"/api/v0/users/current/?"),
    ("names", "GET", r"/api/v0/gpu_names/unique/?"),
)
STATUS_FAULTS = {
    "401": (401, {"success": False, "error": "unauthorized", "msg": "bad key"}),
    "402": (402, {"success": False, "error": "insufficient_credit", "msg": "add credit"}),
    "403": (403, {"success": False, "error": "forbidden", "msg": "this key may not do that"}),
    "404": (404, {"success": False, "error": "no_such_ask", "msg": "no such ask"}),
    "410": (410, {"success": False, "error": "gone", "msg": "gone"}),
    "retired": (410, {"success": False, "error": "deprecated_endpoint", "msg": "use another"}),
    "auth": (404, {"success": False, "error": "auth_error", "msg": "Invalid user key"}),
    "500": (500, {"success": False, "error": "server_error", "msg": "boom"}),
    "429": (429, "API requests too frequent: endpoint threshold=5.5"),
    "quota": (429, {"success": False, "error": "search_quota_exceeded", "msg": "come back tomorrow"}),
    "502": (502, "<html><body><h1>502 Bad Gateway</h1></body></html>"),
    "malformed": (200, '{"success": true, "instances": [{"id": 1'),
    "html": (200, "<html>Under maintenance</html>"),
    "array": (200, "[]"),
    "empty": (200, {}),
    "failed": (200, {"success": False, "msg": "something"}),
}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "neq": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "gte": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "lte": lambda a, b: a <= b,
    "in": lambda a, b: a in b,
    "notin": lambda a, b: a not in b,
}


@dataclass
class Rental:
    """One line of the ledger. A machine bills its GPUs while it runs, and its disk until it is destroyed."""

    instance: int
    label: str
    offer: int
    bid: float | None
    env: dict[str, str]
    since_s: float
    until_s: float | None = None
    ran_s: float = 0.0
    running_since_s: float | None = None

    def count(self, now_s: float, *, runs: bool) -> None:
        if self.running_since_s is not None:
            self.ran_s += now_s - self.running_since_s
        self.running_since_s = now_s if runs else None


@dataclass
class Refusal(Exception):
    status: int
    error: str
    msg: str = ""


@dataclass
class FakeVast(FakeService):
    """Use as a context manager; ``url`` is where it listens. Times are of ``clock``."""

    clock: Callable[[], float] = time.monotonic
    key: str = KEY
    page_size: int = 25
    credit: object = 25.5
    keeps_gaps: bool = False
    runs_at_once: bool = False
    offers: dict[int, dict[str, Any]] = field(default_factory=dict)
    instances: dict[int, dict[str, Any]] = field(default_factory=dict)
    ledger: list[Rental] = field(default_factory=list)
    logs: dict[int, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    keys_seen: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last: dict[str, float] = {}
        self._next_id = 1000

    def handler(self) -> type[ServiceHandler]:
        return _Handler

    # ------------------------------------------------------------ what tests do

    def add_offer(self, **fields: Any) -> int:
        """A machine on the market; returns the offer's id."""
        with self.lock:
            offer_id = self._make_id()
            self.offers[offer_id] = OFFER | {"id": offer_id, "machine_id": offer_id * 10, "host_id": 77} | fields
            return offer_id

    def fail(self, name: str, at: str, times: int = 1, retry_after: str = "") -> None:
        """``half``: a create that leaves a stopped machine and says so with ``success: false``."""
        assert name in {*STATUS_FAULTS, "late", "reset", "lost", "drip", "half", "nulls"}, name
        assert at in {route for route, _, _ in ROUTES}, at
        self.faults.append(Fault(name, at, times, retry_after))

    def set_state(self, instance_id: int, actual: str | None, scheduled: str = "running") -> None:
        """``actual`` is what the machine says; ``scheduled`` is what Vast wants of it, now and next."""
        with self.lock:
            states = dict.fromkeys(("cur_state", "intended_status", "next_state"), scheduled)
            self.instances[instance_id] |= {"actual_status": actual} | states
            self._rental(instance_id).count(self.clock(), runs=actual == "running")

    def outbid(self, instance_id: int) -> None:
        self.set_state(instance_id, "exited", "stopped")

    def wake(self, instance_id: int) -> None:
        self.set_state(instance_id, "running")

    def set_lowest_bid(self, offer_id: int, price: float) -> None:
        """The market moves: machines of that offer with a lower bid stop, and those with a higher one come back."""
        with self.lock:
            self.offers[offer_id]["min_bid"] = price
            for rental in self.living():
                if rental.offer == offer_id and rental.bid is not None:
                    self._hold_auction(rental)

    def living(self) -> list[Rental]:
        """What bills now."""
        with self.lock:
            return [rental for rental in self.ledger if rental.until_s is None]

    # ------------------------------------------------------------ what clients ask

    def answer(self, route: str, which: int, query: dict[str, str], body: dict[str, Any]) -> object:
        with self.lock:
            self.asked.append((route, body or query))
            if self.keeps_gaps and route in GAPS_S:
                last, now = self._last.get(route, -1e9), self.clock()
                self._last[route] = now
                if now - last < GAPS_S[route] - 1e-6:
                    return STATUS_FAULTS["429"]
            if route in ("bid", "log", "one", "destroy") and which not in self.instances:
                if route == "one":
                    return 200, {"instances": None}
                raise Refusal(404, "no_such_instance", "Instance not found")
            return getattr(self, f"_answer_{route}")(which, query, body)

    def _answer_search(self, _: int, query: dict[str, str], body: dict[str, Any]) -> object:
        if body.get("type") not in ("bid", "on-demand", "reserved"):
            raise Refusal(400, "invalid_args", "type")
        found = [
            offer
            for offer in self.offers.values()
            if offer["rentable"] and all(_fits(offer.get(name), test) for name, test in body.items() if _is_test(test))
        ]
        for name, direction in reversed(body.get("order", [])):
            found.sort(key=lambda offer: offer.get(name) or 0, reverse=direction == "desc")
        return 200, {"offers": found[: int(body.get("limit") or 64)]}

    def _answer_create(self, which: int, query: dict[str, str], body: dict[str, Any]) -> object:
        offer = self.offers.get(which)
        if offer is None or not offer["rentable"]:
            raise Refusal(404, "no_such_ask", f"ask {which} is gone")
        price = body.get("price")
        if price is not None and not (isinstance(price, int | float) and 0.001 <= price <= min(128, self._cap(offer))):
            raise Refusal(400, "invalid_price", "price out of range")
        if not body.get("image") or len((body.get("onstart") or "").encode()) > 4048:
            raise Refusal(400, "invalid_args", f"image or onstart: {body.get('env')}")
        wins = price is None or price >= offer["min_bid"]
        if not wins and body.get("cancel_unavail"):
            raise Refusal(400, "invalid_price", "bid too low")
        return self._rent(which, body, wins=wins)

    def _rent(self, which: int, body: dict[str, Any], *, wins: bool) -> object:
        offer, instance_id, price = self.offers[which], self._make_id(), body.get("price")
        offer["rentable"] = price is not None  # of a machine that is let by auction, the offer stays
        total = (offer["dph_base"] if price is None else price) + (offer["storage_total_cost"] or 0.0)
        env = body.get("env") or {}
        self.instances[instance_id] = {
            name: offer.get(name)
            for name in ("machine_id", "host_id", "gpu_name", "num_gpus", "geolocation", "storage_cost")
        } | {
            "disk_space": body.get("disk"),
            "storage_total_cost": offer["storage_total_cost"],
            "id": instance_id,
            "label": body.get("label"),
            "is_bid": price is not None,
            "min_bid": offer["min_bid"],
            "dph_total": total,
            "status_msg": None,
            "start_date": time.time(),
            "extra_env": [[name, value] for name, value in env.items()],
            "image_uuid": body["image"],
        }
        self.ledger.append(Rental(instance_id, body.get("label") or "", which, price, env, self.clock()))
        if not wins:
            self.set_state(instance_id, None, "stopped")
        else:
            self.set_state(instance_id, "running" if self.runs_at_once else None)
        return 200, {"success": wins, "new_contract": instance_id, "instance_api_key": "k" * 64}

    def _answer_list(self, _: int, query: dict[str, str], body: dict[str, Any]) -> object:
        rows = [self.instances[one] for one in sorted(self.instances) if one > int(query.get("after_token") or 0)]
        filters = json.loads(query.get("select_filters") or "{}")
        rows = [row for row in rows if all(_fits(row.get(name), test) for name, test in filters.items())]
        size = min(self.page_size, int(query.get("limit") or 25))
        more = str(rows[size - 1]["id"]) if len(rows) > size else None
        return 200, {"success": True, "instances": rows[:size], "next_token": more, "total_instances": len(rows)}

    def _answer_retired(self, _: int, query: dict[str, str], body: dict[str, Any]) -> object:
        return STATUS_FAULTS["retired"]

    def _answer_one(self, which: int, query: dict[str, str], body: dict[str, Any]) -> object:
        return 200, {"instances": self.instances[which]}

    def _answer_bid(self, which: int, query: dict[str, str], body: dict[str, Any]) -> object:
        rental, price = self._rental(which), body.get("price")
        if not isinstance(price, int | float) or not 0.001 <= price <= self._cap(self.instances[which]):
            raise Refusal(400, "invalid_price", f"price {price} is out of range")
        if rental.bid is None:
            raise Refusal(400, "invalid_args", "not interruptible")
        rental.bid = price
        self._hold_auction(rental)
        return 200, {"success": True}

    def _answer_destroy(self, which: int, query: dict[str, str], body: dict[str, Any]) -> object:
        rental = self._rental(which)
        rental.count(self.clock(), runs=False)
        rental.until_s = self.clock()
        del self.instances[which]
        if rental.offer in self.offers:
            self.offers[rental.offer]["rentable"] = True
        return 200, {"success": True}

    def _answer_log(self, which: int, query: dict[str, str], body: dict[str, Any]) -> object:
        return 200, {"success": True, "result_url": f"{self.url}/logs/{which}"}

    def _answer_page(self, which: int, query: dict[str, str], body: dict[str, Any]) -> object:
        return (200, self.logs[which]) if which in self.logs else (404, "<Error><Code>NoSuchKey</Code></Error>")

    def _answer_credit(self, _: int, query: dict[str, str], body: dict[str, Any]) -> object:
        return 200, {"id": 1, "username": "tester", "credit": self.credit, "balance": 0}

    def _answer_names(self, _: int, query: dict[str, str], body: dict[str, Any]) -> object:
        return 200, {"success": True, "gpu_names": sorted({offer["gpu_name"] for offer in self.offers.values()})}

    def _hold_auction(self, rental: Rental) -> None:
        row, lowest = self.instances[rental.instance], self.offers[rental.offer]["min_bid"]
        row["min_bid"] = lowest
        if (rental.bid or 0) < lowest and row["cur_state"] == "running":
            self.outbid(rental.instance)
        elif (rental.bid or 0) >= lowest and row["cur_state"] == "stopped":
            self.wake(rental.instance)

    def _rental(self, instance_id: int) -> Rental:
        return next(rental for rental in self.ledger if rental.instance == instance_id)

    def _cap(self, row: dict[str, Any]) -> float:
        return 32 * (row["num_gpus"] or 1)

    def _make_id(self) -> int:
        self._next_id += 1
        return self._next_id


OFFER: dict[str, Any] = {
    "gpu_name": "H100 SXM",
    "num_gpus": 2,
    "rentable": True,
    "rented": False,
    "verified": True,
    "external": False,
    "verification": "verified",
    "disk_space": 800.0,
    "inet_down": 2000.0,
    "inet_up": 1500.0,
    "geolocation": "SE",
    "dph_base": 4.0,
    "dph_total": 4.1,
    "min_bid": 1.5,
    "storage_cost": 0.72,
    "storage_total_cost": 0.1,
    "reliability": 0.99,
    "score": 100.0,
}


def _is_test(test: object) -> bool:
    return isinstance(test, dict) and set(test) <= set(OPERATORS)


def _fits(value: Any, test: dict[str, Any]) -> bool:
    """The vendor's own client sends numbers as text."""
    for name, wanted in test.items():
        if isinstance(value, int | float) and isinstance(wanted, str):
            wanted = float(wanted)
        if value is None or not OPERATORS[name](value, wanted):
            return False
    return True


class _Handler(ServiceHandler):
    service: FakeVast

    def serve(self) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        known = [(r, m) for r, method, p in ROUTES if method == self.command and (m := re.fullmatch(p, parts.path))]
        if not known:
            self._send(404, {"success": False, "error": "not_found"})
            return
        route, match = known[0]
        said = self.headers.get("Authorization") or ""
        self.service.keys_seen.append((route, said))
        fault = self.service.take_fault(route)
        name = fault.name if fault else ""
        if name == "reset":
            self.reset()
            return
        if name in STATUS_FAULTS:
            self._send(*STATUS_FAULTS[name], retry_after=fault.retry_after if fault else "")
            return
        if route != "page" and said != f"Bearer {self.service.key}":
            self._send(*STATUS_FAULTS["auth" if said else "401"])
            return
        status, answer = self._work(route, int((*match.groups(), "0")[0]), query, data, name)
        if name == "lost":
            self.reset()
        elif name == "late":
            self.service.released.wait(20)
        elif name == "drip":
            self.drip(json.dumps(answer).encode())
        else:
            self._send(status, _without_values(answer) if name == "nulls" else answer)

    def _work(self, route: str, which: int, query: dict[str, str], data: bytes, fault: str) -> tuple[int, Any]:
        try:
            body = json.loads(data or b"{}")
            if fault == "half":
                return self.service._rent(which, body, wins=False)  # type: ignore[return-value]
            return self.service.answer(route, which, query, body)  # type: ignore[return-value]
        except Refusal as refusal:
            return refusal.status, {"success": False, "error": refusal.error, "msg": refusal.msg}

    def _send(self, status: int, answer: object, retry_after: str = "") -> None:
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(data)


def _without_values(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: _without_values(value) if isinstance(value, list) else None for name, value in answer.items()}
    return [_without_values(one) if isinstance(one, dict) else None for one in answer]
