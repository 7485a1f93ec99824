"""The head's side: it hears the agents of all machines, keeps what was last heard, and has them launch and stop.

It implements ``supervisor.effects.machines.Machines``. One thread hears and speaks; effects wait for answers in their
own. What is heard goes where the daemon looks for it on one machine: a component's state into its record in the
attempt's folder (``process/away.py``), its output into the log beside it, processes to the core.

**Never two writers.** A machine that is silent may still train. Before a start, nothing that writes may be left on any
machine: the agent says so, or its lease has run out since it was last heard here, which it has to obey.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.base import logs
from supervisor.base.beside import Beside
from supervisor.base.errors import EXIT_POD_UNFIT, ConfigError, PodUnfitError, SupervisorError, TryAgainError
from supervisor.config.nodes import Nodes
from supervisor.core import facts as f
from supervisor.core.codec import decode
from supervisor.core.fencing import may_write
from supervisor.core.machines import to_avoid
from supervisor.core.state import State
from supervisor.jobs.base import Component, StopRules
from supervisor.nodes import wire
from supervisor.nodes.allocation import choose_machines, count_machines, fill_machines
from supervisor.nodes.efforts import Efforts
from supervisor.nodes.wire import Line, Message, WireError, now
from supervisor.process import away
from supervisor.process.attempts import attempt_dir
from supervisor.process.launch import Launched, ShimState

if TYPE_CHECKING:
    from supervisor.nodes.steps import Disks

Post = Callable[[f.Fact, str], None]
HEAD_FILE, IDENTITIES = "head.json", "machines.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
MOST_STRANGERS = 64  # connections that have not proved yet that they know the token
TURN_S = 0.25
ANSWER_S = 2.5  # every third beat is answered: to send costs more than all else that a beat does
TELL_AGAIN_S = 5.0
ALL_HERE_S = 3.0
GATHER_S = 0.05  # what is said in this time is heard in one turn, where nothing is waited for: each turn costs 0.3 ms
MOST_UNFIT = 64
ABSENT_S = 10.0  # a stop waits for a machine until it has been silent for so long
GONE_S = 3.0  # an agent that hung up is usually back by then
LAUNCH_S = 90.0  # for the answer to a launch: a shim may take 30 s, and what is in the way has to be ended
LEASE_MARGIN_S = 5.0
KEPT_WANTED = ("starting", "running", "stopping")
NO_OPINION = ("new", "leaving")
OLD_LOOK_S = 5.0  # what was seen longer ago, while there was no connection, says nothing of now
GENERATIONS = 20  # attempts that are looked through for what may still live


@dataclass(eq=False)
class Peer:
    """One connection."""

    line: Line
    since: float
    nonce: str
    name: str = ""
    heard: float = 0.0
    answered: float = 0.0  # when a beat was last answered, and which attempt was said to be wanted
    wanted: int | None = None


@dataclass
class Machine:
    """What is known of one machine."""

    rank: int
    address: str
    heard: float  # of the newest word
    peer: Peer | None = None
    told_silent: bool = False


@dataclass
class Request:
    """An order to a machine, and its answer once that is there."""

    host: str
    message: Message
    answer: Message | None = None


class Head:
    """All machines of a run, as its daemon has them. ``supervisor.daemon.loop`` loads it by name."""

    def __init__(  # noqa: PLR0917
        self,
        nodes: Nodes,
        run_id: str,
        state_dir: Path,
        environ: Mapping[str, str],
        post: Post,
        state: Callable[[], State],
    ) -> None:
        """Listen. Raises ConfigError where that cannot be."""
        self.nodes, self.run_id, self.state_dir = nodes, run_id, state_dir
        self._post, self._state = post, state
        self._folder = nodes.folder.expanduser().absolute()
        self._machines: dict[str, Machine] = {}
        self._requests: dict[str, Request] = {}
        self._launching: set[str] = set()  # what agents are being told to launch: they may not know of it yet
        self._writers: dict[tuple[int, str], tuple[str, Path]] = {}
        """By attempt and component: the machine that output is kept of, and where."""
        self._changed = threading.Condition()
        self._writing = threading.Lock()  # of records, which the thread that hears writes and effects do
        self._began = now()
        self._ended = False
        self._last_tick = self._flushed = 0.0
        self._job = wire.find_job(environ)
        self._told_address = 0.0
        self._leaving = threading.Lock()  # held while something is written into the shared folder
        self._arrived = 0.0  # the newest machine
        self._identities = self._recall_identities()
        self._waker, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        try:
            self._token = wire.need_token(self._folder, environ)
            host, _, port = nodes.listen.rpartition(":")
            self._listener = socket.create_server((host.strip("[]"), int(port)), backlog=1024)
            self._listener.setblocking(False)
            bound = self._listener.getsockname()
            reach = nodes.address or (socket.gethostname() if host.strip("[]") in ("", "0.0.0.0", "::") else host)  # noqa: S104
            self.address = f"{reach}:{bound[1]}"
            self._head_file = self._folder / HEAD_FILE
        except OSError as error:
            raise ConfigError(f"The agents of [nodes] cannot be listened to: {error}. Mend [nodes].") from error
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._peers: set[Peer] = set()
        self._engines = -1, ""  # the attempt, and why its engines are unknown
        self._efforts = Efforts(lambda look: self._post(look, "effort"))
        self._thread = threading.Thread(target=self._listen, name="nodes", daemon=True)
        self.disks: Disks | None = None
        if nodes.disks == "local":
            from supervisor.nodes.steps import Disks  # of no use where the machines share one

            self.disks = Disks(self, state_dir / "disks")

    def start(self) -> None:
        """Hear the agents from now on."""
        self._thread.start()
        threading.Thread(target=self._keep_address, name="address", daemon=True).start()

    def close(self, code: int | None) -> None:
        """Hang up. ``code``: the daemon ends for good with it, so the agents end, too; None: another one goes on."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            if code is not None:
                for host in self._machines:
                    self._tell(host, {"t": "bye", "why": f"its daemon ends with {code}"})
            self._changed.notify_all()
        if code is not None:
            # For those that do not hear it now; a shared folder that hangs is not waited for.
            Beside(partial(self._leave_word, code)).wait(time.monotonic() + 2.0)
        self._waker.send(b"!")
        self._thread.join(5.0)
        for peer in list(self._peers):
            self._linger(peer)
        self._listener.close()

    def _leave_word(self, code: int) -> None:
        if not self._told_address or self._state().fence.lost:
            return  # another daemon has the run, or had it last
        # Only those that were heard: others are of an allocation before this one.
        unfit = [name for name in to_avoid(self._state()) if (one := self._machines.get(name)) and one.address]
        left = {"ended": code, "run": self.run_id, "job": self._job, "at": round(time.time(), 3)}
        left |= {"unfit": unfit[:MOST_UNFIT]} if code == EXIT_POD_UNFIT else {}
        with self._leaving, contextlib.suppress(OSError, ConfigError):
            if self._head_file.exists() and wire.read_private(self._head_file) != self._own_word():
                return  # another daemon's agents read it by now
            wire.write_private(self._head_file, json.dumps(left) + "\n")

    def _own_word(self) -> str:
        return json.dumps({"address": self.address, "run": self.run_id})

    def _holds_the_run(self) -> bool:
        """Is it this daemon that the agents are to hear? One that waits for the claim tells them nothing."""
        state = self._state()
        return state.mode != "new" and not state.fence.lost and (state.live or may_write(state))

    def _keep_address(self) -> None:
        """Leave the address, and again where another daemon has written over it. In a thread of its own: a shared
        folder that hangs must not keep the agents from being heard."""
        while not self._ended:
            if now() - self._told_address >= TELL_AGAIN_S and self._holds_the_run():
                with self._leaving:
                    self._leave_address()
            time.sleep(TURN_S)

    def _leave_address(self) -> None:
        if self._ended:
            return
        self._told_address = now()
        wanted = self._own_word()
        with contextlib.suppress(OSError, ConfigError):
            if not self._head_file.exists() or wire.read_private(self._head_file) != wanted:
                wire.write_private(self._head_file, f"{wanted}\n")

    @staticmethod
    def _linger(peer: Peer) -> None:
        """What waits is sent, for a moment; then the connection is closed."""
        with contextlib.suppress(OSError, WireError):
            peer.line.socket.settimeout(1.0)
            peer.line.flush()
            peer.line.socket.shutdown(socket.SHUT_WR)
        peer.line.close()

    # ------------------------------------------------------------ what is known of the machines; it waits for no lock

    @property
    def is_ended(self) -> bool:
        """Does the daemon end?"""
        return self._ended

    @property
    def machines_wanted(self) -> int:
        """So many machines the job needs, as far as that is known before a start."""
        return self.nodes.machines_wanted if self.nodes.components else 1

    def list_used(self) -> list[str]:
        """The machines of the present attempt."""
        return self._state().machines_used()

    def list_speaking(self) -> list[str]:
        """Those that are heard."""
        return [name for name in list(self._machines) if self._speaks(name)]

    def rank_of(self, host: str) -> int:
        """Its number, as the engine that gave the machines counts them."""
        machine = self._machines.get(host)
        return machine.rank if machine is not None else 1 << 20

    def is_silent(self, host: str) -> bool:
        """Is it not heard, for longer than an agent needs to come back?"""
        machine = self._machines.get(host)
        if machine is None:
            return now() - self._began > wire.SILENCE_S
        return now() - machine.heard > (wire.SILENCE_S if machine.peer is not None else GONE_S)

    def post(self, fact: f.Fact) -> None:
        """Tell the core."""
        self._post(fact, "nodes")

    def wait(self, limit_s: float) -> None:
        """Until something was heard, or so long."""
        with self._changed:
            self._changed.wait(limit_s)

    # ------------------------------------------------------------ the thread that hears

    def _listen(self) -> None:
        while not self._ended:
            try:
                self._turn()
            except Exception as error:  # the thread's edge: a defect must not make all machines silent for good
                logs.say("error", "machines", f"A defect in the supervisor: {type(error).__name__}: {error}")
                time.sleep(TURN_S)

    def _turn(self) -> None:
        for key, _ in self._selector.select(TURN_S):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wakes:
                with contextlib.suppress(BlockingIOError):
                    self._wakes.recv(4096)
            elif key.data in self._peers:  # not hung up on in this very turn
                self._hear_peer(key.data)
        waits = any(one.answer is None and self._speaks(one.host) for one in list(self._requests.values()))
        if not waits and all(peer.name for peer in self._peers):
            time.sleep(GATHER_S)
        if now() - self._flushed >= TURN_S:
            self._flushed = now()
            for peer in [one for one in self._peers if one.line.unsent]:
                self._hear_or_hang_up(peer, peer.line.flush)
        if now() - self._last_tick >= wire.BEAT_S:
            self._last_tick = now()
            self._tick()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if sum(not one.name for one in self._peers) >= MOST_STRANGERS:
            connection.close()
            return
        peer = Peer(Line(connection), now(), secrets.token_hex(16), heard=now())
        self._peers.add(peer)
        self._selector.register(peer.line, selectors.EVENT_READ, peer)
        self._hear_or_hang_up(peer, lambda: peer.line.put({"v": wire.VERSION, "nonce": peer.nonce}))

    def _hear_or_hang_up(self, peer: Peer, work: Callable[[], None]) -> None:
        """A peer with which something is wrong is hung up on, and nothing else is."""
        try:
            work()
        except WireError as error:
            self._hang_up(peer, str(error))
        except (KeyError, TypeError, ValueError, OSError) as error:
            self._hang_up(peer, f"it says what cannot be: {type(error).__name__}: {error}")

    def _hang_up(self, peer: Peer, why: str) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.line)
        peer.line.close()
        with self._changed:
            machine = self._machines.get(peer.name)
            if machine is not None and machine.peer is peer:
                machine.peer = None
                logs.say("warning", "machine", f"The agent of {peer.name} is gone: {why}.")
            self._changed.notify_all()

    def _hear_peer(self, peer: Peer) -> None:
        def hear() -> None:
            for message in peer.line.take():
                peer.heard = now()
                if peer.name:
                    self._hear(peer, message)
                else:
                    self._greet(peer, message)

        self._hear_or_hang_up(peer, hear)

    def _tick(self) -> None:
        for peer in list(self._peers):
            if now() - peer.heard > wire.SILENCE_S or (not peer.name and now() - peer.since > wire.GREETING_S):
                self._hang_up(peer, f"nothing was heard of it for {now() - peer.heard:.0f} s")
        silent = {}
        with self._changed:
            for name in self.list_used():
                self._machines.setdefault(name, Machine(1 << 20, "", self._began))
            for name, machine in self._machines.items():
                if not machine.told_silent and self.is_silent(name):
                    machine.told_silent = True
                    silent[name] = now() - machine.heard
        for name, silent_s in silent.items():
            self.post(f.MachineLook(name, silent_s))
        state = self._state()
        attempt, used = state.attempt.number, state.machines_used() if state.live else []
        self._efforts.tick(attempt, used, self._why_engines_are_unknown(attempt) if used else "")
        if self.disks is not None:
            self.disks.tick()

    def _why_engines_are_unknown(self, attempt: int) -> str:
        """An engine that nothing asks may work while all that is seen stands still; a lone one the daemon asks."""
        if self._engines[0] != attempt:
            places = [state.place for number, _, state in self._records() if number == attempt]
            engines = [
                one for one in places if one is not None and one.role == "inference" and one.gpus not in ((), [])
            ]
            unasked = [one.host for one in engines if one.port is None] if len(engines) > 1 else []
            why = f"the engine on {unasked[0]} has no port that is asked" if unasked else ""
            self._engines = attempt, why
        return self._engines[1]

    def _attempt_wanted(self) -> int | None:
        """The attempt of which something may live; None: the daemon does not know yet."""
        state = self._state()
        if state.mode in NO_OPINION or not self._holds_the_run():
            return None
        return state.attempt.number if state.mode in KEPT_WANTED else 0

    # ------------------------------------------------------------ what is heard

    def _greet(self, peer: Peer, message: Message) -> None:
        name, nonce = str(message.get("name")), str(message.get("nonce"))
        said = (str(message.get("run")), name, peer.nonce, nonce)
        if not wire.is_proof(message.get("proof"), wire.prove(self._token, "agent", *said)):
            raise WireError("it does not know the run's token")
        if message.get("run") != self.run_id or message.get("v") != wire.VERSION or not NAME.fullmatch(name):
            why = f"the head is of run {self.run_id}, and speaks version {wire.VERSION}"
            peer.line.put({"error": why})
            raise WireError(f"it is of run {message.get('run')} and speaks version {message.get('v')}")
        peer.line.longest = wire.LONGEST_LINE
        with self._changed:
            known = self._machines.get(name)
            older = known.peer if known is not None else None
        if why := self._why_not(name, message, older):
            peer.line.put({"error": why})
            raise WireError(why)
        if older is not None:
            self._hang_up(older, "it has connected anew")
        welcome: Message = {"proof": wire.prove(self._token, "head", *said), "lease_s": self.nodes.lease}
        welcome |= {"wanted": self._attempt_wanted(), "logs": self._log_sizes(name)}
        welcome |= {"hang_s": self._state().settings.hang}
        welcome |= {"known": self._known_processes(name)}
        peer.line.put(welcome)
        with self._changed:
            peer.name = name
            self._arrived = now() if known is None else self._arrived
            self._machines[name] = Machine(int(message.get("rank", 0)), str(message.get("address")), now(), peer)
            for request in self._requests.values():
                if request.host == name and request.answer is None:
                    self._tell(name, request.message)
            self._changed.notify_all()
        logs.say("info", "machine", f"The agent of {name} is there.")
        self.post(f.MachineLook(name, seat=str(message.get("seat", ""))))

    def _why_not(self, name: str, message: Message, older: Peer | None) -> str:
        """Why this agent is not heard; "" where it is. Two machines of one name would hide each other."""
        job, identity = str(message.get("job", "")), str(message.get("identity", ""))
        if self._job and job and job != self._job:
            return f"{name} is of job {job}, and the head of job {self._job}"
        if self._identities.get(name, identity) != identity:
            if older is not None:
                return f"another machine is called {name}, and is heard: give each a --name of its own"
            if any(away.may_live(state) and state.place and state.place.writes for *_, state in self._records(name)):
                return f"another machine was called {name}, and may still write: its lease is waited for"
        if self._identities.get(name) != identity:
            self._identities[name] = identity
            with contextlib.suppress(OSError):
                wire.write_private(self.state_dir / IDENTITIES, json.dumps(self._identities))
        return ""

    def _recall_identities(self) -> dict[str, str]:
        with contextlib.suppress(OSError, ValueError, ConfigError):
            return {
                str(name): str(one) for name, one in json.loads(wire.read_private(self.state_dir / IDENTITIES)).items()
            }
        return {}

    def _records(self, name: str | None = None) -> list[tuple[int, str, ShimState]]:
        """Components of the newest attempts, on machine ``name`` (None: on any), with what was last heard of each."""
        found = []
        for folder in sorted(self.state_dir.glob("attempts/[0-9]*"))[-GENERATIONS:]:
            for component in away.component_names(folder):
                state = away.look_at_component(folder, component)
                if state is not None and state.place is not None and name in (None, state.place.host):
                    found.append((int(folder.name), component, state))
        return found

    def _log_sizes(self, name: str) -> dict[str, int]:
        found = {}
        for attempt, component, _ in self._records(name):
            with contextlib.suppress(OSError):
                path = attempt_dir(self.state_dir, attempt) / f"{component}.log"
                found[f"{attempt}/{component}"] = path.stat().st_size
        return found

    def _known_processes(self, name: str) -> dict[str, list[Message]]:
        """What the core knows of the machine's processes, so that an agent that was away tells of those that ended."""
        state = self._state()
        found: dict[str, list[Message]] = {}
        for one in state.job.processes.values():
            if one.host == name:
                part = f"{one.role}-{one.index}"
                message = {"t": "seen", "attempt": state.attempt.number, "name": part, "role": one.role}
                message |= {"index": one.index, "pid": one.pid, "ticks": one.start_ticks, "title": one.title}
                found.setdefault(f"{state.attempt.number}/{part}", []).append({**message, "key": one.key})
        return found

    def _hear(self, peer: Peer, message: Message) -> None:
        with self._changed:
            machine = self._machines[peer.name]
            machine.heard = peer.heard
        if machine.told_silent:
            machine.told_silent = False
            self.post(f.MachineLook(peer.name))
        age_s = float(message.get("age", 0.0))
        match message.get("t"):
            case "beat":
                wanted = self._attempt_wanted()
                if now() - peer.answered >= min(ANSWER_S, self.nodes.lease / 10) or peer.wanted != wanted:
                    peer.answered, peer.wanted = now(), wanted
                    peer.line.put({"t": "beat", "n": int(message["n"]), "wanted": wanted})
            case "part":
                self._hear_part(peer.name, message)
            case "report":
                self._hear_report(peer.name, message)
            case "log":
                self._keep_output(peer.name, message)
            case "seen" | "gone":
                self._hear_process(peer.name, message)
            case "gpu":
                gpu, text = str(message["gpu"])[:40], str(message["text"])[:200]
                self._post(f.GpuFault(gpu, int(message["xid"]), text, peer.name, age_s), "gpu")
            case "remark":
                self.post(f.Remark("warning", f"{peer.name}: {str(message['text'])[:500]}", "warning"))
            case "gpus" if age_s <= OLD_LOOK_S:
                look = decode(message["look"])
                gpus = tuple(replace(gpu, host=peer.name) for gpu in look.gpus)
                self._post(replace(look, gpus=gpus, host=peer.name), "gpu")
            case "host":
                self._post(replace(decode(message["look"]), host=peer.name, age_s=age_s), "host")
            case "effort":
                self._efforts.hear(peer.name, int(message["attempt"]), decode(message["look"]), age_s)
            case "engine" if age_s <= OLD_LOOK_S:
                state, look = self._state(), decode(message["look"])
                if state.live and int(message["attempt"]) == state.attempt.number:
                    self._post(replace(look, host=peer.name, index=int(message["index"])), "engine")
            case "disk" | "content" if self.disks is not None:
                self.disks.hear(peer.name, message)
            case "done":
                with self._changed:
                    request = self._requests.get(str(message.get("id")))
                    if request is not None and request.host == peer.name:
                        request.answer = message
                        self._changed.notify_all()

    def _place_of(self, host: str, message: Message) -> tuple[Path, str, ShimState] | None:
        """Where the component of a message is kept; None for one that was never to be on that machine."""
        folder, name = attempt_dir(self.state_dir, int(message["attempt"])), str(message["name"])
        if "/" in name:
            return None
        known = away.look_at_component(folder, name)
        if known is None or known.place is None or known.place.host != host:
            return None
        return folder, name, known

    def _hear_part(self, host: str, message: Message) -> None:
        found = self._place_of(host, message)
        if found is None:
            return
        folder, name, known = found
        state = replace(away.of_message(message["state"]), place=known.place, how=away.HOW)
        if state.state == "absent":
            return  # its launch is under way, or its records were tidied away
        if state.state in ("exited", "lost"):
            # In this machine's time: when it was heard less its age.
            state = replace(state, ended_wall=time.time() - max(0.0, float(message.get("age", 0.0))))
        self._keep_state(folder, name, state)

    def _hear_report(self, host: str, message: Message) -> None:
        """What the agent has records of: nothing else of ours is on its machine, but what it is just told to launch."""
        records = list(self._records(host))  # first: what is launched later is among ``_launching`` by then
        there = {*map(str, message["parts"]), *self._launching}
        for attempt, name, state in records:
            if away.may_live(state) and f"{attempt}/{name}" not in there:
                self._keep_lost(attempt, name, state, f"{host} knows nothing of it")

    def _keep_lost(self, attempt: int, name: str, state: ShimState, why: str) -> None:
        ended = ShimState("lost", place=state.place, reason=why, how=away.HOW, ended_wall=time.time())
        self._keep_state(attempt_dir(self.state_dir, attempt), name, ended)

    def _keep_ended(self, host: str, upto: int) -> None:
        """The agent has said that nothing of these attempts is left on its machine."""
        for attempt, name, state in self._records(host):
            if attempt <= upto and away.may_live(state):
                self._keep_lost(attempt, name, state, "it was ended with the rest")

    def _keep_state(self, folder: Path, name: str, state: ShimState) -> None:
        with self._writing:
            known = away.look_at_component(folder, name)
            if known is not None and not away.may_live(known):
                return  # nothing that has ended lives again
            if known != state:
                away.write_record(folder, name, state)
        with self._changed:
            self._changed.notify_all()

    def _keep_output(self, host: str, message: Message) -> None:
        part = int(message["attempt"]), str(message["name"])
        writer = self._writers.get(part)
        if writer is None or writer[0] != host:  # each line of a log comes this way: where a component is stays
            if self._place_of(host, message) is None:
                return
            writer = host, attempt_dir(self.state_dir, part[0]) / f"{part[1]}.log"
            self._writers = {one: at for one, at in self._writers.items() if one[0] >= part[0]} | {part: writer}
        data, at = str(message["data"]).encode("latin-1"), int(message["at"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):  # a full disk costs output, not the run
            fd = os.open(writer[1], flags, 0o640)
            try:
                os.pwrite(fd, data, at)
            finally:
                os.close(fd)

    def _hear_process(self, host: str, message: Message) -> None:
        role: f.Role = message["role"]
        attempt, pid, ticks, index = (int(message[key]) for key in ("attempt", "pid", "ticks", "index"))
        key = bool(message["key"])
        if message["t"] == "seen":
            fact: f.Fact = f.ProcessSeen(attempt, role, pid, ticks, str(message["title"])[:200], key, host, index)
        else:
            fact = f.ProcessGone(attempt, role, pid, ticks, key, host, index, float(message.get("age", 0.0)))
        self._post(fact, "processes")

    # ------------------------------------------------------------ orders

    def _tell(self, host: str, message: Message) -> None:
        """From any thread, with the lock held; who cannot be told is hung up on by the thread that hears."""
        machine = self._machines.get(host)
        if machine is not None and machine.peer is not None:
            with contextlib.suppress(WireError):
                machine.peer.line.put(message)

    def ask(self, host: str, message: Message) -> Request:
        """Send an order to a machine; now, and again with each new connection until it is answered."""
        number = secrets.token_hex(8)
        request = Request(host, {"t": "do", "id": number, **message})
        with self._changed:
            self._requests[number] = request
            self._tell(host, request.message)
        self._waker.send(b"!")
        return request

    def withdraw(self, requests: Sequence[Request]) -> None:
        """No answer to these is waited for any more."""
        with self._changed:
            for request in requests:
                self._requests.pop(str(request.message["id"]), None)

    def await_answers(self, requests: Sequence[Request], is_over: Callable[[Sequence[Request]], bool]) -> None:
        """Wait until all have one, or ``is_over`` of those that have none. From then on none is waited for."""
        try:
            with self._changed:
                while (late := [one for one in requests if one.answer is None]) and not is_over(late):
                    self._changed.wait(0.25)
        finally:
            self.withdraw(requests)

    def _speaks(self, host: str) -> bool:
        machine = self._machines.get(host)
        return machine is not None and machine.peer is not None and now() - machine.heard <= wire.SILENCE_S

    def _is_fit(self, host: str) -> bool:
        return self._speaks(host) and (self.disks is None or self.disks.is_there(host))

    def choose(
        self, components: Sequence[Component], avoid: Sequence[str], unwanted: threading.Event
    ) -> tuple[list[Component], list[str]]:
        """The machines of the next start; see ``Machines``."""
        chosen = self._choose(count_machines(components), avoid, unwanted)
        if self.disks is not None:
            self.disks.prepare([name for name, _ in chosen])
        return [fill_machines(component, chosen) for component in components], [name for name, _ in chosen]

    def _choose(self, wanted: int, avoid: Sequence[str], unwanted: threading.Event) -> list[tuple[str, str]]:
        until, told = now() + self.nodes.wait, ""
        while True:
            with self._changed:
                there = {name: one for name, one in self._machines.items() if self._is_fit(name)}
                enough = len(there) >= wanted
                # They come within a second of each other, and which is which goes by their numbers.
                if enough and (now() - self._arrived >= ALL_HERE_S or now() >= until):
                    if told:
                        self.post(f.StartWaits(""))
                    best = choose_machines({name: one.rank for name, one in there.items()}, avoid, wanted)
                    return _reach([(name, there[name].address) for name in best])
                self._check_wanted(unwanted)
                if now() >= until:
                    names = ", ".join(sorted(there)) or "none"
                    sentence = f"Of the {wanted} machines that the job needs these are there: {names}."
                    raise PodUnfitError(f"{sentence} It takes another allocation.")
                self._changed.wait(0.25)
            sentence = f"The start waits for machines: {len(there)} of {wanted} are there."
            if not enough and sentence != told:
                told = sentence
                self.post(f.StartWaits(sentence))

    def _check_wanted(self, unwanted: threading.Event) -> None:
        if unwanted.is_set() or self._ended:
            raise TryAgainError("The start is no longer wanted.")

    def launch(
        self, components: Sequence[Component], folder: Path, rules: StopRules, unwanted: threading.Event
    ) -> list[Launched]:
        """Launch all; see ``Machines``."""
        attempt = int(folder.name)
        self.settle(attempt, rules, unwanted)  # again: a machine may have come back while the start was made ready
        self._launching = {f"{attempt}/{component.name}" for component in components}
        try:
            return self._order_launches(components, folder, rules, unwanted)
        finally:
            self._launching = set()

    def _order_launches(
        self, components: Sequence[Component], folder: Path, rules: StopRules, unwanted: threading.Event
    ) -> list[Launched]:
        requests = []
        for component in components:
            place = component.place
            if place is None:
                raise ConfigError(f"{component.name} has no machine.")
            with self._writing:
                away.write_record(folder, component.name, ShimState("running", place=place), durable=True)
            # What is there from the start is followed from the start; a file that appears later is looked for later.
            (folder / f"{component.name}.log").touch(mode=0o640)
            told: Message = {"name": component.name, "argv": list(component.argv), "cwd": str(component.cwd)}
            told |= {"env": dict(component.env), "nofile": component.nofile, "ports": list(component.ports)}
            order = {"do": "launch", "attempt": int(folder.name), "component": told, "rules": asdict(rules)}
            sees = {"gpus": place.gpus, "port": place.port}  # apart: an agent of before does not know them
            order |= {"place": {name: value for name, value in vars(place).items() if name not in sees}, "sees": sees}
            requests.append(self.ask(place.host, order))
        until = now() + LAUNCH_S

        def is_over(late: Sequence[Request]) -> bool:
            self._check_wanted(unwanted)
            if now() > until:
                hosts = sorted({one.host for one in late})
                raise TryAgainError(f"{', '.join(hosts)} did not answer within {LAUNCH_S:.0f} s.")
            return any(one.answer is not None and "error" in one.answer for one in requests)

        self.await_answers(requests, is_over)
        found = []
        for component, request in zip(components, requests, strict=True):
            answer, place = request.answer or {}, component.place
            if "error" in answer:
                self._keep_state(folder, component.name, ShimState("exited", place=place, reason=str(answer["error"])))
                raise _error_of(request.host, answer)
            if "state" not in answer:
                continue
            state = replace(away.of_message(answer["state"]), place=place, how=away.HOW)
            self._keep_state(folder, component.name, state)
            notes = tuple(f"on {request.host}: {note}" for note in answer.get("notes", ()))
            found.append(Launched(state.shim_pid or 0, state.pid or 0, state.start_ticks or 0, "fork", None, notes))
        return found

    def settle(self, attempt: int, rules: StopRules, unwanted: threading.Event) -> None:
        """Wait until nothing of an earlier attempt can write; see ``Machines``."""
        told = ""
        asked: dict[str, Request] = {}
        try:
            while True:
                for host, request in list(asked.items()):
                    if (answer := request.answer) is not None:
                        if answer.get("error"):
                            raise _error_of(host, answer)
                        if left := answer.get("survivors"):
                            told_left = f"Something of an earlier attempt cannot be ended: {'; '.join(left)}"
                            raise _error_of(host, {"error": told_left, "kind": "unfit"})
                        self._keep_ended(host, attempt - 1)
                        del asked[host]
                silent, living = self._list_writers(attempt)
                if told and not silent:
                    told = ""
                    self.post(f.StartWaits(""))
                if not silent and not living:
                    return
                for host in living - asked.keys():
                    order = {"do": "stop", "upto": attempt - 1, "rules": asdict(rules), "brief": False}
                    asked[host] = self.ask(host, {**order, "at_once": False, "budget_s": 60.0, "gpu_wait_s": 0.0})
                if silent and told != (names := ", ".join(sorted(silent))):
                    told = names
                    sentence = (
                        f"{names} ran what writes and is not heard: the start waits until it answers, or until its own "
                        f"agent has ended that, {self.nodes.lease:.0f} s after it last heard of this daemon."
                    )
                    self.post(f.StartWaits(sentence))
                self._check_wanted(unwanted)
                with self._changed:
                    self._changed.wait(0.25)
        finally:
            self.withdraw(list(asked.values()))

    def _list_writers(self, attempt: int) -> tuple[set[str], set[str]]:
        """Machines on which something of an earlier attempt may write: those that are silent, and those that answer."""
        silent, living = set[str](), set[str]()
        for number, component, state in self._records():
            if number >= attempt or state.place is None or not away.may_live(state):
                continue
            host = state.place.host
            if self._speaks(host):
                living.add(host)
            elif state.place.writes:
                machine = self._machines.get(host)
                heard = machine.heard if machine is not None and machine.address else self._began
                until = heard + self.nodes.lease * 1.05 + LEASE_MARGIN_S
                if until > now():
                    silent.add(host)
                else:
                    why = f"{host} was not heard for so long that its agent has ended it"
                    self._keep_lost(number, component, state, why)
        return silent, living

    def stop(
        self,
        attempt: int,
        rules: StopRules,
        budget_s: float,
        gpu_wait_s: float,
        hurry: threading.Event,
        *,
        brief: bool,
        at_once: bool,
    ) -> f.AttemptStopped:
        """End everything up to this attempt; see ``Machines``."""
        begun = now()
        hosts = {
            state.place.host for _, _, state in self._records() if state.place is not None and away.may_live(state)
        }
        hosts |= {*self.list_speaking()}
        order: Message = {"do": "stop", "upto": attempt, "rules": asdict(rules), "budget_s": budget_s}
        order |= {"gpu_wait_s": gpu_wait_s, "brief": brief, "at_once": at_once}
        requests = [self.ask(host, order) for host in sorted(hosts)]
        hurried = False

        def is_over(late: Sequence[Request]) -> bool:
            nonlocal hurried
            if hurry.is_set() and not hurried:
                hurried = True
                for one in late:
                    self._tell(one.host, {"t": "hurry"})
            heard = [self._machines[one.host].heard for one in late if one.host in self._machines]
            silent_s = now() - max(heard, default=self._began)
            return silent_s > (GONE_S if brief else ABSENT_S) or now() - begun > budget_s + gpu_wait_s + 120.0

        self.await_answers(requests, is_over)
        survivors: list[str] = []
        absent: list[str] = []
        for request in requests:
            if request.answer is None:
                absent.append(request.host)
            elif "error" in request.answer:
                survivors.append(f"{request.host} could not stop it: {request.answer['error']}")
            elif left_there := request.answer.get("survivors"):
                survivors += map(str, left_there)
            else:
                self._keep_ended(request.host, attempt)
        if absent:
            sentence = (
                f"{', '.join(absent)} does not answer: what runs there is ended when it is heard again, or by its own "
                f"agent {self.nodes.lease:.0f} s after it last heard of this daemon."
            )
            self.post(f.Remark("machines", sentence, "warning"))
        return f.AttemptStopped(attempt, now() - begun, tuple(survivors), unheard=tuple(absent))

    def keep_evidence(self, asked: Message, limit_s: float) -> list[str]:
        """What each machine of the attempt that answers kept of it; see ``Machines``."""
        until = now() + limit_s
        order: Message = {"do": "evidence", "asked": asked, "limit_s": max(0.5, limit_s - 1.0)}
        requests = [self.ask(host, order) for host in self.list_used() if self._speaks(host)]
        self.await_answers(requests, lambda late: now() >= until or self._ended)
        answers = [(one.host, one.answer or {"error": "it was not ready in time"}) for one in requests]
        return [f"{host}: {answer.get('ok') or answer.get('error')}" for host, answer in answers]


def _error_of(host: str, answer: Message) -> SupervisorError:
    """What one machine answered to an order."""
    kinds: dict[str, type[SupervisorError]] = {"config": ConfigError, "unfit": PodUnfitError}
    error = kinds.get(str(answer.get("kind")), TryAgainError)(f"{host}: {answer['error']}")
    error.host = host
    return error


def read_unfit(folder: Path, run_id: str, job: str) -> list[str]:
    """The machines that made the head of this job of Slurm give it back (94); [] where it did not say."""
    with contextlib.suppress(OSError, ValueError, ConfigError):
        found = json.loads(wire.read_private(folder / HEAD_FILE))
        ours = isinstance(found, dict) and (found.get("run"), found.get("job")) == (run_id, job)
        if ours and found.get("ended") == EXIT_POD_UNFIT:
            return [str(name) for name in found.get("unfit", ()) if NAME.fullmatch(str(name))]
    return []


def _reach(machines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The head's own agent may have come by the loopback address, which the others cannot use: it has its name."""
    local = [address for _, address in machines if address.startswith("127.") or address == "::1"]
    if len(local) == len(machines):
        return list(machines)
    return [(name, name if address in local else address) for name, address in machines]
