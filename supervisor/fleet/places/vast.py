"""Vast.ai over its REST API: offers, machines that are rented, bids, logs, credit.

Facts from vast-ai/docs (rate limits, reference of each endpoint), vast-ai/vast-cli@5567983 and reports of users:

- A revoked key is answered with 404 and ``auth_error``, a retired endpoint with 410 and ``deprecated_endpoint``
  (jhammant/AIonDemandCluster #1). So the word in the body counts before the status: neither means that a machine is
  gone. One that took such an answer for an empty list rented again and again (skypilot-org/skypilot #10517).
- An interruptible machine is one whose create has ``price``. A bid does not include the disk.
- A bid that is too low may leave a stopped instance that bills its disk, told as ``success: false`` with
  ``new_contract`` (dstackai/dstack #4036).
- An outbid machine has ``stopped`` as its current, intended and next state (dstackai/dstack #4025), and may come back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from supervisor.base import http
from supervisor.fleet.places.base import ErrorKind, Instance, Offer, Order, Phase, PlaceError, Want, read_label
from supervisor.fleet.places.fields import Row, read_amount, read_id, read_number, read_object, read_text
from supervisor.fleet.places.rest import KINDS_BY_STATUS, Endpoint, Rest

URL = "https://console.vast.ai"
LOG_BYTES = 1 << 20
LOG_WAIT_S = 20.0
LOG_POLL_S = 1.0
MOST_ONSTART_BYTES = 4000  # its documents disagree: 4,048, 4,096 or 16 K
MOST_PAGES = 40
HOURS_A_MONTH = 720.0  # prices of disks are for a month of 30 days
SEARCH_QUOTA = "search_quota_exceeded"
QUOTA_WAIT_S = 3600.0  # it is for a day

PHASES: Mapping[str | None, Phase] = {
    **dict.fromkeys((None, "created", "loading"), "starting"),
    "running": "running",
    **dict.fromkeys(("exited", "stopped", "frozen"), "stopped"),
}
WORD = re.compile(r"[a-z_]{1,40}")
KINDS_BY_WORD: Mapping[str, ErrorKind] = {
    "auth_error": "key",
    "deprecated_endpoint": "refused",
    SEARCH_QUOTA: "rate",
    "no_such_ask": "taken",
}
LIST = Endpoint("list the instances", 1.0)
SEARCH = Endpoint("search for offers", 6.0)
CREATE = Endpoint("rent the offer", 4.5, "unsure")
BID = Endpoint("change the bid", 5.5, "unsure")
DESTROY = Endpoint("destroy the instance", 3.0, "unsure")
LOG = Endpoint("fetch the log", 2.0)
CREDIT = Endpoint("read the credit", 2.0)


class Vast(Rest):
    """One account at Vast.ai. For one thread: it waits between requests as Vast demands."""

    name = "vast"
    title = "Vast"

    def list_instances(self) -> list[Instance]:
        # Only equality of a whole label can be asked for.
        query = {"select_filters": "{}", "order_by": '[{"col":"id","dir":"asc"}]', "limit": "25"}
        found: dict[str, Instance] = {}
        for _ in range(MOST_PAGES):
            answer = self._ask(LIST, "GET", f"/api/v1/instances/?{urlencode(query)}")
            for row in self.rows_of(LIST, answer, "instances"):
                if not read_id(row.get("id")) or "label" not in row:
                    raise self.unread(LIST, "an instance has no id or no field for its label")
                one = _read_instance(row)
                found[one.id] = one
            token = answer.get("next_token")
            if not token:
                return list(found.values())
            if token == query.get("after_token") or not isinstance(token, str | int):
                break
            query["after_token"] = str(token)
        raise self.unread(LIST, "its pages do not end")

    def find_offers(self, want: Want) -> list[Offer]:
        # Not `rented: false`, which the vendor's client sends: it hides hosts where this account rents already.
        price, gpu = ("min_bid" if want.spot else "dph_total"), want.gpu.replace("_", " ")
        filters: Row = {
            "verified": {"eq": True},
            "external": {"eq": False},
            "rentable": {"eq": True},
            "num_gpus": {"eq": want.gpus},
            "disk_space": {"gte": want.disk_gb},
            price: {"lte": want.most_per_hour},
            "type": "bid" if want.spot else "on-demand",
            "allocated_storage": want.disk_gb,
            "order": [[price, "asc"]],
            "limit": 100,
        }
        if gpu:
            filters["gpu_name"] = {"eq": gpu}
        if want.region:
            filters["geolocation"] = {"in": [part.strip() for part in want.region.split(",")]}
        for field, least in (("inet_down", want.least_down_mbit), ("inet_up", want.least_up_mbit)):
            if least > 0:
                filters[field] = {"gte": least}
        rows = self.rows_of(SEARCH, self._ask(SEARCH, "POST", "/api/v0/bundles/", filters), "offers")
        offers = [offer for row in rows if (offer := _read_offer(row, want))]
        fit = (one for one in offers if one.gpus == want.gpus and one.gpu == (gpu or one.gpu))
        fit = (one for one in fit if one.per_hour <= want.most_per_hour)
        return sorted(fit, key=lambda one: one.per_hour)

    def create(self, offer: Offer, order: Order) -> str:
        size = len(order.onstart.encode())
        if size > MOST_ONSTART_BYTES:
            raise self.failure(CREATE, "refused", f"the start script has {size} bytes, more than {MOST_ONSTART_BYTES}")
        body: Row = {
            "client_id": "me",
            "image": order.image,
            "disk": order.disk_gb,
            "label": order.label,
            "env": order.env,
            "onstart": order.onstart,
            "runtype": "ssh",
            "cancel_unavail": True,
        }
        if order.bid is not None:
            body["price"] = order.bid
        answer = self._ask(CREATE, "PUT", f"/api/v0/asks/{quote(offer.id, safe='')}/", body)
        contract = read_id(answer.get("new_contract"))
        if contract and answer.get("success") is not False:
            return contract
        if not contract:
            raise self.unread(CREATE, "it names no instance")
        try:
            self._destroy(contract)
        except PlaceError as error:
            sentence = f"Vast did not start instance {contract} and may bill its disk. {error}"
            raise PlaceError("unsure", sentence, error.retry_after_s) from None
        raise PlaceError("taken", f"Vast did not start instance {contract}, so it was destroyed. The offer is gone.")

    def raise_bid(self, instance: Instance, bid: float) -> None:
        self._change(BID, "PUT", f"bid_price/{quote(instance.id, safe='')}", {"client_id": "me", "price": bid})

    def destroy(self, instance: Instance) -> None:
        self._destroy(instance.id)

    def read_log(self, instance: Instance) -> str:
        path = f"/api/v0/instances/request_logs/{quote(instance.id, safe='')}/"
        url = self._ask(LOG, "PUT", path, {"tail": "300"}).get("result_url")
        if not isinstance(url, str) or http.problem_of(url):
            raise self.unread(LOG, "it names no page with the log")
        deadline = self._clock() + LOG_WAIT_S
        # The page does not exist until the machine has sent its log. It is on another server, which never gets the key.
        while (left_s := deadline - self._clock()) > 0:
            try:
                page = http.ask(url, timeout_s=min(left_s, self._timeout_s), limit_bytes=LOG_BYTES)
                if page.status == 200:
                    return page.text
            except http.NoAnswerError:
                pass
            self._sleep(LOG_POLL_S)
        raise self.failure(LOG, "away", f"it was not there after {LOG_WAIT_S:g} s")

    def read_credit(self) -> float | None:
        return read_number(self._ask(CREDIT, "GET", "/api/v0/users/current/?owner=me").get("credit"))

    def _destroy(self, instance_id: str) -> None:
        self._change(DESTROY, "DELETE", quote(instance_id, safe=""), {})

    def _change(self, endpoint: Endpoint, method: str, path: str, body: Row) -> None:
        if self._ask(endpoint, method, f"/api/v0/instances/{path}/", body).get("success") is not True:
            raise self.unread(endpoint, "it does not say that it worked")

    def _ask(self, endpoint: Endpoint, method: str, path: str, body: Row | None = None) -> Row:
        """The object that Vast answers. To destroy what is gone is a success."""
        page = self.ask(endpoint, method, path, body)
        is_good = 200 <= page.status < 300
        answer = self.read_object(endpoint, page) if is_good else read_object(page.text) or {}
        if is_good and (
            answer.get("success") is not False or (endpoint is CREATE and read_id(answer.get("new_contract")))
        ):
            return answer
        word = read_text(answer.get("error"))
        word = word if WORD.fullmatch(word) else ""
        if endpoint is DESTROY and page.status in (404, 410) and word not in KINDS_BY_WORD:
            return {"success": True}
        # A create's message might repeat what it was sent, and that holds the run's secrets.
        message = "" if endpoint is CREATE else read_text(answer.get("msg"), self.key)
        clause = ", ".join(part for part in (f"HTTP {page.status}", word, message) if part)
        kind = _kind_of(endpoint, page.status, word)
        wait_s = page.retry_after_s or (endpoint.gap_s if kind == "rate" else 0.0)
        raise self.failure(endpoint, kind, clause, QUOTA_WAIT_S if word == SEARCH_QUOTA else wait_s)


def _kind_of(endpoint: Endpoint, status: int, word: str) -> ErrorKind:
    if word == "invalid_price" and endpoint is CREATE:
        return "taken"  # the market has overtaken the bid
    known = KINDS_BY_WORD.get(word) or KINDS_BY_STATUS.get(status)
    if known or not 400 <= status < 500 or status == 408:
        return known or endpoint.no_answer
    if "credit" in word:
        return "credit"
    return "taken" if endpoint is CREATE and status in (404, 409, 410) else "refused"


def _read_instance(row: Row) -> Instance:
    label = read_text(row["label"])
    says = ", ".join(part for part in (read_text(row.get("actual_status")), read_text(row.get("status_msg"))) if part)
    return Instance(
        id=read_id(row["id"]),
        label=label if read_label(label) else "",
        phase=_phase_of(row),
        per_hour=read_amount(row.get("dph_total")),
        spot=row.get("is_bid") is True,
        gpu=read_text(row.get("gpu_name")),
        gpus=int(read_amount(row.get("num_gpus")) or 0),
        machine=read_id(row.get("machine_id")),
        host=read_id(row.get("host_id")),
        says=says,
        lowest_bid=read_amount(row.get("min_bid")),
        stopped_per_hour=_read_disk_price(row, read_amount(row.get("disk_space"))),
    )


def _read_disk_price(row: Row, size_gb: float | None) -> float | None:
    """Dollars an hour for the disk; None where they are not told."""
    told, month = read_amount(row.get("storage_total_cost")), read_amount(row.get("storage_cost"))
    return told if told is not None or month is None or size_gb is None else month * size_gb / HOURS_A_MONTH


def _phase_of(row: Row) -> Phase:
    if all(row.get(name) == "stopped" for name in ("cur_state", "intended_status", "next_state")):
        return "stopped"
    status = row.get("actual_status", "not there")  # null means that it starts; a missing field means nothing
    if isinstance(status, str):
        status = status.strip()
    return PHASES.get(status, "unknown") if status is None or isinstance(status, str) else "unknown"


def _read_offer(row: Row, want: Want) -> Offer | None:
    """None where it has no id, or no price of the whole machine with its disk."""
    offer_id = read_id(row.get("id"))
    disk = _read_disk_price(row, want.disk_gb)
    bid, total = read_amount(row.get("min_bid")), read_amount(row.get("dph_total"))
    price = (bid + disk if bid and disk is not None else None) if want.spot else total
    if not offer_id or not price:
        return None
    return Offer(
        id=offer_id,
        gpu=read_text(row.get("gpu_name")),
        gpus=int(read_amount(row.get("num_gpus")) or 0),
        per_hour=price,
        spot=want.spot,
        machine=read_id(row.get("machine_id")),
        host=read_id(row.get("host_id")),
        region=read_text(row.get("geolocation")),
        down_mbit=read_amount(row.get("inet_down")),
        up_mbit=read_amount(row.get("inet_up")),
        disk_gb=read_amount(row.get("disk_space")),
        disk_per_hour=disk or 0.0,
    )
