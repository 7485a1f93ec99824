"""RunPod: spot pods over GraphQL, the rest over its REST API v2, which knows no spot.

Facts from runpod/docs@a900806e (openapi 2.0.0, pods/pricing, sdks/graphql), runpod/runpod-python@07fc6e2b, and the
RunPod parts of dstackai/dstack@511c318c, dstackai/gpuhunt and skypilot-org/skypilot. None was tried on an account:

- RunPod wants to end GraphQL "in early 2027". Bids, the market and the credit are there alone, so spot ends with it.
- An error of GraphQL comes with HTTP 200 and ``errors``, a refused request with 400.
- v2 tells what a pod does, GraphQL what it should do. It is not documented that each lists the other's pods, so a pod
  is gone when neither lists it, and stopped when each that lists it says so.
- A bid is for one GPU. A running pod takes no other bid: ``podBidResume`` is for one that was outbid.
- v2 answers 400 for "no capacity" and for a request that breaks a rule alike. GraphQL's texts are for people.
- The container's disk is wiped when a pod stops, costs $0.10 a GB and month while it runs, and nothing after that.
- It is not documented what becomes of a pod whose command ends. So it does not end: ``sleep infinity`` is left.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from supervisor.base import http
from supervisor.fleet.places.base import ErrorKind, Instance, Offer, Order, Phase, PlaceError, Want, read_label
from supervisor.fleet.places.fields import Row, read_amount, read_number, read_object, read_text
from supervisor.fleet.places.rest import KINDS_BY_STATUS, Endpoint, Rest

URL = "https://api.runpod.io"
CLOUDS = ("SECURE", "COMMUNITY")
DISK_PER_GB_HOUR = 0.10 / 720.0
LISTEN_S = 5.0  # the log is a stream without an end, which begins with what was printed so far
RATE_WAIT_S = 60.0
MOST_NAME = 60  # dstack found that so many characters work; a name that is cut would be none of our labels

PHASES: Mapping[str, Phase] = {
    "PROVISIONING": "starting",
    "STARTING": "starting",
    "RUNNING": "running",
    "EXITED": "stopped",
}
LIST_PRICES = {  # cloud, spot -> dollars an hour for one GPU
    ("SECURE", False): "securePrice",
    ("SECURE", True): "secureSpotPrice",
    ("COMMUNITY", False): "communityPrice",
    ("COMMUNITY", True): "communitySpotPrice",
}

KINDS_BY_WORDS: Mapping[str, ErrorKind] = {  # in an error's code or text, the first that is found
    r"unauthenticated|unauthori[sz]ed|forbidden|api key": "key",
    r"balance|credit|funds": "credit",
    r"rate limit|too many requests": "rate",
    r"no longer any instances|not enough free gpus|no instances|not have the resources|outbid|\bbid\b": "taken",
    r"internal.server.error|something went wrong|time.?out": "unsure",
}
REFUSALS = ("RUNPOD", "BAD_USER_INPUT", "GRAPHQL_VALIDATION_FAILED", "GRAPHQL_PARSE_FAILED")
"""Codes of errors that are said on purpose, not by accident: nothing was done."""
CODE = re.compile(r"[A-Z_]{1,40}")

PODS = """query { myself { pods {
  id name desiredStatus podType costPerHr gpuCount machineId machine { gpuDisplayName } runtime { uptimeInSeconds }
} } }"""
BALANCE = "query { myself { clientBalance } }"
RENT = "mutation ($input: PodRentInterruptableInput!) { podRentInterruptable(input: $input) { id } }"
RESUME = """mutation ($id: String!, $bid: Float!, $gpus: Int!) {
  podBidResume(input: {podId: $id, bidPerGpu: $bid, gpuCount: $gpus}) { id }
}"""
TERMINATE = "mutation ($id: String!) { podTerminate(input: {podId: $id}) }"

LIST = Endpoint("list the pods", 1.0)  # 60 requests a minute are the documented example of a quota
LIST_WANTED = Endpoint("list the pods with their bids", 1.0)
SEARCH = Endpoint("search for offers", 1.0)
CREATE = Endpoint("rent the offer", 1.0, "unsure")
BID = Endpoint("change the bid", 1.0, "unsure")
DESTROY = Endpoint("destroy the pod", 1.0, "unsure")
LOG = Endpoint("fetch the log", 1.0)
CREDIT = Endpoint("read the credit", 1.0)


class Runpod(Rest):
    """One account at RunPod. For one thread: it waits between requests."""

    name = "runpod"
    title = "RunPod"

    def list_instances(self) -> list[Instance]:
        answer = self.read_object(LIST, self._ask(LIST, "GET", "/v2/pods"))
        actual = self._read_pods(LIST, answer, "status")
        wanted = self._read_pods(LIST_WANTED, self._query(LIST_WANTED, PODS, "myself"), "desiredStatus")
        return [_read_pod(pod_id, actual.get(pod_id, {}), wanted.get(pod_id, {})) for pod_id in actual | wanted]

    def find_offers(self, want: Want) -> list[Offer]:
        parts = [part.strip() for part in want.region.split(",") if part.strip()] or list(CLOUDS)
        regions = [(part.upper(), "") if part.upper() in CLOUDS else ("SECURE", part) for part in parts]
        prices = {f"p{number}": _filter_market(want, *region) for number, region in enumerate(regions)}
        types = "".join(f", ${name}: GpuLowestPriceInput" for name in prices)
        fields = "".join(
            f" {name}: lowestPrice(input: ${name}) {{ stockStatus minimumBidPrice uninterruptablePrice }}"
            for name in prices
        )
        names = " ".join(LIST_PRICES.values())
        query = f"query ($gpu: GpuTypeFilter{types}) {{ gpuTypes(input: $gpu) {{ id {names}{fields} }} }}"
        only: Row = {"gpu": {"id": want.gpu}} if want.gpu else {}
        answer = {"gpuTypes": self._query(SEARCH, query, "gpuTypes", prices | only)}
        offers = [
            offer
            for row in self.rows_of(SEARCH, answer, "gpuTypes")
            if row.get("id") == (want.gpu or row.get("id"))
            for name, region in zip(prices, regions, strict=True)
            if (offer := _read_offer(row, row.get(name), want, *region))
        ]
        return sorted((one for one in offers if one.per_hour <= want.most_per_hour), key=lambda one: one.per_hour)

    def create(self, offer: Offer, order: Order) -> str:
        if len(order.label) > MOST_NAME:
            clause = f"its name {order.label} is longer than {MOST_NAME} characters: take a shorter id for the run"
            raise self.failure(CREATE, "refused", clause)
        cloud, region = offer.id.split("/")[:2]
        # Base64 in single quotes: RunPod splits this text into words, and nothing in it can be split elsewhere.
        script = base64.b64encode(order.onstart.encode()).decode()
        command = f"bash -c 'exec bash <(echo {script} | base64 -d) -- sleep infinity'"
        disk = math.ceil(order.disk_gb)
        if order.bid is None:
            body: Row = {
                "name": order.label,
                "image": order.image,
                "gpu": {"id": offer.gpu, "count": offer.gpus},
                "cloud": cloud,
                "disk": disk,
                "env": order.env,
                "args": command,
                **({"dataCenterIds": [region]} if region else {}),
            }
            made: object = self.read_object(CREATE, self._ask(CREATE, "POST", "/v2/pods", body))
        else:
            wanted: Row = {
                "name": order.label,
                "imageName": order.image,
                "gpuTypeId": offer.gpu,
                "gpuCount": offer.gpus,
                "bidPerGpu": order.bid / offer.gpus,
                "cloudType": cloud,
                "containerDiskInGb": disk,
                "volumeInGb": 0,
                "dockerArgs": command,
                "env": [{"key": name, "value": value} for name, value in order.env.items()],
                **_filter_host(region, offer.down_mbit, offer.up_mbit),
            }
            made = self._query(CREATE, RENT, "podRentInterruptable", {"input": wanted})
        pod_id = read_text(made.get("id")) if isinstance(made, dict) else ""
        if not pod_id:
            raise self.unread(CREATE, "it names no pod")
        return pod_id

    def raise_bid(self, instance: Instance, bid: float) -> None:
        """Only of a pod that was outbid: RunPod changes no bid of one that runs."""
        if not instance.gpus:
            raise self.failure(BID, "refused", f"it is unknown how many GPUs pod {instance.id} has")
        variables = {"id": instance.id, "bid": bid / instance.gpus, "gpus": instance.gpus}
        if not isinstance(self._query(BID, RESUME, "podBidResume", variables), dict):
            raise self.unread(BID, "it does not say that it worked")

    def destroy(self, instance: Instance) -> None:
        if instance.spot:
            self._query(DESTROY, TERMINATE, "podTerminate", {"id": instance.id})
        else:
            self._ask(DESTROY, "DELETE", _path_of(instance))

    def read_log(self, instance: Instance) -> str:
        page = self._ask(LOG, "GET", f"{_path_of(instance)}/logs?tail=300", listen_s=LISTEN_S)
        events = [read_object(line[5:]) or {} for line in page.text.split("\n") if line.startswith("data:")]
        return "".join(f"{event['line']}\n" for event in events if isinstance(event.get("line"), str))

    def read_credit(self) -> float | None:
        account = self._query(CREDIT, BALANCE, "myself")
        return read_number(account.get("clientBalance")) if isinstance(account, dict) else None

    # ------------------------------------------------------------ asking

    def _read_pods(self, endpoint: Endpoint, answer: object, status: str) -> dict[str, Row]:
        """By id. Raises where one cannot be read: a pod that is overlooked would be rented once more."""
        found = {}
        for row in self.rows_of(endpoint, answer if isinstance(answer, dict) else {}, "pods"):
            pod_id = read_text(row.get("id"))
            if not pod_id or "name" not in row:
                raise self.unread(endpoint, "a pod has no id or no field for its name")
            if row.get(status) != "TERMINATED":
                found[pod_id] = row
        return found

    def _ask(
        self, endpoint: Endpoint, method: str, path: str, body: Row | None = None, *, listen_s: float | None = None
    ) -> http.Page:
        """The answer of v2 to a request that worked. What is gone needs no destroy, and has no log."""
        page = self.ask(endpoint, method, path, body, listen_s=listen_s)
        if 200 <= page.status < 300:
            return page
        answer = read_object(page.text) or {}
        told = read_text(answer.get("detail"), self.key)
        if page.status == 404 and told and endpoint in (DESTROY, LOG):
            return http.Page(page.status, b"")
        kind = _kind_of(endpoint, page.status, told)
        if endpoint is CREATE:  # what RunPod says might repeat what it was sent, and that holds the run's secrets
            told = {
                400: "no machine is free, or the request breaks a rule",
                403: "this key or account may not use that cloud",
            }.get(page.status, "")
        raise self._fail(endpoint, kind, ": ".join(part for part in (f"HTTP {page.status}", told) if part), page)

    def _query(self, endpoint: Endpoint, query: str, root: str, variables: Row | None = None) -> Any:
        """The field ``root`` of what GraphQL answers. What is gone needs no destroy."""
        page = self.ask(endpoint, "POST", "/graphql", {"query": query, "variables": variables or {}})
        answer = read_object(page.text) or {}
        errors, data = answer.get("errors"), answer.get("data")
        if 200 <= page.status < 300 and not errors:
            if not isinstance(data, dict) or root not in data:
                raise self.unread(endpoint, f"it holds no {root}")
            return data[root]
        code, told = _read_error(errors, self.key)
        if endpoint is DESTROY and "not found to terminate" in told:
            return None
        if page.status == 400 or code in REFUSALS:
            kind = _kind_of_words(endpoint, f"{code} {told}", "refused")
        elif 200 <= page.status < 300:
            kind = _kind_of_words(endpoint, f"{code} {told}", endpoint.no_answer)
        else:
            kind = _kind_of(endpoint, page.status, told)
        clause = f"HTTP {page.status}" + (f", {code}" if code else "")
        raise self._fail(endpoint, kind, clause + (f": {told}" if told and endpoint is not CREATE else ""), page)

    def _fail(self, endpoint: Endpoint, kind: ErrorKind, clause: str, page: http.Page) -> PlaceError:
        return self.failure(endpoint, kind, clause, page.retry_after_s or (RATE_WAIT_S if kind == "rate" else 0.0))


def _path_of(instance: Instance) -> str:
    return f"/v2/pods/{quote(instance.id, safe='')}"


# ---------------------------------------------------------------- errors


def _kind_of(endpoint: Endpoint, status: int, told: str) -> ErrorKind:
    if endpoint is CREATE and status == 403:
        return "refused"  # of one cloud, by its documents: the key may be good
    known = KINDS_BY_STATUS.get(status)
    if known or not 400 <= status < 500 or status == 408:
        return known or endpoint.no_answer
    if status == 400:
        return _kind_of_words(endpoint, told, "taken" if endpoint is CREATE else "refused")
    return "taken" if endpoint is CREATE and status == 409 else "refused"


def _kind_of_words(endpoint: Endpoint, words: str, otherwise: ErrorKind) -> ErrorKind:
    found = (kind for pattern, kind in KINDS_BY_WORDS.items() if re.search(pattern, words, re.IGNORECASE))
    kind = next(found, otherwise)
    if kind == "unsure":
        return endpoint.no_answer
    return "refused" if kind == "taken" and endpoint is not CREATE else kind


def _read_error(errors: object, key: str) -> tuple[str, str]:
    """Code and text of the first error."""
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    extensions = first.get("extensions")
    code = read_text(extensions.get("code")) if isinstance(extensions, dict) else ""
    return code if CODE.fullmatch(code) else "", read_text(first.get("message"), key)


# ---------------------------------------------------------------- pods


def _read_pod(pod_id: str, actual: Row, wanted: Row) -> Instance:
    """A pod as v2 and as GraphQL list it, {} where one does not."""
    labels = [read_text(row.get("name")) for row in (actual, wanted)]
    gpu, machine = actual.get("gpu"), wanted.get("machine")
    gpu = gpu if isinstance(gpu, dict) else {}
    prices = [read_amount(actual.get("cost")), read_amount(wanted.get("costPerHr"))]  # of a stopped one v2 says 0
    words = [word for word in (read_text(actual.get("status")), read_text(wanted.get("desiredStatus"))) if word]
    return Instance(
        id=pod_id,
        label=next((one for one in labels if read_label(one)), ""),
        phase=_phase_of(actual, wanted),
        per_hour=max((price for price in prices if price), default=None),
        spot=wanted.get("podType") == "INTERRUPTABLE",
        gpu=read_text(gpu.get("id") or (machine.get("gpuDisplayName") if isinstance(machine, dict) else "")),
        gpus=int(read_amount(gpu.get("count")) or read_amount(wanted.get("gpuCount")) or 0),
        machine=read_text(wanted.get("machineId")),
        says=", to be ".join(dict.fromkeys(words)),
        stopped_per_hour=0.0,
    )


def _phase_of(actual: Row, wanted: Row) -> Phase:
    phases: list[Phase] = []
    if actual:
        phases.append(PHASES.get(read_text(actual.get("status")), "unknown"))
    if wanted:
        word = read_text(wanted.get("desiredStatus"))
        is_starting = word == "CREATED" or (word == "RUNNING" and wanted.get("runtime") is None)
        phases.append("starting" if is_starting else PHASES.get(word, "unknown"))
    if "stopped" in phases:
        return "stopped" if set(phases) == {"stopped"} else "unknown"
    return phases[0]


# ---------------------------------------------------------------- market


def _filter_market(want: Want, cloud: str, region: str) -> Row:
    return {
        "gpuCount": want.gpus,
        "secureCloud": cloud == "SECURE",
        "minDisk": math.ceil(want.disk_gb),
        **_filter_host(region, want.least_down_mbit, want.least_up_mbit),
    }


def _filter_host(region: str, down_mbit: float | None, up_mbit: float | None) -> Row:
    least: Row = {"dataCenterId": region} if region else {}
    for name, mbit in (("minDownload", down_mbit), ("minUpload", up_mbit)):
        if mbit:
            least[name] = math.ceil(mbit)
    return least


def _read_offer(row: Row, lowest: object, want: Want, cloud: str, region: str) -> Offer | None:
    """None where nothing is free, or the price is unknown."""
    if not isinstance(lowest, dict) or read_text(lowest.get("stockStatus")).lower() in ("", "none"):
        return None
    listed = read_amount(row.get(LIST_PRICES[cloud, want.spot]))
    live = read_amount(lowest.get("minimumBidPrice" if want.spot else "uninterruptablePrice"))
    if live and listed and want.gpus > 1:
        # It is told nowhere if the live price is for one GPU or for all: the nearer one to the list price of one is it.
        live = min(live, live / want.gpus, key=lambda price: abs(math.log(price / listed)))
    price = live or listed
    if not price:
        return None
    disk, gpu = want.disk_gb * DISK_PER_GB_HOUR, read_text(row.get("id"))
    name = f"{cloud}/{region}/{gpu}/{want.gpus}/{'spot' if want.spot else 'on demand'}"
    return Offer(
        id=name,
        gpu=gpu,
        gpus=want.gpus,
        per_hour=price * want.gpus + disk,
        spot=want.spot,
        machine=name,  # RunPod chooses the machine; an offer that is gone is left out for a while by this
        is_kind=True,
        region=region or cloud,
        down_mbit=want.least_down_mbit or None,
        up_mbit=want.least_up_mbit or None,
        disk_gb=want.disk_gb,
        disk_per_hour=disk,
    )
