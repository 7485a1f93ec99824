"""Prime Intellect over its REST API: a market of many providers, with one price each and no bids.

Facts from the vendor's OpenAPI document (kept in api-evangelist/prime-intellect, openapi/_original), its client
(PrimeIntellect-ai/prime, 0.18.0 on the index) and its guides (docs.primeintellect.ai/api-reference):

- A pod has no start script. It runs the entrypoint of its image, and gets ``envVars``. So it needs an image of one's
  own, which Prime knows as a custom template, and the script goes along as ``RL_SUPERVISOR_ONSTART_B64``.
- The client offers neither RunPod's machines nor those that have a bare Ubuntu alone where variables are to be set.
  Not every machine takes a custom template: some list ``custom_template`` among their images.
- ``ACTIVE`` is a machine that runs; its image runs once ``installationStatus`` is ``FINISHED``.
- A pod that is over stays listed as ``TERMINATED`` for a while.
- Some providers want ``maxPrice`` and refuse a pod without it (PrimeIntellect-ai/prime #141).
- A price is for the whole machine. What it does not include of disk, processors and memory is priced by the unit.
- ``/pods`` is redirected to ``/pods/``.
"""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote, urlencode

from supervisor.base import http
from supervisor.fleet.places.base import ErrorKind, Instance, Offer, Order, Phase, PlaceError, Want, read_label
from supervisor.fleet.places.fields import Row, read_amount, read_number, read_object, read_text
from supervisor.fleet.places.rest import KINDS_BY_STATUS, Endpoint, Rest

URL = "https://api.primeintellect.ai"
ONSTART = "RL_SUPERVISOR_ONSTART_B64"
RUN_ID = re.compile(r"[A-Za-z0-9-]+")
"""Of runs that may be here: a pod's name has letters, digits and dashes only, and it is our label."""
PAGE = 100
MOST_PAGES = 40
TEMPLATE = "custom_template"
IN_STOCK = ("Available", "Low", "Medium", "High")
SOLD = re.compile(r"out of stock|sold out|capacity|no longer available", re.IGNORECASE)
OVER = ("DELETING", "TERMINATED")
RATE_WAIT_S = 60.0

LIST = Endpoint("list the pods", 1.0)  # no limits are published for these; a second between two is a guess
SEARCH = Endpoint("search for offers", 1.0)
CREATE = Endpoint("rent the offer", 1.0, "unsure")
DESTROY = Endpoint("destroy the pod", 1.0, "unsure")
LOG = Endpoint("fetch the log", 1.0)
CREDIT = Endpoint("read the credit", 1.0)


class Prime(Rest):
    """One account at Prime Intellect. For one thread: it waits between requests."""

    name = "prime"
    title = "Prime"

    def __init__(self, key: str, url: str = URL, **patience: Any) -> None:
        super().__init__(key, f"{url.rstrip('/').removesuffix('/api/v1')}/api/v1", **patience)

    def list_instances(self) -> list[Instance]:
        rows: dict[str, Row] = {}
        listed, total = 0, None
        for _ in range(MOST_PAGES):
            answer = self._ask(LIST, "GET", f"/pods/?offset={listed}&limit={PAGE}")
            page, count = self.rows_of(LIST, answer, "data"), read_amount(answer.get("total_count"))
            if count is None or total not in (None, count):
                raise self.unread(LIST, "the number of its pods is missing, or changed between two pages")
            listed, total = listed + len(page), count
            rows |= {self._read_id(LIST, row): row for row in page}
            # A pod that moved from page to page hid another one; one that is listed twice on one page hides none.
            if max(len(rows), len(page)) >= total:
                return [_read_pod(pod_id, row) for pod_id, row in rows.items() if row.get("status") not in OVER]
            if not page:
                break
        raise self.unread(LIST, "its pages do not end")

    def find_offers(self, want: Want) -> list[Offer]:
        query = [("gpu_count", str(want.gpus)), ("page_size", str(PAGE))]
        query += [("gpu_type", want.gpu)] if want.gpu else []
        query += [("regions", part.strip()) for part in want.region.split(",") if part.strip()]
        rows: list[Row] = []
        for number in range(1, MOST_PAGES + 1):
            path = f"/availability/gpus?{urlencode([*query, ('page', str(number))])}"
            answer = self._ask(SEARCH, "GET", path)
            page = self.rows_of(SEARCH, answer, "items")
            rows += page
            if not page or len(rows) >= (read_amount(answer.get("totalCount")) or 0):
                break
        rows = [row for row in rows if _takes_our_image(row)]
        rows = [row for row in rows if TEMPLATE in row["images"]] or rows
        offers = [offer for row in rows if (offer := _read_offer(row, want))]
        return sorted((one for one in offers if one.per_hour <= want.most_per_hour), key=lambda one: one.per_hour)

    def create(self, offer: Offer, order: Order) -> str:
        provider, cloud, socket, center, country, security, cpus, memory = map(unquote, offer.id.split("/"))
        env = order.env | {ONSTART: base64.b64encode(order.onstart.encode()).decode()}
        pod: Row = {
            "name": order.label,
            "cloudId": cloud,
            "gpuType": offer.gpu,
            "socket": socket,
            "gpuCount": offer.gpus,
            "vcpus": int(cpus) if cpus else None,
            "memory": int(memory) if memory else None,
            "diskSize": int(offer.disk_gb or order.disk_gb),
            "image": TEMPLATE,
            "customTemplateId": order.image,
            "dataCenterId": center or None,
            "country": country or None,
            "security": security or None,
            "maxPrice": offer.per_hour,
            "envVars": [{"key": name, "value": value} for name, value in env.items()],
            "autoRestart": False,
        }
        body: Row = {"pod": pod, "provider": {"type": provider}}
        return self._read_id(CREATE, self._ask(CREATE, "POST", "/pods/", body))

    def raise_bid(self, instance: Instance, bid: float) -> None:
        raise PlaceError("refused", f"Prime has no bids: the price of pod {instance.id} is fixed by its provider.")

    def destroy(self, instance: Instance) -> None:
        answer = self._ask(DESTROY, "DELETE", _path_of(instance))
        if answer.get("status") not in (*OVER, "PENDING"):
            raise self.unread(DESTROY, "it does not say that it worked")

    def read_log(self, instance: Instance) -> str:
        """As it is answered: the vendor's document does not say how."""
        page = self._ask_page(LOG, "GET", f"{_path_of(instance)}/log?tail=300")
        try:
            answer = json.loads(page.text)
        except (ValueError, RecursionError):
            answer = None
        return answer if isinstance(answer, str) else page.text

    def read_credit(self) -> float | None:
        return read_number(self._ask(CREDIT, "GET", "/billing/wallet?limit=1").get("balance_usd"))

    def _read_id(self, endpoint: Endpoint, row: Row) -> str:
        pod_id = row.get("id")
        if not isinstance(pod_id, str) or not pod_id.strip():
            raise self.unread(endpoint, "a pod has no id")
        return pod_id

    def _ask(self, endpoint: Endpoint, method: str, path: str, body: Row | None = None) -> Row:
        return self.read_object(endpoint, self._ask_page(endpoint, method, path, body))

    def _ask_page(self, endpoint: Endpoint, method: str, path: str, body: Row | None = None) -> http.Page:
        """The answer of a request that worked. What is gone needs no destroy, and has no log."""
        page = self.ask(endpoint, method, path, body)
        if 200 <= page.status < 300:
            return page
        answer = read_object(page.text) or {}
        if page.status == 404 and "detail" in answer and endpoint in (DESTROY, LOG):
            return replace(page, body=b'{"status": "TERMINATED"}' if endpoint is DESTROY else b'""')
        told = _read_reason(answer)
        kind = _kind_of(endpoint, page.status, told)
        # A create's answer might repeat what it was sent, and that holds the run's secrets.
        message = "" if endpoint is CREATE else read_text(told, self.key)
        clause = ", ".join(part for part in (f"HTTP {page.status}", message) if part)
        wait_s = page.retry_after_s or (RATE_WAIT_S if kind == "rate" else 0.0)
        raise self.failure(endpoint, kind, clause, wait_s)


def _path_of(instance: Instance) -> str:
    return f"/pods/{quote(instance.id, safe='')}"


def _read_reason(answer: Row) -> str:
    """``{"detail": ...}``, or with 422 ``{"errors": [{"param": ..., "details": ...}]}``."""
    errors = answer.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    if isinstance(first, dict):
        return ": ".join(part for part in (read_text(first.get("param")), read_text(first.get("details"))) if part)
    return read_text(answer.get("detail"))


def _kind_of(endpoint: Endpoint, status: int, told: str) -> ErrorKind:
    known = KINDS_BY_STATUS.get(status)
    if known or not 400 <= status < 500 or status == 408:
        return known or endpoint.no_answer
    return "taken" if endpoint is CREATE and (status in (404, 409, 410) or SOLD.search(told)) else "refused"


def _read_pod(pod_id: str, row: Row) -> Instance:
    label, status = read_text(row.get("name")), read_text(row.get("status"))
    installation, failure = read_text(row.get("installationStatus")), read_text(row.get("installationFailure"))
    return Instance(
        id=pod_id,
        label=label if read_label(label) else "",
        phase=_phase_of(status, installation),
        per_hour=read_amount(row.get("priceHr")),
        spot=row.get("isSpot") is True,
        gpu=read_text(row.get("gpuName")),
        gpus=int(read_amount(row.get("gpuCount")) or 0),
        host=read_text(row.get("providerType")),
        says=", ".join(part for part in (status, installation and f"installation {installation}", failure) if part),
        stopped_per_hour=read_amount(row.get("stoppedPriceHr")),
    )


def _phase_of(status: str, installation: str) -> Phase:
    """A start that failed is over. A failure later on is no second signal: it may be Prime that cannot see the pod."""
    began = installation == "FINISHED"
    if status == "STOPPED" or (not began and (status == "ERROR" or installation in ("ERROR", "TERMINATED"))):
        return "stopped"
    if status in ("PROVISIONING", "PENDING") or (status == "ACTIVE" and not began):
        return "starting"
    return "running" if status == "ACTIVE" else "unknown"


def _takes_our_image(row: Row) -> bool:
    images = row.get("images")
    others = isinstance(images, list) and any(image != "ubuntu_22_cuda_12" for image in images)
    return others and row.get("provider") != "runpod"


def _read_offer(row: Row, want: Want) -> Offer | None:
    """None where it is gone, does not fit, or has no price in dollars for the whole machine with its disk.

    Nor where hours are paid in advance: a pod that is destroyed after ten minutes would cost all of them.
    """
    prices = row.get("prices")
    if not isinstance(prices, dict) or prices.get("currency") != "USD" or row.get("prepaidTime"):
        return None
    gpu = read_text(row.get("gpuType"))
    if gpu != (want.gpu or gpu) or read_amount(row.get("gpuCount")) != want.gpus:
        return None
    if row.get("stockStatus") not in IN_STOCK or (row.get("isSpot") is True) != want.spot:
        return None
    size = _size_disk(row.get("disk"), want.disk_gb)
    link = read_amount(row.get("internetSpeed"))
    if size is None or (link or 0.0) < max(want.least_down_mbit, want.least_up_mbit):
        return None
    base = read_amount(prices.get("onDemand" if prices.get("communityPrice") is None else "communityPrice"))
    extras = [_price_of(row.get("disk"), size), _price_of(row.get("vcpu")), _price_of(row.get("memory"))]
    total = math.inf if base is None else base + sum(extras)
    provider, cloud = read_text(row.get("provider")), read_text(row.get("cloudId"))
    if not provider or not cloud or not math.isfinite(total) or not total:
        return None
    counts = [_count(row.get(name), "defaultCount") for name in ("vcpu", "memory")]
    parts = [
        read_text(row.get(name)) for name in ("provider", "cloudId", "socket", "dataCenter", "country", "security")
    ]
    offer_id = "/".join(quote(part, safe="") for part in [*parts, *("" if n is None else f"{n:.0f}" for n in counts)])
    return Offer(
        id=offer_id,
        gpu=gpu,
        gpus=want.gpus,
        per_hour=total,
        spot=want.spot,
        # Prime names no machine, so no bad host is remembered. This leaves out an offer that is gone, for a while.
        machine=offer_id,
        host=provider,
        region=read_text(row.get("region")),
        down_mbit=link,
        up_mbit=link,
        disk_gb=size,
        disk_per_hour=total,  # no part of the price is a bid
    )


def _count(spec: object, name: str) -> float | None:
    return read_amount(spec.get(name)) if isinstance(spec, dict) else None


def _size_disk(spec: object, wanted: float) -> float | None:
    """The smallest disk in GB that is large enough; None where there is none. One without limits has its one size."""
    least, most, usual = (_count(spec, name) for name in ("minCount", "maxCount", "defaultCount"))
    if least is None or most is None:
        return usual if usual is not None and usual >= wanted else None
    step = _count(spec, "step") or 1.0
    size = least + math.ceil(max(0.0, wanted - least) / step) * step
    return size if size <= most else None


def _price_of(spec: object, count: float | None = None) -> float:
    """Dollars an hour for what the machine's own price does not include; infinite where they are unknown.

    ``count``: how much of it; default: the usual.
    """
    if not isinstance(spec, dict) or spec.get("pricePerUnit") is None:
        return 0.0
    unit, usual = _count(spec, "pricePerUnit"), _count(spec, "defaultCount")
    count = usual if count is None else count
    included = usual if spec.get("defaultIncludedInPrice") is True else 0.0
    if unit is None or count is None or included is None:
        return math.inf
    return unit * max(0.0, count - included)
