"""The agent of one machine: it launches, watches and stops what the head wants there, and tells what it sees.

Run as ``python -m supervisor.nodes.agent OPTIONS`` below a nanny (``rl-supervisor node``). It decides nothing. What it
started lives on under its shim when it dies; the next agent finds the records and goes on.

- One thread speaks, looks at the components and carries their output; a lane of its own launches and stops, and the
  process sensors look in threads of theirs.
- What it tells has an age. After each new connection it tells all that it knows anew, so nothing has to be kept.
- The **lease**: the head says back which of the agent's words it has heard. When the newest word of which that is
  known is older than the lease, no head knows of this machine any more and another may have begun: what runs is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import queue
import random
import secrets
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from supervisor.base import logs, proc_stat
from supervisor.base.errors import EXIT_TRY_AGAIN, ConfigError, PodUnfitError, SupervisorError, TryAgainError
from supervisor.base.own_child import OwnChild
from supervisor.base.records import dataclass
from supervisor.base.sd_notify import notifier
from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.jobs.base import Component, Place, StopRules
from supervisor.nodes import wire
from supervisor.nodes.allocation import seat_of_pod
from supervisor.nodes.sights import WELL_S, EffortSights, GpuSights, HostSights, Root, is_worth_saying, watch_engine
from supervisor.nodes.wire import Line, Message, WireError, now
from supervisor.process import away, shim_records
from supervisor.process.attempts import attempt_dir
from supervisor.process.away import to_message
from supervisor.process.launch import ShimState, launch, look_at_component
from supervisor.process.stop import stop_attempt
from supervisor.process.survivors import ATTEMPT_MARKER, RUN_MARKER, Belongings, process_table
from supervisor.sensors.base import Looker
from supervisor.sensors.processes import Identity, ProcessWatcher, process_sensors

if TYPE_CHECKING:
    from supervisor.nodes.disk import Disk

TURN_S = 0.25
WATCH_S, SCAN_S = 0.5, 3.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
PIECE = 64 << 10  # of a component's output, a turn
MOST_BEHIND, NEWEST = 8 << 20, 256 << 10  # who writes faster than that: the head is told the newest part alone
MOST_WAITING = 1 << 20
KEPT_ATTEMPTS = 3
KEPT_ANSWERS = 64
KEPT_BUNDLES = 5  # of evidence
STOP_S = 60.0  # of what the head does not ask for
KILL_S = 1.0  # of what the lease ends: no patience
ENGINE = "VLLM::Engine"
EVIDENCE = (sys.executable, "-P", "-m", "supervisor.evidence.child")
FOLDER_S = 1.0  # for the shared folder to say something new
HEADLESS_S = 60.0  # beyond the lease, and between two questions to Slurm


@dataclass
class Part:
    """One component of one attempt on this machine."""

    attempt: int
    name: str
    place: Place
    rules: StopRules
    state: ShimState
    told: ShimState | None = None
    carried: int = 0  # bytes of its output that the head has
    lookers: list[Looker] = field(default_factory=list)
    watcher: ProcessWatcher | None = None
    answered: float = float("-inf")  # when its engine's answers were told last
    odd: bool = False  # were they worth it then?
    seen: dict[tuple[int, int], Message] = field(default_factory=dict)
    gone: list[tuple[float, Message]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its name in what is said."""
        return f"{self.attempt}/{self.name}"

    @property
    def top(self) -> Message:
        """Which it is, in what is said of its processes."""
        return {"attempt": self.attempt, "role": self.place.role, "index": self.place.index, "name": self.name}


class Agent:
    """One machine."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.name, self.rank, self.run_id = options.name, options.rank, options.run
        self.folder, self.head, self.state_dir = options.folder, options.head, options.state
        self.lease_s = options.lease
        self._job = wire.find_job(os.environ)
        self._shared = wire.SharedFolder(self.folder, os.environ, self.run_id)
        self.parts: dict[str, Part] = {}
        self.ending = False  # told to end: by a signal, or by the head
        self._lock = threading.RLock()
        self._out: deque[tuple[float, Message]] = deque()
        self._work: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._answers: dict[str, Message] = {}
        self._under_way: set[str] = set()
        self._doing = threading.Lock()  # held while the lane does something
        self._ending_others = False
        self._unwanted, self._hurry = threading.Event(), threading.Event()
        self._sent: deque[tuple[int, float]] = deque(maxlen=4096)
        self._number = 0
        self.identity = self._find_identity()
        self._heard = self._recall_heard()
        self._kept_heard = self._heard
        self._launching: dict[str, str] = {}  # by order: parts that are being launched, or wait for it
        self._first_left: Message | None = None  # what the head had left when this agent began
        self._gpus = GpuSights(self._say, self._places)
        self._effort = EffortSights(self._say, self._list_roots)
        self._host = HostSights(self._say, self._effort.list_key)
        self._hang_s = 60.0  # as the head says
        self._wanted: int | None = None  # as the head says
        self._notify = notifier()
        self._disk: Disk | None = None
        self._of_disk: dict[str, queue.SimpleQueue[Message]] = {}
        if options.disk is not None:
            from supervisor.nodes.disk import LANES, Disk  # of no use where the machines share one

            self._disk = Disk(options.disk, options.state, os.environ, self._say, options.disk_capacity)
            for lane in LANES:
                self._of_disk |= dict.fromkeys(lane, queue.SimpleQueue())

    # ------------------------------------------------------------ the life of an agent

    def run(self) -> int:
        """Until it is told to end; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._adopt()
        self._end_unknown()
        threading.Thread(target=self._gpus.watch, name="gpus", daemon=True).start()
        self._effort.watch()
        self._host.watch()
        threading.Thread(target=self._lane, name="lane", daemon=True).start()
        if self._disk is not None:
            threading.Thread(target=self._disk.watch, name="disk", daemon=True).start()
            for orders in set(self._of_disk.values()):
                threading.Thread(target=self._disk_lane, args=(self._disk, orders), daemon=True).start()
        threading.Thread(target=self._watch_lease, name="lease", daemon=True).start()
        self._notify.tell_ready()
        wait_s = FIRST_WAIT_S
        told = ""
        while not self.ending:
            began = now()
            try:
                self._session()
            except (OSError, ValueError, WireError, ConfigError) as error:
                if str(error) != told:
                    logs.say("warning", "head", f"The head is not there: {error}.")
                told = str(error)
            self._out.clear()
            wait_s = FIRST_WAIT_S if now() - began > LONGEST_WAIT_S else min(2 * wait_s, LONGEST_WAIT_S)
            until = now() + wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - so that not all come back in one moment
            while not self.ending and now() < until:
                self._turn(None)
                time.sleep(min(TURN_S, max(0.0, until - now())))
        self._notify.tell_stopping()
        return self._end_all()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.ending = True

    def _end_all(self) -> int:
        """The last thing: nothing of the run is left on this machine. 75 where something cannot be ended."""
        self._unwanted.set()
        with self._doing:
            report = self._stop(10**9)
        left = report["survivors"]
        for sentence in left:
            logs.say("error", "survivor", sentence)
        return EXIT_TRY_AGAIN if left else 0

    def _end_unknown(self) -> None:
        """End what an agent with this state folder began and the folder does not tell of: it is older, or was emptied.

        The head hears that it is gone, and would start another beside it.
        """
        known = {attempt_dir(self.state_dir, part.attempt) for part in self._list_parts()}
        for folder in _find_attempts(self.run_id, self.state_dir / "attempts") - known:
            left = self._stop_one(int(folder.name))
            told = "; ".join(left) or "It was ended"
            logs.say(
                "error", "unknown", f"Attempt {folder.name} ran here, and {self.state_dir} has no record of it. {told}."
            )

    def _adopt(self) -> None:
        """Find what the agent before left."""
        for path in sorted(self.state_dir.glob("attempts/[0-9]*/*.place.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                data = json.loads(path.read_text())
                name, attempt = path.name.removesuffix(".place.json"), int(path.parent.name)
                part = self._new_part(attempt, name, data["place"], data["rules"])
                if part.state.state == "running":
                    logs.say("info", "adopted", f"{part.key} lives (pid {part.state.pid}) and is looked at again.")

    def _new_part(self, attempt: int, name: str, place: Message, rules: Message) -> Part:
        folder = attempt_dir(self.state_dir, attempt)
        part = Part(attempt, name, Place(**place), _read_rules(rules), look_at_component(folder, name))
        with self._lock:
            self.parts[part.key] = part
        return part

    # ------------------------------------------------------------ the connection

    def _session(self) -> None:
        """One connection, from the greeting until it ends. Raises OSError and WireError."""
        line, welcome = self._greet()
        try:
            self.lease_s, self._hang_s = float(welcome["lease_s"]), float(welcome.get("hang_s", self._hang_s))
            self._hear_welcome(welcome)
            heard_any = now()
            beat_at = 0.0
            while not self.ending:
                for message in line.take():
                    heard_any = now()
                    self._hear(message)
                if now() - heard_any > wire.SILENCE_S:
                    raise WireError(f"it has said nothing for {wire.SILENCE_S:.0f} s")
                self._turn(line)
                self._send_waiting(line)
                if now() - beat_at >= wire.BEAT_S:
                    beat_at = now()
                    self._number += 1
                    self._sent.append((self._number, beat_at))
                    line.put({"t": "beat", "n": self._number})
                select.select([line], [line] if line.unsent else [], [], TURN_S)
                line.flush()
        finally:
            line.close()

    def _greet(self) -> tuple[Line, Message]:
        answers = self._shared.read(FOLDER_S)
        if not (token := self._shared.token):
            raise WireError(f"there is no token in {self.folder} yet" if answers else f"{self.folder} does not answer")
        host, port = self._find_head()
        connection = socket.create_connection((host, port), timeout=wire.GREETING_S)
        line = Line(connection)
        try:
            hello = line.wait_for_one(wire.GREETING_S)
            mine = secrets.token_hex(16)
            said = (self.run_id, self.name, str(hello.get("nonce")), mine)
            address = connection.getsockname()[0]
            greeting = {"v": wire.VERSION, "run": self.run_id, "name": self.name, "rank": self.rank, "nonce": mine}
            greeting |= {"identity": self.identity, "job": self._job, "seat": seat_of_pod(self.name, os.environ)}
            greeting |= {"proof": wire.prove(token, "agent", *said), "address": address}
            line.put(greeting)
            line.longest = wire.LONGEST_LINE
            welcome = line.wait_for_one(wire.GREETING_S)
            if not wire.is_proof(welcome.get("proof"), wire.prove(token, "head", *said)):
                raise WireError(str(welcome.get("error") or "it does not know the run's token"))
            return line, welcome
        except BaseException:
            line.close()
            raise

    def _find_head(self) -> tuple[str, int]:
        left = self._shared.left
        # One that ended before this agent began is of an earlier allocation, and another job's is none of ours.
        if "ended" in left and self._first_left not in (None, left) and left.get("job", "") in ("", self._job):
            self.ending = True
        self._first_left = self._first_left or left or None  # one that could not be read says nothing
        text = self.head or str(left.get("address", ""))
        if not text:
            raise WireError(f"{self.folder}/head.json names none")
        host, _, port = text.rpartition(":")
        return host.strip("[]"), int(port)

    def _hear_welcome(self, welcome: Message) -> None:
        """Tell all that is known, and end what is of no attempt that the head knows."""
        logs.say("info", "head", "The head is there.")
        logs_there, parts = welcome.get("logs") or {}, self._list_parts()
        for part in parts:
            part.told = None
            part.carried = int(logs_there.get(part.key, 0))
            for known in (welcome.get("known") or {}).get(part.key, ()):
                part.seen.setdefault((int(known["pid"]), int(known["ticks"])), known)
            self._watch(part)
            for message in part.seen.values():
                self._say(message)
            self._out.extend(part.gone)
        with self._lock:
            self._out.extend([*self._gpus.faults, *self._host.newest, *self._effort.newest])
            launching = list(self._launching.values())
        if self._disk is not None:
            self._disk.forget_told()
        self._say({"t": "report", "parts": [*(part.key for part in parts), *launching]})
        self._hear_wanted(welcome.get("wanted"))
        self._gpus.tell_again()

    def _hear_wanted(self, wanted: object) -> None:
        """``wanted``: the attempt of which parts may live here; None: the head does not say."""
        if self._wanted != wanted:
            self._wanted = wanted if isinstance(wanted, int) else None
            self._gpus.tell_again()
        if isinstance(wanted, int) and any(part.attempt != wanted and _lives(part) for part in self._list_parts()):
            self._end_others(wanted)

    def _end_others(self, wanted: int) -> None:
        if not self._ending_others:
            self._ending_others = True
            self._work.put({"do": "end-others", "id": "", "attempt": wanted})

    def _hear(self, message: Message) -> None:
        match message.get("t"):
            case "beat":
                self._hear_beat(int(message.get("n", 0)))
                self._hear_wanted(message.get("wanted"))
            case "do":
                self._take_order(message)
            case "hurry":
                self._hurry.set()
            case "bye":
                logs.say("info", "head", f"The head ends the run here: {message.get('why', '')}")
                self.ending = True

    def _hear_beat(self, number: int) -> None:
        while self._sent and self._sent[0][0] <= number:
            self._heard = max(self._heard, self._sent.popleft()[1])
        if self._heard - self._kept_heard > max(0.5, self.lease_s / 20):
            self._kept_heard = self._heard
            with contextlib.suppress(OSError):
                text = json.dumps({"boot": proc_stat.boot_id(), "heard": self._heard})
                wire.write_private(self.state_dir / "heard.json", text)

    def _find_identity(self) -> str:
        """Of this state folder: another one with the same name knows nothing of what this one started."""
        path = self.state_dir / "identity"
        with contextlib.suppress(OSError, ConfigError):
            if found := wire.read_private(path):
                return found
        wire.write_private(path, made := secrets.token_hex(8))
        return made

    def _recall_heard(self) -> float:
        """An agent that is started again and again without a head must not begin its lease anew each time."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ConfigError):
            data = json.loads(wire.read_private(self.state_dir / "heard.json"))
            if data["boot"] == proc_stat.boot_id():
                return min(now(), float(data["heard"]))
        return now()

    def _say(self, message: Message) -> None:
        self._out.append((now(), message))

    def _send_waiting(self, line: Line) -> None:
        while self._out and line.unsent < MOST_WAITING:
            when, message = self._out.popleft()
            line.put({**message, "age": round(max(0.0, now() - when), 3)})

    # ------------------------------------------------------------ looking

    def _list_parts(self) -> list[Part]:
        with self._lock:
            return list(self.parts.values())

    def _turn(self, line: Line | None) -> None:
        """What is done at each turn, with a connection or without."""
        self._notify.ping()
        for part in self._list_parts():
            if part.told is None or part.told.state in ("running", "absent"):
                self._look_at(part, line)

    def _watch_lease(self) -> None:
        """In a thread of its own: a shared folder that hangs must not hold up what the head counts on."""
        asked, told = 0.0, False
        while True:
            late = self._is_lease_over()
            living = {part.attempt for part in self._list_parts() if late and _lives(part)}
            if living and not told:
                sentence = f"No head has heard of this machine for {self.lease_s:.0f} s: what runs is ended."
                logs.say("error", "lease", sentence)
            told = bool(living)
            if late:
                self._unwanted.set()
            for attempt in sorted(living):
                self._kill(attempt)
            if now() - self._heard > self.lease_s + HEADLESS_S and now() - asked > HEADLESS_S:
                asked = now()
                self._ask_for_another_head()
            time.sleep(TURN_S)

    def _is_lease_over(self) -> bool:
        return bool(now() - self._heard > self.lease_s)

    def _kill(self, attempt: int) -> None:
        """At once, and again as long as something lives: the head counts on it, and a stop takes its time."""
        hurry = threading.Event()
        hurry.set()
        known = [process for part in self._list_parts() if part.attempt == attempt for process in part.seen]
        try:
            stop_attempt(
                attempt_dir(self.state_dir, attempt),
                (), self.run_id, StopRules([]), KILL_S, lambda: None, 0.0, hurry=hurry, known=known, brief=True
            )  # fmt: skip
        except Exception as error:  # the thread's edge: no defect may end the only thing that ends what runs
            logs.say("error", "lease", f"Attempt {attempt} could not be ended, and that is tried again: {error}.")

    @staticmethod
    def _ask_for_another_head() -> None:
        from supervisor.nodes.headless import requeue_headless  # of no use to most

        if told := requeue_headless(os.environ):
            logs.say("warning", "head", told)

    def _look_at(self, part: Part, line: Line | None) -> None:
        folder = attempt_dir(self.state_dir, part.attempt)
        found = look_at_component(folder, part.name)
        if found.state == "unknown":
            return  # what was told last stands until it can be seen again
        part.state = found
        if line is None:
            return
        behind = self._carry_output(part, folder / f"{part.name}.log", line)
        if part.state != part.told and not (behind and part.state.state in ("exited", "lost")):
            part.told = part.state
            self._watch(part)
            ended = part.state.ended_wall
            age = max(0.0, time.time() - ended) if ended is not None else 0.0
            message = {"t": "part", "attempt": part.attempt, "name": part.name, "state": to_message(part.state)}
            self._out.append((now() - age, message))

    def _carry_output(self, part: Part, path: Path, line: Line) -> bool:
        """Send a piece of what the component wrote; True while more of it waits.

        The place in the file is the same here and there. Who is too far behind leaves a hole.
        """
        if line.unsent > MOST_WAITING:
            return True
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < part.carried:
                    part.carried = 0
                if size - part.carried > MOST_BEHIND:
                    part.carried = size - NEWEST
                file.seek(part.carried)
                data = file.read(PIECE)
        except OSError:
            return False
        if data:
            text = data.decode("latin-1")  # bytes as they are: what is no text is the reader's business
            line.put({"t": "log", "attempt": part.attempt, "name": part.name, "at": part.carried, "data": text})
            part.carried += len(data)
        return part.carried < size

    def _watch(self, part: Part) -> None:
        """Look at the processes below the component's shim: an engine's core ends silently while its server lives."""
        if part.state.state != "running" or part.lookers or part.state.pid is None:
            return
        main = (part.state.pid, part.state.start_ticks or 0)
        part.seen[main] = {"t": "seen", **part.top, "pid": main[0], "ticks": main[1], "title": part.name, "key": True}
        self._say(part.seen[main])
        if part.place.role != "inference" or part.state.shim_pid is None:
            return
        post = partial(self._take_fact, part)
        if part.place.port is not None:
            part.lookers.append(watch_engine(part.place, self._hang_s, post))
        known = [
            f.ProcessSeen(part.attempt, part.place.role, *process, title=str(message.get("title", "")))
            for process, message in part.seen.items()
            if process != main
        ]
        root = Identity(part.state.shim_pid, proc_stat.start_ticks(part.state.shim_pid) or 0)
        part.watcher, scanner = process_sensors(part.attempt, [root], _classify, tuple, known=known)
        part.lookers += [Looker(part.watcher, post, interval_s=WATCH_S), Looker(scanner, post, interval_s=SCAN_S)]
        for looker in part.lookers:
            looker.start()

    def _take_fact(self, part: Part, fact: f.Fact) -> None:
        """Of an engine, in a sensor's thread."""
        if isinstance(fact, f.EngineLook):
            odd = is_worth_saying(fact)
            # The first good answer after a bad one is news as well.
            if odd or part.odd or now() - part.answered >= WELL_S:
                part.answered, part.odd = now(), odd
                self._say({"t": "engine", **part.top, "look": encode(fact)})
        if not isinstance(fact, f.ProcessSeen | f.ProcessGone):
            return
        process = (fact.pid, fact.start_ticks)
        message = {**part.top, "pid": fact.pid, "ticks": fact.start_ticks, "key": fact.key}
        with self._lock:
            if isinstance(fact, f.ProcessSeen):
                message |= {"t": "seen", "title": fact.title}
                part.seen[process] = message
            else:
                message |= {"t": "gone"}
                part.seen.pop(process, None)
                part.gone = [*part.gone, (now(), message)][-16:]
            self._say(message)

    def _list_newest(self) -> list[Part]:
        """What the newest attempt has here; nothing where the head has begun another one elsewhere."""
        parts = self._list_parts()
        newest = max((one.attempt for one in parts), default=0)
        return [one for one in parts if one.attempt == newest >= (self._wanted or 0)]

    def _places(self) -> list[Place]:
        return [one.place for one in self._list_newest()]

    def _list_roots(self) -> tuple[int, list[Root]]:
        parts, roots = self._list_newest(), []
        for one in parts:
            if one.state.state == "running" and one.state.pid is not None:
                with self._lock:
                    seen = list(one.seen)
                roots.append(Root(one.place.role, one.state.shim_pid or 0, one.state.pid, seen))
        return max((one.attempt for one in parts), default=0), roots

    # ------------------------------------------------------------ doing

    def _take_order(self, message: Message) -> None:
        number = str(message.get("id"))
        if number in self._answers:
            self._say(self._answers[number])
        elif number not in self._under_way:
            self._under_way.add(number)
            if message.get("do") == "launch":
                with self._lock:
                    self._launching[number] = f"{message['attempt']}/{message['component']['name']}"
            if message.get("do") == "stop":
                self._hurry.clear()
                self._unwanted.set()
            if message.get("do") == "evidence":  # what it looks at may hang, and a stop comes behind it
                threading.Thread(target=self._answer, args=(message, self._keep_evidence), daemon=True).start()
                return
            self._of_disk.get(str(message.get("do")), self._work).put(message)

    def _lane(self) -> None:
        """Launch and stop, one after the other."""
        while True:
            message = self._work.get()
            with self._doing:
                self._answer(message, self._carry_out)

    def _disk_lane(self, disk: Disk, orders: queue.SimpleQueue[Message]) -> None:
        while True:
            self._answer(orders.get(), disk.carry_out)

    def _answer(self, message: Message, carry_out: Callable[[Message], Message]) -> None:
        try:
            answer = carry_out(message)
        except PodUnfitError as error:
            answer = {"error": str(error), "kind": "unfit"}
        except ConfigError as error:
            answer = {"error": str(error), "kind": "config"}
        except (SupervisorError, OSError) as error:
            answer = {"error": str(error), "kind": "try-again"}
        except Exception as error:  # the lane's edge: a defect must not leave the head waiting
            answer = {"error": f"{type(error).__name__}: {error}", "kind": "try-again"}
        if number := str(message.get("id", "")):
            answer = {"t": "done", "id": number, **answer}
            with self._lock:
                self._answers = dict([*self._answers.items(), (number, answer)][-KEPT_ANSWERS:])
                self._under_way.discard(number)
                self._launching.pop(number, None)
            self._say(answer)

    def _carry_out(self, message: Message) -> Message:
        match message.get("do"):
            case "launch":
                return self._launch(message)
            case "stop":
                how = {name: bool(message.get(name)) for name in ("brief", "at_once")}
                budget_s, gpu_wait_s = float(message["budget_s"]), float(message.get("gpu_wait_s", 0.0))
                return self._stop(int(message["upto"]), _read_rules(message["rules"]), budget_s, gpu_wait_s, **how)
            case "end-others":
                try:
                    for attempt in sorted({one.attempt for one in self._list_parts()} - {int(message["attempt"])}):
                        self._stop_one(attempt)
                finally:
                    self._ending_others = False
                return {}
        raise ConfigError(f"nothing here is called {message.get('do')!r}")

    def _launch(self, message: Message) -> Message:
        attempt, told = int(message["attempt"]), message["component"]
        self._unwanted.clear()
        if self._is_lease_over():
            raise TryAgainError("no head has heard of this machine for longer than its lease")
        for earlier in sorted({one.attempt for one in self._list_parts() if one.attempt != attempt}):
            if left := self._stop_one(earlier):
                raise PodUnfitError(f"something of an earlier attempt cannot be ended: {'; '.join(left)}")
        self._forget_old(attempt)
        place = {**message["place"], **message.get("sees", {})}
        nofile, ports = int(told["nofile"]), [int(port) for port in told.get("ports", ())]
        component = Component(told["name"], told["argv"], Path(told["cwd"]), told["env"], nofile, ports)
        folder = attempt_dir(self.state_dir, attempt)
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        shim_records.write_atomically(
            str(folder / f"{component.name}.place.json"), {"place": place, "rules": message["rules"]}
        )
        found = look_at_component(folder, component.name)
        notes: Sequence[str] = ()
        if found.state != "running":
            # A head that lost its journal counts from 1 again: what a run of before wrote there is none of this one's.
            (folder / f"{component.name}.log").unlink(missing_ok=True)
            notes = launch(component, folder, "fork", self.run_id, self._unwanted).notes
        part = self._new_part(attempt, component.name, place, message["rules"])
        self._gpus.tell_again()
        return {"state": to_message(part.state), "notes": list(notes)}

    def _keep_evidence(self, message: Message) -> Message:
        """What the attempt's processes do here, by the daemon's own program for that; kept on this machine."""
        attempt, until = int(message["asked"]["attempt"]), time.monotonic() + float(message["limit_s"])
        folder, parts = attempt_dir(self.state_dir, attempt), [p for p in self._list_parts() if p.attempt == attempt]
        with self._lock:
            seen = [
                (*process, part.place.role, told.get("title", ""))
                for part in parts
                for process, told in part.seen.items()
            ]
        asked: Message = {**message["asked"], "state_dir": str(self.state_dir), "until": until, "trees": [str(folder)]}
        asked |= {"processes": [(pid, role, title) for pid, _, role, title in seen], "seen": [one[:2] for one in seen]}
        asked |= {"logs": {part.name: str(folder / f"{part.name}.log") for part in parts}}
        with OwnChild(EVIDENCE, environ=os.environ, given=json.dumps(asked).encode(), cwd=Path("/")) as child:
            code, said = child.wait(until), child.answer()
            complaint = child.complaint()
        for old in sorted(self.state_dir.glob("incidents/*"))[:-KEPT_BUNDLES]:
            shutil.rmtree(old, ignore_errors=True)
        lines = [json.loads(line) for line in said.rpartition(b"\n")[0].splitlines()]
        told = next((line["sentence"] for line in lines if "sentence" in line), "")
        why = "it was not ready in time" if code is None else complaint or f"exit code {code}"
        return {"ok": told or f"The evidence could not be collected: {why}."}

    def _forget_old(self, attempt: int) -> None:
        """Folders of attempts long over, of which the head has the output; and of later ones: another head counted
        those, before this one lost its journal.
        """
        folders = sorted(self.state_dir.glob("attempts/[0-9]*"))
        later = [folder for folder in folders if int(folder.name) > attempt]
        for folder in [*folders[:-KEPT_ATTEMPTS], *later]:
            number = int(folder.name)
            if number != attempt and not Belongings(folder, (), self.run_id).list_living():
                shutil.rmtree(folder, ignore_errors=True)
                with self._lock:
                    self.parts = {key: one for key, one in self.parts.items() if one.attempt != number}

    def _stop(
        self,
        upto: int,
        rules: StopRules | None = None,
        budget_s: float = STOP_S,
        gpu_wait_s: float = 0.0,
        *,
        brief: bool = False,
        at_once: bool = False,
    ) -> Message:
        """End all attempts up to this one, and wait so long for the GPUs' memory."""
        begun = now()
        left: list[str] = []
        for path in sorted(self.state_dir.glob("attempts/[0-9]*"), reverse=True):
            if int(path.name) <= upto:
                rest_s = max(1.0, budget_s - (now() - begun))
                left += self._stop_one(int(path.name), rules, rest_s, gpu_wait_s, brief=brief, at_once=at_once)
        return {"survivors": left, "seconds": now() - begun}

    def _stop_one(
        self,
        attempt: int,
        rules: StopRules | None = None,
        budget_s: float = STOP_S,
        gpu_wait_s: float = 0.0,
        *,
        brief: bool = False,
        at_once: bool = False,
    ) -> list[str]:
        """End all of one attempt here; returns a sentence for each process that is left. ``rules``: None: its own."""
        folder = attempt_dir(self.state_dir, attempt)
        parts = [one for one in self._list_parts() if one.attempt == attempt]
        stop = rules or (parts[0].rules if parts else StopRules([]))
        known = [process for one in parts for process in one.seen]
        left: Sequence[str] = ()
        newest = attempt == max((one.attempt for one in self._list_parts()), default=-1)
        # Where all has ended already, the GPUs are waited for none the less.
        if Belongings(folder, (), self.run_id, known).list_living() or (gpu_wait_s and newest):
            report = stop_attempt(
                folder, (), self.run_id, stop, budget_s, self._gpus.is_free, gpu_wait_s,
                hurry=self._hurry, known=known, gpu_pids=self._gpus.list_pids, brief=brief, at_once=at_once
            )  # fmt: skip
            left = report.survivors
            if report.gpu_free is False and gpu_wait_s:
                self._gpus.tell_not_free(report.gpu_holders)
        for part in parts:
            for looker in part.lookers:
                looker.stop(timeout_s=0.5)
            if part.watcher is not None:
                part.watcher.close()
            part.lookers, part.watcher, part.told = [], None, None
        return [f"{self.name}: {sentence}" for sentence in left]


def _read_rules(message: Message) -> StopRules:
    signals = [(int(number), float(seconds)) for number, seconds in message["signals"]]
    return StopRules(signals, str(message.get("why", "")), message.get("at_once_s"))


def _lives(part: Part) -> bool:
    return away.may_live(part.state)


def _find_attempts(run_id: str, parent: Path) -> set[Path]:
    """Folders below ``parent`` of which a living process of the run says that it is of that attempt, there or not."""
    found = set()
    for process in process_table().values():
        if process.dead or process.state == "D":
            continue
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if f"{RUN_MARKER}={run_id}".encode() in environment:
                marks = [word for word in environment if word.startswith(f"{ATTEMPT_MARKER}=".encode())]
                found |= {Path(os.fsdecode(mark).partition("=")[2]) for mark in marks}
    return {folder for folder in found if folder.parent == parent.absolute() and folder.name.isdecimal()}


def _classify(title: str, comm: str) -> tuple[f.Role, bool] | None:
    """What a vLLM engine calls itself; every other component is told by its own end."""
    return ("inference", True) if title.startswith(ENGINE) or comm.startswith(ENGINE) else None


def main(words: Sequence[str] | None = None) -> int:
    """The agent's own program; ``rl-supervisor node`` makes its command line."""
    parser = argparse.ArgumentParser("supervisor.nodes.agent")
    parser.add_argument("--run", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--head", default="")
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--disk", type=Path, help="where the job writes, on a disk of this machine alone")
    parser.add_argument("--disk-capacity", type=int, help="bytes that may be used there, where that is less")
    options = parser.parse_args(words)
    os.umask(0o027)
    options.state.mkdir(parents=True, exist_ok=True, mode=0o750)
    logs.configure("auto", "info", None, options.run)
    with (options.state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logs.say("error", "lock", f"Another agent is at work in {options.state}: end that one, or give --state.")
            return EXIT_TRY_AGAIN
        return Agent(options).run()


if __name__ == "__main__":
    sys.exit(main())
