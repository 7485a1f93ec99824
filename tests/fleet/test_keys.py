"""Keys for pods, against a B2 of our own that holds a key to its bucket, its prefix, its capabilities and its end."""

from __future__ import annotations

import gzip
import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from b2sdk._internal import b2http
from b2sdk.v3 import B2Api, InMemoryAccountInfo
from b2sdk.v3.exception import B2Error

from supervisor.base.errors import StoreError
from supervisor.base.secrets import mask_secrets
from supervisor.checkpoints import claims
from supervisor.checkpoints.catalogue import delete_step, list_steps
from supervisor.checkpoints.keeping import set_pin, tidy
from supervisor.checkpoints.log_files import get_logs, put_logs
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.records import read_latest
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.scrub import scrub
from supervisor.checkpoints.writers import writer_name
from supervisor.cli import main
from supervisor.fleet import decide, observe
from supervisor.fleet.assemble import Assembly, assemble
from supervisor.fleet.book import Orders
from supervisor.fleet.controller import RunLook, Told
from supervisor.fleet.keys import DAY_S, LONGEST_S, TO_MAKE, B2Keys, name_key
from supervisor.fleet.model import Claim, Intent, Pod, Rented, Rules, State
from supervisor.fleet.observe import HOUR_S
from supervisor.fleet.places.base import Instance, Offer, Order, PlaceError, Want, label_of
from supervisor.storage import open_store
from supervisor.storage.base import Store
from supervisor.storage.bucket import survey
from supervisor.storage.keys import NEEDED
from tests.b2server import ALL_CAPABILITIES, B2Server, Key
from tests.checkpoints_store.conftest import PART, QUICK, RUN, Step, quiet, tree

POD = writer_name("pod-a", "0" * 16, "0" * 8)
NOW = 1_800_000_000.0
LABEL = label_of(RUN, 1, "0123ab")
OTHER = label_of(RUN, 2, "4567cd")

RUN_FILE = """
[run]
id = "{run}"
state_dir = "~/state"
[job]
kind = "command"
dir = "~"
[job.plain]
start = ["train"]
resume = ["train", "{{checkpoint}}"]
markers = ["state.json"]
[store]
url = "{url}"
{more}
"""
FLEET = """
[fleet]
store = "{book}/fleet"
{realm}
[limits]
per_hour = 100
total = 1000
creates_per_hour = 100
until = "2099-01-01"
[place.spot]
provider = "vast"
gpu = "H100"
most_per_hour = 5
image = "me/image:1"
[place.own]
provider = "ssh"
host = "box"
[run.swe]
file = "run.toml"
places = ["spot", "own"]
[run.swe.env]
SAID = "hello"
{env}
"""


class KilledError(BaseException):
    """The controller was killed here."""


@dataclass
class Rents:
    """A provider in memory, which keeps what it was ordered to start."""

    name: str
    living: dict[str, Instance] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    fault: BaseException | None = None  # of the next create
    is_away: bool = False
    hides: bool = False  # its list lacks all that it lets

    def list_instances(self) -> list[Instance]:
        if self.is_away:
            raise PlaceError("away", "503")
        return [] if self.hides else list(self.living.values())

    def find_offers(self, want: Want) -> list[Offer]:
        return [] if self.name != "vast" else [Offer("o1", "H100", 1, 2.0, spot=False)]

    def create(self, offer: Offer, order: Order) -> str:
        self.orders.append(order)
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        made = str(100 + len(self.orders))
        self.living[made] = Instance(made, order.label, "running", 2.0)
        return made

    def raise_bid(self, instance: Instance, bid: float) -> None:
        raise AssertionError("no rule orders it")

    def destroy(self, instance: Instance) -> None:
        self.living.pop(instance.id, None)

    def read_log(self, instance: Instance) -> str:
        return ""

    def read_credit(self) -> float | None:
        return None


@pytest.fixture
def b2(monkeypatch: pytest.MonkeyPatch) -> Iterator[B2Server]:
    """A B2 that this account shares with others: keys of people, of another fleet, of another run."""
    monkeypatch.setattr(b2http, "time", SimpleNamespace(sleep=lambda _: None, time=time.time))
    monkeypatch.setattr(claims, "claim", partial(claims.claim, sleep=lambda _: None))  # there is one controller here
    with B2Server(part_size=PART) as server:
        theirs = f"{name_key(LABEL)[:-12]}00001-"
        server.add_key(Key("0000000001", "K1", name="rls-by-hand"))
        server.add_key(Key("0000000002", "K2", NEEDED, ("the-bucket",), f"team/{RUN}/", f"{theirs}laptop"))
        server.add_key(Key("0000000003", "K3", NEEDED, ("another",), f"team/{RUN}/", f"{theirs}0000aa"))
        server.add_key(Key("0000000004", "K4", NEEDED, ("the-bucket",), f"mine/{RUN}/", f"{theirs}0000aa"))
        other = name_key(label_of(f"{RUN}7", 1, "0000aa"))
        server.add_key(Key("0000000005", "K5", NEEDED, ("the-bucket",), f"team/{RUN}7/", other))
        server.add_key(Key("0000000006", "K6", NEEDED, ("the-bucket",), f"team/{RUN}/", other))
        server.state.buckets["another"] = replace(server.bucket, bucket_id="bucket00000002", name="another")
        yield server


def write_fleet(folder: Path, b2: B2Server, env: str = "", url: str = "b2://the-bucket/team", more: str = "") -> Path:
    more = more or f'realm = "{b2.url}"'
    (folder / "run.toml").write_text(RUN_FILE.format(run=RUN, url=url, more=more))
    realm = more if "realm" in more else ""
    (folder / "fleet.toml").write_text(FLEET.format(book=url, realm=realm, env=env))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o700)
    return folder / "fleet.toml"


@dataclass
class Controlled:
    """A controller that is assembled anew when it was killed, and its two providers."""

    file: Path
    b2: B2Server
    vast: Rents = field(default_factory=lambda: Rents("vast"))
    own: Rents = field(default_factory=lambda: Rents("ssh/box"))
    fleet: Assembly = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.fleet = assemble(self.file, self.b2.environ())
        self.fleet._providers |= {"vast": self.vast, "ssh/box": self.own}

    def tick(self, *, dry: bool = False) -> Told:
        book = self.fleet.book()
        try:
            if not dry:
                book.begin()
            [told] = self.fleet.controller(book, lambda _: None, dry=dry).tick()
        finally:
            book.end()
        return told

    def order(self, **orders: bool) -> None:
        self.fleet.book().write_orders(RUN, Orders(**orders))


@pytest.fixture
def fleet(tmp_path: Path, b2: B2Server, monkeypatch: pytest.MonkeyPatch) -> Controlled:
    """A second look comes at once, and what is not listed by then will never be."""
    for module in (decide, observe):
        monkeypatch.setattr(module, "SECOND_LOOK_S", 1e-6)
    monkeypatch.setattr(observe, "SHOWN_BY_S", 0.0)
    monkeypatch.setattr(observe, "CONFIRMED_BY_S", 0.0)
    return Controlled(write_fleet(tmp_path, b2), b2)


def made_keys(b2: B2Server) -> list[Key]:
    """The keys that a controller made; fails when it deleted one of others."""
    theirs = {f"000000000{number}" for number in range(1, 7)}
    assert theirs <= b2.state.keys.keys()
    return [key for key_id, key in b2.state.keys.items() if key_id not in theirs and key is not B2Server.KEY]


def open_raw(b2: B2Server, key: Key) -> B2Api:
    """A client that does not keep itself to the key's prefix, as a thief's."""
    api = B2Api(InMemoryAccountInfo())
    api.authorize_account(key.key_id, key.secret, realm=b2.url)
    return api


def open_pods_store(b2: B2Server, env: Mapping[str, str], url: str = "b2://the-bucket/team") -> Store:
    return open_store(url, b2.url, env, streams=4, retry=QUICK)


# ---------------------------------------------------------------- what a key may


def test_the_key_of_a_pod_does_all_that_a_pod_does_and_reaches_nothing_else(
    fleet: Controlled, b2: B2Server, tmp_path: Path
) -> None:
    told = fleet.tick()
    assert told.did and not told.failed
    [order], [key] = fleet.vast.orders, made_keys(b2)
    assert (order.env["B2_APPLICATION_KEY_ID"], order.env["B2_APPLICATION_KEY"]) == (key.key_id, key.secret)
    assert key.name == name_key(order.label) and order.env["SAID"] == "hello"
    assert (set(key.capabilities), key.buckets, key.prefix) == (set(NEEDED), ("the-bucket",), f"team/{RUN}/")

    store = open_pods_store(b2, order.env)
    assert survey(store, RUN).problems == ()
    held = claims.claim(store, RUN, POD, 60.0, sleep=lambda seconds: None)
    claims.beat(store, RUN, held.generation, POD, 1)
    for number in (10, 20, 30):
        publish(store, Step(tmp_path / str(number), number).fill().plan(tmp_path / "state"), quiet)
    latest = read_latest(store, RUN)
    assert latest is not None and latest.step == 30
    set_pin(store, RUN, 20, pinned=True)
    assert delete_step(store, RUN, 10) > 0
    tidy(store, RUN)
    store.sweep(f"{RUN}/")
    put_logs(store, RUN, "0123abcd", 1, {"trainer.log": gzip.compress(b"step 30")})
    assert get_logs(store, RUN, 1) and sorted(list_steps(store, RUN).steps) == [20, 30]
    restore(store, RUN, 30, Place("checkpoints/step_30"), tmp_path / "pod-b", quiet)
    assert tree(tmp_path / "pod-b") == tree(tmp_path / "30")
    assert not scrub(store, RUN, quiet, deep=100).is_damaged
    claims.release(store, RUN, held.generation, POD)

    b2.put(f"team/{RUN}7/latest.json", b"another run")
    b2.put(f"team/fleet/state/{RUN}.json", b"what the controller believes")
    bucket = open_raw(b2, key).get_bucket_by_name("the-bucket")
    for name in (f"fleet/state/{RUN}.json", f"{RUN}7/latest.json"):
        before = b2.objects()[f"team/{name}"]
        acts: list[Callable[[], object]] = [
            partial(store.get_bytes, name, 1000),
            partial(store.put_bytes, name, b"mine"),
            partial(store.list, name.rpartition("/")[0] + "/"),
            lambda name=name: bucket.download_file_by_name(f"team/{name}").save(io.BytesIO()),
            lambda name=name: bucket.upload_bytes(b"mine", f"team/{name}"),
            lambda name=name: list(bucket.ls(f"team/{name}")),
        ]
        for act in acts:
            with pytest.raises((StoreError, B2Error), match=r"only reaches names|[Uu]nauthorized"):
                act()
        assert b2.objects()[f"team/{name}"] == before
    with pytest.raises(StoreError, match="limited to another bucket"):
        open_pods_store(b2, order.env, "b2://another/team")


def test_its_secret_is_nowhere_but_in_the_order(fleet: Controlled, b2: B2Server, tmp_path: Path) -> None:
    told = fleet.tick()
    [key] = made_keys(b2)
    kept = b2.objects()
    assert f"team/fleet/fleet/state/{RUN}.json" in kept and all(
        key.secret.encode() not in data for data in kept.values()
    )
    assert key.secret not in f"{told} {fleet.fleet} {fleet.vast.orders}"
    assert key.secret not in mask_secrets(f"curl: refused {key.secret}")


@pytest.mark.parametrize(
    ("until", "valid_s"),
    [
        (None, LONGEST_S),
        (NOW + 7 * DAY_S, 8 * DAY_S),
        (NOW - 3 * DAY_S, DAY_S),
        (NOW + 5000 * DAY_S, LONGEST_S),
    ],
)
def test_a_key_ends_a_day_after_the_last_create_or_as_late_as_b2_allows(
    b2: B2Server, until: float | None, valid_s: int
) -> None:
    alone(b2, until=until).make_key(LABEL)
    [key] = made_keys(b2)
    assert key.expires_at is not None and key.expires_at - time.time() == pytest.approx(valid_s, abs=60)


def test_an_expired_key_is_refused_and_a_deleted_one_works_on_by_its_token(b2: B2Server) -> None:
    first, second = alone(b2).make_key(LABEL), alone(b2).make_key(OTHER)
    store = open_pods_store(b2, second)
    alone(b2).sweep(living(LABEL), {"vast": [], "ssh/box": []}, lambda: living(LABEL))
    store.put_bytes(f"{RUN}/late.json", b"the claim has to fence this pod")
    with pytest.raises(StoreError, match="refuses the application key"):
        open_pods_store(b2, second)
    [key] = made_keys(b2)
    open_pods_store(b2, first)
    key.expires_at = time.time() - 1
    with pytest.raises(StoreError, match="refuses the application key"):
        open_pods_store(b2, first)


@pytest.mark.parametrize("run_id", ["a.b_c", "x" * 100, "swe", "Swe-7"])
def test_names_of_keys_are_what_b2_takes_and_tell_runs_apart(run_id: str) -> None:
    name = name_key(label_of(run_id, 10**15 - 1, "abcdef"))
    assert len(name) <= 100 and name.replace("-", "").isalnum() and name.isascii()
    for other in (f"{run_id[:-1]}-", run_id[:-1] + "y", run_id.swapcase()):
        assert name_key(label_of(other, 10**15 - 1, "abcdef")) != name
    assert not name_key("somebody's machine")


# ---------------------------------------------------------------- when it goes


def test_a_key_goes_with_its_pod_and_not_before(fleet: Controlled, b2: B2Server) -> None:
    fleet.tick()
    fleet.tick()
    assert len(made_keys(b2)) == 1
    fleet.order(wanted=False)
    fleet.tick()
    assert not fleet.vast.living and made_keys(b2) == []


def test_a_pod_that_vanished_leaves_no_key_beside_that_of_the_next_after_an_hour(
    fleet: Controlled, b2: B2Server
) -> None:
    fleet.tick()
    fleet.vast.living.clear()
    for _ in range(3):
        fleet.tick()
    [instance] = fleet.vast.living.values()
    assert len(fleet.vast.orders) == len(made_keys(b2)) == 2
    book = fleet.fleet.book()
    book.begin()
    state = book.read_state(RUN)
    rented = tuple(one if one.ended is None else replace(one, ended=one.ended - HOUR_S) for one in state.rented)
    book.write_state(RUN, replace(state, rented=rented), "An hour later.")
    book.end()
    fleet.tick()
    assert [key.name for key in made_keys(b2)] == [name_key(instance.label)]


def test_a_pod_that_two_lists_lacked_while_it_boots_goes_on_with_its_key(fleet: Controlled, b2: B2Server) -> None:
    """Its key was deleted, and then the next pod was destroyed, which had one."""
    fleet.tick()
    [first] = fleet.vast.living
    hidden = fleet.vast.living.pop(first)
    fleet.tick()
    assert len(fleet.vast.orders) == 2
    fleet.vast.living[first] = hidden
    fleet.tick()
    assert list(fleet.vast.living) == [first]
    assert [key.name for key in made_keys(b2)] == [name_key(hidden.label)]


def test_nothing_is_asked_about_keys_while_nothing_changes(fleet: Controlled, b2: B2Server) -> None:
    fleet.tick()
    before = len(b2.journal("b2_(list|create|delete)_keys?"))
    for _ in range(3):
        fleet.tick()
    assert len(b2.journal("b2_(list|create|delete)_keys?")) == before


def test_a_controller_that_only_observes_makes_and_deletes_no_key(fleet: Controlled, b2: B2Server) -> None:
    alone(b2).make_key(OTHER)
    fleet.tick(dry=True)
    assert len(made_keys(b2)) == 1 and not b2.journal("b2_(list|delete)_keys?")


def test_the_offer_is_taken_by_others_and_the_key_goes_at_once(fleet: Controlled, b2: B2Server) -> None:
    fleet.vast.fault = PlaceError("taken", "gone")
    assert fleet.tick().failed
    assert fleet.vast.orders and made_keys(b2) == []


@pytest.mark.parametrize("created", [False, True])
def test_a_controller_killed_around_the_create_leaves_no_key_without_a_pod(
    fleet: Controlled, b2: B2Server, created: bool
) -> None:
    fleet.vast.fault = KilledError()
    with pytest.raises(KilledError):
        fleet.tick()
    [first] = fleet.vast.orders
    if created:
        fleet.vast.living["7"] = Instance("7", first.label, "running", 2.0)
    fleet.start()
    for _ in range(3):
        fleet.tick()
    [instance] = fleet.vast.living.values()
    assert [key.name for key in made_keys(b2)] == [name_key(instance.label)]
    assert (instance.label == first.label) == created


def test_killed_after_the_key_while_the_other_provider_is_away_nothing_is_swept_until_it_answers(
    fleet: Controlled, b2: B2Server
) -> None:
    fleet.vast.fault = KilledError()
    with pytest.raises(KilledError):
        fleet.tick()
    lost = name_key(fleet.vast.orders[0].label)
    fleet.start()
    fleet.own.is_away = True
    for _ in range(3):
        fleet.tick()
    assert len(fleet.vast.living) == 1
    assert lost in [key.name for key in made_keys(b2)]
    fleet.own.is_away = False
    fleet.tick()
    assert len(made_keys(b2)) == 1 and lost not in [key.name for key in made_keys(b2)]


@pytest.mark.soak
def test_a_pod_that_trains_keeps_its_key_though_its_provider_denies_it(fleet: Controlled, b2: B2Server) -> None:
    """A list that is wrong for a minute: the claim says who lives."""
    fleet.tick()
    [order] = fleet.vast.orders
    store = open_pods_store(b2, order.env)
    held = claims.claim(store, RUN, POD, 60.0, sleep=lambda seconds: None)
    claims.beat(store, RUN, held.generation, POD, 1, about={"label": order.label, "unpublished": []})
    fleet.vast.hides = True
    for _ in range(4):
        fleet.tick()
    state = fleet.fleet.book().read_state(RUN)
    assert not any(one.is_living for one in state.rented), "the core takes it for gone"
    assert len(made_keys(b2)) == 1
    claims.release(store, RUN, held.generation, POD)
    for _ in range(3):
        fleet.tick()
    assert name_key(order.label) not in [key.name for key in made_keys(b2)]


# ---------------------------------------------------------------- faults of B2


def test_a_key_whose_answer_was_lost_is_swept_and_the_second_one_is_the_pods(fleet: Controlled, b2: B2Server) -> None:
    b2.fail("b2_create_key", lose_answer=True)
    assert fleet.tick().did
    assert len(b2.journal("b2_create_key")) == 2
    [order], [key] = fleet.vast.orders, made_keys(b2)
    assert order.env["B2_APPLICATION_KEY_ID"] == key.key_id
    open_pods_store(b2, order.env)


def test_while_no_answer_comes_nothing_is_rented_and_what_was_made_is_swept(fleet: Controlled, b2: B2Server) -> None:
    b2.fail("b2_create_key", lose_answer=True, times=99)
    told = fleet.tick()
    assert "could not make a key for pod rls-" in told.failed and not fleet.vast.orders
    assert len(b2.journal("b2_create_key")) > 1 and made_keys(b2) == []


@pytest.mark.soak
@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503},
        {"status": 429, "code": "too_many_requests", "retry_after": 1},
        {"status": 401, "code": "expired_auth_token"},
    ],
    ids=lambda fault: str(fault["status"]),
)
@pytest.mark.parametrize("op", ["b2_create_key", "b2_list_keys", "b2_delete_key"])
def test_what_passes_is_waited_for(fleet: Controlled, b2: B2Server, op: str, fault: dict[str, object]) -> None:
    alone(b2).make_key(OTHER)
    b2.fail(op, **fault)
    told = fleet.tick()
    assert told.did and not told.failed and not fleet.fleet.key_notes()
    assert len(made_keys(b2)) == 1


@pytest.mark.parametrize("op", ["b2_list_keys", "b2_delete_key"])
def test_a_sweep_that_fails_is_said_stops_nothing_and_is_done_later(fleet: Controlled, b2: B2Server, op: str) -> None:
    alone(b2).make_key(OTHER)
    fault = b2.fail(op, status=503, times=99)
    assert fleet.tick().did
    [note] = fleet.fleet.key_notes().values()
    assert note.startswith("Keys of pods that are gone may be left; trying again: could not ")
    assert len(made_keys(b2)) == 2
    fault.times = 0
    fleet.tick()
    assert len(made_keys(b2)) == 1 and not fleet.fleet.key_notes()


def test_a_refusal_without_a_missing_capability_rents_nothing(fleet: Controlled, b2: B2Server) -> None:
    b2.fail("b2_create_key", status=403, code="access_denied", times=9)
    told = fleet.tick()
    assert "No pod is rented, since it has no key: could not make a key for pod rls-" in told.failed
    assert not fleet.vast.orders and B2Server.KEY.secret not in told.failed


def test_a_wrong_key_of_the_account_is_one_sentence(b2: B2Server) -> None:
    keys = alone(b2, Key("0000master01", "K000wrong"))
    with pytest.raises(PlaceError, match="refuses the application key") as caught:
        keys.make_key(LABEL)
    assert caught.value.kind == "key" and "K000wrong" not in str(caught.value)
    keys.sweep(State(), {"vast": [], "ssh/box": []}, State)
    assert "refuses the application key" in keys.note


@pytest.mark.parametrize("lacking", TO_MAKE)
def test_a_key_that_may_not_make_keys_leaves_pods_those_of_the_file(b2: B2Server, lacking: str) -> None:
    key = b2.add_key(Key("0000000009", "K9", tuple(one for one in ALL_CAPABILITIES if one != lacking)))
    keys = alone(b2, key)
    assert keys.make_key(LABEL) == {}
    assert keys.note == (
        f"No key is made for each pod: the controller's key ...0009 lacks {lacking}. "
        "Pods get the keys of [run.swe.env]."
    )
    del b2.state.keys["0000000009"]
    assert made_keys(b2) == []


# ---------------------------------------------------------------- where none is made


def test_a_key_in_the_file_wins(tmp_path: Path, b2: B2Server) -> None:
    given = 'B2_APPLICATION_KEY_ID = "k"\nB2_APPLICATION_KEY = "given"'
    fleet = Controlled(write_fleet(tmp_path, b2, env=given), b2)
    fleet.tick()
    [order] = fleet.vast.orders
    assert order.env["B2_APPLICATION_KEY"] == "given" and made_keys(b2) == []
    assert not fleet.fleet.key_notes()


def test_another_kind_of_store_is_said(tmp_path: Path, b2: B2Server) -> None:
    (tmp_path / "store/fleet").mkdir(parents=True)
    url = (tmp_path / "store").as_uri()
    fleet = Controlled(write_fleet(tmp_path, b2, url=url, more="\n"), b2)
    fleet.tick(dry=True)
    note = f"{url} is a folder: a pod has these steps only where it shares that very folder."
    assert fleet.fleet.key_notes() == {"swe": note}
    fleet.tick()
    assert "B2_APPLICATION_KEY" not in fleet.vast.orders[0].env


def test_a_tick_prints_what_a_person_should_know_of_the_keys(
    tmp_path: Path, b2: B2Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = b2.add_key(Key("0000000009", "K9", tuple(one for one in ALL_CAPABILITIES if one != "listKeys")))
    for name, value in (b2.environ(key) | {"VAST_API_KEY": "v", "VAST_URL": "http://127.0.0.1:1"}).items():
        monkeypatch.setenv(name, value)
    file = write_fleet(tmp_path, b2)
    main.main(["fleet", "tick", "--file", str(file)])
    note = "keys of swe: No key is made for each pod: the controller's key ...0009 lacks listKeys."
    assert note in " ".join(capsys.readouterr().out.split())


# ---------------------------------------------------------------- one sweep, by itself


def alone(b2: B2Server, key: Key | None = None, until: float | None = None, claim: Claim | None = None) -> B2Keys:
    return B2Keys(
        "swe",
        Rules(RUN, {"spot": "vast", "own": "ssh/box"}, until=until),
        lambda: open_store("b2://the-bucket/team", b2.url, b2.environ(key), retry=QUICK),
        lambda: RunLook(claim or Claim(), None),
        now=lambda: NOW,
    )


def living(*labels: str, provider: str = "vast") -> State:
    pods = [Pod(provider, 1, Instance(str(number), label, "running", 2.0)) for number, label in enumerate(labels)]
    return State(rented=tuple(Rented(pod, NOW, NOW, 2.0) for pod in pods))


def over(state: State, ago_s: float = HOUR_S, *, held: bool = False, destroyed_at: float = 0.0) -> State:
    ended = (replace(one, ended=NOW - ago_s, how="gone", held=held, destroyed_at=destroyed_at) for one in state.rented)
    return replace(state, rented=tuple(ended), heard_at=NOW)


NONE: dict[str, list[Instance]] = {"vast": [], "ssh/box": []}


@pytest.mark.parametrize(
    ("state", "instances"),
    [
        (living(LABEL), NONE),
        (State(intent=Intent(LABEL, "spot", "vast", 1, NOW, 2.0)), NONE),
        (over(living(LABEL)), {"vast": [Instance("0", LABEL, "stopped", 2.0)], "ssh/box": []}),
        (over(living(LABEL)), {"ssh/box": []}),
        (State(), {"vast": []}),
        (State(), {}),
        (over(living(LABEL), HOUR_S - 1), NONE),
    ],
    ids=["lives", "asked for", "still listed", "its provider is away", "any may have it", "all are away", "vanished"],
)
def test_a_key_of_a_pod_that_may_live_is_kept(b2: B2Server, state: State, instances: dict[str, list[Instance]]) -> None:
    alone(b2).make_key(LABEL)
    alone(b2).sweep(state, instances, lambda: state)
    assert len(made_keys(b2)) == 1


@pytest.mark.parametrize(
    ("state", "instances"),
    [
        (State(), NONE),
        (over(living(LABEL)), NONE),
        (over(living(LABEL), 60.0, destroyed_at=NOW), NONE),
        (over(living(LABEL), 60.0, held=True), NONE),
        (living(OTHER), NONE),
        # It is known to have been at the provider that answers.
        (over(living(LABEL)), {"vast": []}),
    ],
)
def test_a_key_of_a_pod_that_is_gone_is_deleted(
    b2: B2Server, state: State, instances: dict[str, list[Instance]]
) -> None:
    alone(b2).make_key(LABEL)
    alone(b2).sweep(state, instances, lambda: state)
    assert made_keys(b2) == []


def test_all_pages_of_the_list_are_read(b2: B2Server) -> None:
    b2.state.longest_page = 2
    for number in range(7):
        alone(b2).make_key(label_of(RUN, number, "00aa00"))
    alone(b2).sweep(State(), NONE, State)
    assert made_keys(b2) == []


def test_a_controller_that_was_paused_deletes_no_key_that_another_one_made_meanwhile(b2: B2Server) -> None:
    """It looked, and was stopped for an hour. The other one wrote its create down before it made the key."""
    keys, late = alone(b2), living(OTHER)
    keys.make_key(LABEL)

    def read_state() -> State:
        assert b2.journal("b2_list_keys"), "the state must be read after the keys are listed"
        alone(b2).make_key(label_of(RUN, 3, "89ab89"))  # that of the create which is not in this state yet
        return late

    alone(b2).make_key(OTHER)
    keys.sweep(State(), NONE, read_state)
    assert [key.name for key in made_keys(b2)] == [name_key(OTHER), name_key(label_of(RUN, 3, "89ab89"))]


@pytest.mark.parametrize(
    ("claim", "wanted", "kept"),
    [
        (Claim(1, "m", NOW, label=LABEL), True, True),
        (Claim(1, "m", NOW), True, False),  # of a pod that a person made
        (Claim(1, "m", NOW, label=LABEL), False, False),
        (Claim(1, "m", NOW, released=True, label=LABEL), True, False),
        (Claim(1, "m", NOW, released=True, code=75, label=LABEL, unpublished=(7,)), True, True),  # it starts again
        (Claim(1, "m", NOW, released=True, code=94, label=LABEL, unpublished=(7,)), True, False),
        (Claim(2, "m", NOW, label=OTHER), True, False),
        (Claim(1, "m", NOW, label="rm -rf /"), True, False),
    ],
)
def test_the_claim_outweighs_a_list_that_lacks_the_pod(b2: B2Server, claim: Claim, wanted: bool, kept: bool) -> None:
    state = replace(over(living(LABEL)), wanted=wanted)
    keys = alone(b2, claim=claim)
    keys.make_key(LABEL)
    keys.sweep(state, NONE, lambda: state)
    assert bool(made_keys(b2)) == kept


def test_what_was_spared_is_looked_at_again_without_any_change(b2: B2Server) -> None:
    state = over(living(LABEL))
    keys = alone(b2, claim=Claim(1, "m", NOW, label=LABEL))
    keys.make_key(LABEL)
    keys.sweep(state, NONE, lambda: state)
    keys.look = lambda: RunLook(Claim(2, "n", NOW, label=OTHER), None)
    keys.sweep(state, NONE, lambda: state)
    assert made_keys(b2) == []


def test_the_claim_cannot_be_read_and_nothing_is_deleted(b2: B2Server) -> None:
    def look() -> RunLook:
        raise StoreError("transient", "the store is away")

    keys = alone(b2)
    keys.make_key(LABEL)
    keys.look = look
    keys.sweep(State(), NONE, State)
    assert len(made_keys(b2)) == 1 and "the store is away" in keys.note


def test_a_living_pod_whose_key_ends_soon_is_said(b2: B2Server) -> None:
    keys = alone(b2, until=NOW)
    keys.now = time.time
    keys.rules = replace(keys.rules, until=time.time() - 3600)
    keys.make_key(LABEL)
    keys.sweep(living(LABEL), NONE, lambda: living(LABEL))
    assert keys.note.startswith(
        "The key of pod 0 ends in 24 h, and the pod publishes nothing after that. To go on, set"
    )
    assert keys.note.endswith("rl-supervisor fleet destroy vast/0")
    again = alone(b2)  # as another process finds it
    again.now = time.time
    again.sweep(living(LABEL), NONE, lambda: living(LABEL))
    assert again.note == keys.note
    gone = alone(b2)
    gone.now = time.time
    gone.sweep(over(living(LABEL)), {"ssh/box": []}, lambda: over(living(LABEL)))
    assert not gone.note and len(made_keys(b2)) == 1
