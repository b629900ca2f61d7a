"""The leader balancer: keeps leaderships evenly spread over the nodes that are to lead (`repl.controller.leader_goal`),
by a few coordinated hand-overs at a time.

    resting -> waiting    leaderships are uneven, no election is under way, no node is leaving
    waiting -> resting    they are even, or a node comes, goes or is elected: the delay starts again
    waiting -> running    the state has lasted for `delay_ms`; or an operator asked
    running -> running    a batch has ended: the plan is made again, and at most `moves` hand-overs are requested
    running -> resting    nothing can be more even; something else happens to the cluster; too much has failed

A node that gave way as a leader (`repl.isr.give_way`) is given no leadership for a while, which grows each time.

Only the controller balances, and nothing of it is durable: the next controller starts from the records, which also show
whether a hand-over has happened. `repl.controller.leader_balance_plan` plans, `repl.runtime.handover` hands over,
`repl.controller.leader_balance_api` serves operators (docs/protocol.md I-BAL-SAFE, I-BAL-QUIET, H46).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import structlog

from isthmus.repl.controller.leader_balance_plan import (
    LeaderAssignment,
    LeaderMove,
    by_type,
    imbalance,
    loads,
    plan,
    seats,
)
from isthmus.repl.controller.leader_goal import LeaderGoal
from isthmus.repl.controller.log_positions import RequestLinks
from isthmus.repl.controller.node_loads import NodeLoads
from isthmus.repl.isr.give_way import gave_way
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown
from isthmus.repl.model.record import PartitionRecord, PartitionStatus, Registration
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.runtime.handover import METHOD as HAND_OVER
from isthmus.repl.runtime.handover import encode
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

Records = Mapping[int, PartitionRecord]
Registrations = Mapping[str, Registration]

REQUEST_MS: Final = 2_000
"""How long a leader's node may take to begin a hand-over; without an answer the record shows the outcome."""

CONFIRM_MS: Final = 5_000
"""How long after the drain's own time-out the record may take to show the new leader: an election with an fsync."""

FAILED_MAX: Final = 10
"""Failed moves after which a run ends: hand-overs do not work now, and each try delays writers."""

AGAIN_MIN_MS: Final = 1_000
"""Least pause before a failed move is planned again, even if the cool-down is 0."""

AGAIN_DOUBLINGS: Final = 5
"""The pause doubles with each failure of the same move, this many times: from 10 s to some 5 minutes."""

REST_MIN_MS: Final = 60_000
"""How long a node that gave way is given no leadership: as long as a leader without any contact takes to give way."""

REST_MAX_MS: Final = 1_800_000
"""Longest such rest. It doubles each time that the node gives way again within twice its last rest."""

KEPT_MOVES: Final = 4_096
"""Moves of a run that are kept for display, more than most clusters have partitions; the oldest are dropped."""

IDLE_MS: Final = 60_000
"""Returned if nothing is timed; the controller reads far more often by itself."""

BALANCED: Final = "balanced"
"""The outcome of a run after which nothing can be more even."""

BY_ITSELF: Final = "cluster"
"""The author of a run that no operator started."""


class BalanceOptions(NamedTuple):
    """`automatic`: without an operator. `by_load`: on as few nodes as carry the load, else always on all. The others
    are the settings of [replication] that begin with `balance_`, and `handover_timeout`."""

    automatic: bool = True
    by_load: bool = False
    delay_ms: int = 3_000
    moves: int = 4
    cool_down_ms: int = 10_000
    timeout_ms: int = 5_000


@dataclass(slots=True)
class InFlightMove:
    """A move under way: the epoch at its begin, and its deadline."""

    move: LeaderMove
    epoch: int
    until_ms: int
    error: str = ""
    """Why the leader refused; nothing was begun."""


@dataclass(slots=True)
class BalanceRun:
    """The moves since `by` began; `outcome` is empty while the run goes on."""

    number: int
    by: str
    outcome: str = ""
    done: int = 0
    failed: int = 0
    ended: deque[tuple[LeaderMove, str]] = field(default_factory=lambda: deque(maxlen=KEPT_MOVES))
    """Moves that ended, with why they failed ("" for those that did not)."""


class HandoverHandler(Protocol):
    """Answers hand-over requests (`repl.runtime.handover.LeadershipTransfer`)."""

    async def answer(self, node: str, body: bytes) -> bytes:
        """Begin to hand over as `body` asks, for `node`. Raises IsthmusError when nothing was begun."""


class LeaderBalancer:
    """The balancer's state on the deciding controller. Belongs to the event loop."""

    def __init__(
        self,
        *,
        node: str,
        links: RequestLinks,
        own: HandoverHandler,
        options: BalanceOptions,
        wake: Callable[[], None],
    ) -> None:
        """`own` answers hand-over requests to this node itself; `wake` lets the controller look soon."""
        self.options = options
        self._node = node
        self._links = links
        self._own = own
        self._wake = wake
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._loads = NodeLoads(node, links, wake)
        self._numbers = 0
        self._moved = {"done": 0, "failed": 0}
        self._forget()

    def _forget(self) -> None:
        self._records: Records = {}
        self._registrations: Registrations = {}
        self._drained: frozenset[str] = frozenset()
        """Nodes that must not lead."""
        self._epochs: dict[int, tuple[int, int | None]] | None = None
        """Partition -> (epoch, when it was first seen; None for epochs from before this controller)."""
        self._refused: dict[tuple[int, str], tuple[int, int]] = {}
        """(partition, target) -> (until when it is not tried again, how often it failed in a row)."""
        self._rests: dict[str, tuple[int, int]] = {}
        """Node that gave way -> (until when it is given no leadership, how long this rest is)."""
        self._moving: dict[int, InFlightMove] = {}
        self._members: frozenset[tuple[str, int]] = frozenset()
        self._uneven_since_ms: int | None = None
        self._active = False
        self._goal = LeaderGoal()
        self._loads.forget()
        self.run: BalanceRun | None = None
        """The newest run of this controller."""
        self.reason = ""
        """Why nothing is moved now; "" while something is, or nothing has to be."""

    # -- as the controller looks ------------------------------------------------------------------------------

    def rest(self) -> None:
        """Drop the state: this node is not the controller any more."""
        if self._active:
            self._forget()

    def look(
        self,
        records: Records,
        registrations: Registrations,
        now_ms: int,
        *,
        busy: bool,
        drained: Collection[str] = (),
    ) -> int:
        """One look at what was just read; begins what is due, unless the controller is `busy` writing decisions of its
        own. Nodes that are `drained` are to lead nothing. Returns the milliseconds until the next look is due."""
        self._active, self._drained = True, frozenset(drained)
        self._records, self._registrations = records, registrations
        self._note_epochs(now_ms)
        self._note_rests(now_ms)
        self._end_moves(now_ms)
        loads_ms = self._look_at_loads(now_ms)
        members = frozenset((each.node, each.session_id) for each in registrations.values())
        if members != self._members:
            self._members, self._uneven_since_ms = members, None
        if self._moving:
            return min(max(1, each.until_ms - now_ms) for each in self._moving.values())
        if busy:
            return loads_ms
        obstacle = self._obstacle()
        if obstacle:
            self.reason, self._uneven_since_ms = obstacle, None
            self._end_run(f"interrupted: {obstacle}")
            return loads_ms
        return min(loads_ms, self._advance(now_ms))

    def _look_at_loads(self, now_ms: int) -> int:
        """Decide on how many nodes leaders stand; returns the milliseconds until the loads are asked for again."""
        if not (self.options.by_load and self.options.automatic):
            return IDLE_MS
        live = self._registrations.keys() - self._drained
        until_ms = self._loads.look(live, now_ms)
        leaders = {record.leader.node for record in self._records.values() if record.leader is not None}
        before = self._goal.count
        self._goal.look(self._loads.known(live, now_ms), () if self._obstacle() else leaders, now_ms)
        if self._goal.count != before:
            log.info("balancing.goal", nodes=self._goal.count or len(live), reason=self._goal.reason)
        resting = {(partition, node) for node in self._resting(now_ms) for partition in self._records}
        racks = {node: each.rack for node, each in self._registrations.items()}
        self._goal.choose(seats(self._records, self._registrations, resting, self._drained), racks)
        return until_ms

    def _advance(self, now_ms: int) -> int:
        """Nothing is under way or in the way: end, wait, or ask for the next moves."""
        cooling = self._cooling(now_ms)
        moves = self._plan(now_ms, cooling)
        self.reason = ""
        if not moves:
            self._uneven_since_ms = None
            wanted = self._wanted(now_ms) if self._refused or self._rests else moves
            resting = self._resting(now_ms)
            if named := sorted({move.target for move in wanted} & resting.keys()):
                self.reason = "; ".join(
                    f"{node} gave way as a leader, and is given none for another {(resting[node] - now_ms) // 1000} s"
                    for node in named
                )
            elif wanted:
                self.reason = "what is left to move was refused, and is asked for again later"
            self._end_run(f"as even as it can be now: {self.reason}" if self.reason else BALANCED)
            return self._next_refusal_ms(now_ms)
        if self._uneven_since_ms is None:
            self._uneven_since_ms = now_ms
        running = self._running
        if running is not None and running.failed >= FAILED_MAX:
            self._end_run(f"given up: {running.failed} moves failed")
            self._uneven_since_ms = now_ms
            running = None
        asked = running is not None and running.by != BY_ITSELF
        if running is None:
            if not self.options.automatic:
                self.reason = "replication.balance is off: `isthmus leader balance` moves leaderships"
                return IDLE_MS
            if self.options.by_load and not self._goal.decided:
                self.reason = "waits until the loads of all nodes are known"
                return IDLE_MS
            wait_ms = self._uneven_since_ms + self.options.delay_ms - now_ms
            if wait_ms > 0:
                self.reason = f"waits until leaderships have been uneven for {self.options.delay_ms} ms"
                return wait_ms
        movable = [move for move in moves if asked or move.partition not in cooling]
        if not movable:
            self.reason = "the partitions to move got their leaders just now"
            self._end_run("balanced as far as may be now: the rest got new leaders just now")
            return max(1, min(cooling[move.partition] for move in moves) - now_ms)
        if running is None:
            self._begin(BY_ITSELF)
        for move in movable[: self.options.moves]:
            self._ask_for(move, now_ms)
        return self.options.timeout_ms

    @property
    def _running(self) -> BalanceRun | None:
        return self.run if self.run is not None and not self.run.outcome else None

    def _begin(self, by: str) -> None:
        self._numbers += 1
        self.run = BalanceRun(self._numbers, by)
        log.info("balancing.began", by=by, imbalance=imbalance(loads(self._seats())))

    def _end_run(self, outcome: str) -> None:
        run = self._running
        if run is not None:
            run.outcome = outcome
            log.info("balancing.ended", outcome=outcome, done=run.done, failed=run.failed)

    def _note_epochs(self, now_ms: int) -> None:
        known = self._epochs
        self._epochs = {
            partition: (record.epoch, None)
            if known is None
            else known[partition]
            if known.get(partition, (-1, None))[0] == record.epoch
            else (record.epoch, now_ms)
            for partition, record in self._records.items()
        }
        for partition, target in [key for key in self._refused if key[0] not in self._records]:
            del self._refused[partition, target]

    def _note_rests(self, now_ms: int) -> None:
        """Let nodes rest whose give-way is among the records that are being decided upon; forget rests long over."""
        for node in sorted({node for record in self._records.values() if (node := gave_way(record)) is not None}):
            until_ms, length_ms = self._rests.get(node, (0, 0))
            if now_ms < until_ms:
                continue  # it gives way with several partitions
            length_ms = min(REST_MAX_MS, max(REST_MIN_MS, 2 * length_ms))
            self._rests[node] = now_ms + length_ms, length_ms
            log.warning("balancing.node_rests", peer=node, seconds=length_ms // 1000, reason="it gave way as a leader")
        self._rests = {node: rest for node, rest in self._rests.items() if now_ms < rest[0] + 2 * rest[1]}

    def _resting(self, now_ms: int) -> dict[str, int]:
        """Node -> until when it is given no leadership."""
        return {node: until_ms for node, (until_ms, _) in self._rests.items() if now_ms < until_ms}

    def _cooling(self, now_ms: int) -> dict[int, int]:
        """Partition -> until when it is not moved."""
        cool_down_ms = self.options.cool_down_ms
        return {
            partition: since_ms + cool_down_ms
            for partition, (_, since_ms) in (self._epochs or {}).items()
            if since_ms is not None and now_ms < since_ms + cool_down_ms
        }

    def _obstacle(self) -> str:
        """The state that must end before a leadership may be moved; "" for none."""
        for partition, record in sorted(self._records.items()):
            if record.status in (PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND):
                return f"partition {partition} is being elected"
        leaving = sorted(each.node for each in self._registrations.values() if not each.active)
        return f"node {leaving[0]} is leaving" if leaving else ""

    def _seats(self, refused: Collection[tuple[int, str]] = ()) -> dict[int, LeaderAssignment]:
        return self._goal.restricted(seats(self._records, self._registrations, refused, self._drained))

    def _loads_by_type(self) -> dict[str, Counter[str]]:
        return {name: loads(found) for name, found in by_type(self._seats()).items()}

    def _plan(self, now_ms: int, cooling: Mapping[int, int]) -> list[LeaderMove]:
        refused = {key for key, (until_ms, _) in self._refused.items() if now_ms < until_ms}
        refused |= {(partition, node) for node in self._resting(now_ms) for partition in self._records}
        return plan(self._seats(refused), cooling.keys())

    def _wanted(self, now_ms: int) -> list[LeaderMove]:
        """The plan without regard to refused moves."""
        return plan(self._seats(), self._cooling(now_ms).keys())

    def _next_refusal_ms(self, now_ms: int) -> int:
        """When a move that is left out of the plan may be in it again."""
        ends_ms = [until_ms for until_ms, _ in self._refused.values() if now_ms < until_ms]
        return min((until_ms - now_ms for until_ms in (*ends_ms, *self._resting(now_ms).values())), default=IDLE_MS)

    # -- moves ------------------------------------------------------------------------------------------------

    def _ask_for(self, move: LeaderMove, now_ms: int) -> None:
        epoch = self._records[move.partition].epoch
        until_ms = now_ms + self.options.timeout_ms + CONFIRM_MS
        moving = self._moving[move.partition] = InFlightMove(move, epoch, until_ms)
        task = asyncio.get_running_loop().create_task(self._ask(moving))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, moving: InFlightMove) -> None:
        partition, source, target = moving.move
        body = encode(partition, moving.epoch, target, self.options.timeout_ms)
        try:
            if source == self._node:
                await self._own.answer(self._node, body)
            else:
                await self._links.request(source, HAND_OVER, body, REQUEST_MS)
        except OutcomeUnknown as error:
            log.warning("balancing.unanswered", partition=partition, peer=source, error=str(error))
        except IsthmusError as error:
            moving.error = str(error)
            self._wake()

    def _end_moves(self, now_ms: int) -> None:
        """End the moves that the records show as done or failed."""
        for partition, moving in list(self._moving.items()):
            why = self._ended(moving, now_ms)
            if why is None:
                continue
            del self._moving[partition]
            key = (partition, moving.move.target)
            outcome = "failed" if why else "done"
            self._moved[outcome] += 1
            log.info("balancing.move", partition=partition, peer=moving.move.target, outcome=outcome, reason=why)
            if why:
                count = self._refused.get(key, (0, 0))[1] + 1
                pause_ms = max(AGAIN_MIN_MS, self.options.cool_down_ms) << min(count - 1, AGAIN_DOUBLINGS)
                self._refused[key] = (now_ms + pause_ms, count)
            else:
                self._refused.pop(key, None)
            run = self._running
            assert run is not None, "moves are made by a run"
            run.done, run.failed = run.done + (not why), run.failed + bool(why)
            run.ended.append((moving.move, why))

    def _ended(self, moving: InFlightMove, now_ms: int) -> str | None:
        """Why a move failed, "" when it is done, None while it is under way."""
        record = self._records.get(moving.move.partition)
        if record is None:
            return "the partition is gone"
        if record.epoch > moving.epoch and record.status is PartitionStatus.ONLINE and record.leader is not None:
            return "" if record.leader.node == moving.move.target else f"{record.leader.node} was elected instead"
        if moving.error and record.epoch == moving.epoch and record.status is PartitionStatus.ONLINE:
            return moving.error
        return f"has not happened within {self.options.timeout_ms} ms" if now_ms >= moving.until_ms else None

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """Handlers of requests from other nodes, by method: every node tells its load to the one that balances."""
        return self._loads.request_handlers()

    # -- operators --------------------------------------------------------------------------------------------

    def begin(self, by: str) -> None:
        """Begin a run for an operator, without regard to delay and cool-down; joins one that is under way. Raises
        NotReady if something prevents it."""
        if not self._active:
            raise NotReady("this node has just begun to control the cluster: ask again")
        if self._running is None:
            obstacle = self._obstacle()
            if obstacle:
                raise NotReady(f"leaderships are not moved now: {obstacle}")
            self._begin(by)
            self._wake()

    def status(self, now_ms: int) -> dict[str, Any]:
        """The status as JSON: the OpenAPI description lists the fields."""
        counted = loads(self._seats())
        leaders = loads(seats(self._records, self._registrations, (), self._drained))
        known = self._loads.known(self._registrations.keys(), now_ms) if self.options.by_load else {}
        running = self._running
        moves = self._wanted(now_ms)
        obstacle = "" if self._moving else self._obstacle()
        if running is not None:
            state = "leadership-balancing"
            to_go = sum(move.partition not in self._moving for move in moves)
            reason = f"{running.done} done, {len(self._moving)} under way, {to_go} to go"
            reason += f", {running.failed} failed" if running.failed else ""
        elif moves:
            state, reason = "uneven", obstacle or self.reason or "not looked at yet"
        else:
            state, reason = BALANCED, obstacle
        return {
            "state": state,
            "reason": reason,
            "automatic": self.options.automatic,
            "imbalance": imbalance(counted),
            "leaders": dict(sorted(leaders.items())),
            "goal": {
                "by_load": self.options.by_load and self.options.automatic,
                "nodes": len(self._goal.nodes) or len(leaders),
                "reason": self._goal.reason,
                "busy": {node: None if share is None else round(share, 3) for node, share in sorted(known.items())},
            },
            "bucket_types": {
                name: {"imbalance": imbalance(counts), "leaders": dict(sorted(counts.items()))}
                for name, counts in self._loads_by_type().items()
            },
            "plan": [_shown(move) for move in moves],
            "run": None if self.run is None else self._run_shown(self.run),
        }

    def _run_shown(self, run: BalanceRun) -> dict[str, Any]:
        ended = [{**_shown(move), "state": "failed" if why else "done", "reason": why} for move, why in run.ended]
        going = [{**_shown(each.move), "state": "under-way", "reason": ""} for each in self._moving.values()]
        return {
            "number": run.number,
            "by": run.by,
            "outcome": run.outcome,
            "done": run.done,
            "failed": run.failed,
            "moves": ended if run.outcome else [*ended, *going],
        }

    def samples(self) -> Iterator[Sample]:
        """Samples: moves since start, and on the controller, how uneven leaderships are."""
        for outcome, count in self._moved.items():
            yield "isthmus_leader_moves_total", {"outcome": outcome}, count
        if self._active:
            yield "isthmus_leader_nodes", {}, len(self._goal.nodes) or len(self._registrations.keys() - self._drained)
            yield "isthmus_leader_imbalance", {}, imbalance(loads(self._seats()))
            for name, counts in self._loads_by_type().items():
                yield "isthmus_leader_type_imbalance", {"bucket_type": name}, imbalance(counts)
            yield "isthmus_leader_balancing", {}, self._running is not None

    async def stop(self) -> None:
        """Cancel the requests under way; hand-overs that have begun continue."""
        await self._loads.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _shown(move: LeaderMove) -> dict[str, Any]:
    return {"partition": move.partition, "from": move.source, "to": move.target}
