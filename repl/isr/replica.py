"""One replica of one partition: the value machine, and the only door of this room.

`step(event, now_ms)` takes one fact and returns what is to be done about it, in order; `deadline_ms()` says when
a Tick is due. Same events, same times: same effects. It decides; it does nothing itself.

The transitions, all of them (what a role does between them stands in its own room):

    Idle      -> Follower    the record names another node's process as leader, in an epoch that is durable here
    Idle      -> Candidate   the record nominates this process (node, inc) in an epoch that is durable here and
                             that neither this log nor an earlier process has been in, and means this log
                             (gen): append the epoch's BARRIER
    Candidate -> Leader      the record says Online with this process in that epoch (a controller heard
                             Promoted, which was sent only after the barrier was durable)
    Follower  -> Idle        the record names another leader or none, or another epoch; the session is over
    Candidate -> Idle        the nomination was withdrawn or overtaken; the session is over; told to resign
    Leader    -> Resigning   told to resign or to hand over, or its own disk is too slow: nothing new is appended
    Resigning -> Leader      the hand-over did not happen in time, and the process is not leaving
    Leader, Resigning -> Idle  the record no longer names this process in this epoch; the session is over: what is
                             appended and not committed becomes UNKNOWN
    Follower  -> Follower    far: rows of the leader's store come instead of entries (`far.py`)
    Follower  -> Quarantined the leader contradicts what is committed here: this copy alone is left untouched
    Quarantined -> Idle      the record no longer names this node: the copy is one of those that are left behind
    any       -> Failed      log, store or identity could not be written: first step down, then believe nothing, until
                             there is a new process (docs/protocol.md H20, H34)

Whatever a recovered log holds above the applied offset counts as uncommitted until a leader says otherwise, or the
BARRIER of a new epoch of its own commits: leadership is never resumed (H11, R-INC). A record is ignored unless newer
than the known one, refused when its epoch is below the durable one (H32). A message counts only in its epoch (R-FENCE).
"""

from __future__ import annotations

from typing import Final, assert_never

from repl.isr import effects as fx
from repl.isr import events as ev
from repl.isr import far
from repl.isr import messages as ms
from repl.isr.candidate import PROMOTED_REPEAT_MS, Candidate
from repl.isr.effects import Role
from repl.isr.epochs import EpochTable
from repl.isr.follower import Follower
from repl.isr.leader import Leader, Leadership, refusal
from repl.isr.options import Options
from repl.isr.pending import WRITE_REPEAT_MS
from repl.isr.progress import Progress
from repl.isr.reasons import another_leader, older_version, rolled_back, why_idle
from repl.isr.resigning import Resigning
from repl.isr.roles import LEAVING, Roles
from repl.isr.standing import FarCopy, Standing
from repl.isr.states import Failed, Idle, Quarantined
from repl.model.errors import NotLeader, NotReady
from repl.model.record import Incarnation, Member, PartitionRecord

__all__ = ["Replica", "Role"]

SLOW_HAND_OVER_MS: Final = 10_000
"""How long a leader with a slow disk tries to hand over before it leads on; its writes are slow either way."""


class Replica(Roles):
    """One replica. Built from what recovery found; never built twice in one process for one log.

    `leo` and `epoch_table` are the recovered log's, `durable` the first offset of it that a power loss may
    still take, `log_start` its first entry; `applied` is the store's offset (or its floor while rows are
    replayed), `committed` how far this very log is known to be, by what was applied before; `epoch_seen`, who
    led or stood in it (`epoch_owner`) and `gen` come from the data directory's identity. `nonce_base`, random and below
    2^62, keeps the nonces of this process apart from those of earlier ones. `options` may be replaced (`reconfigure`).
    """

    def __init__(
        self,
        partition: int,
        node: str,
        gen: int,
        leo: int,
        epoch_table: EpochTable,
        applied: int,
        epoch_seen: int,
        options: Options,
        durable: int,
        log_start: int = 0,
        nonce_base: int = 0,
        far: ev.FarStored | None = None,
        committed: int = 0,
        epoch_owner: Incarnation | None = None,
    ) -> None:
        assert max(0, committed) <= durable <= leo
        assert options.window_entries > 0
        standing = Standing(
            partition=partition,
            member=Member(node, gen),
            progress=Progress(leo=leo, durable=durable, hw=max(applied, committed), applied=applied),
            table=epoch_table,
            log_start=log_start,
            options=options,
            epoch_seen=epoch_seen,
            epoch_wanted=epoch_seen,
            epoch_owner=epoch_owner,
            nonce=nonce_base,
            far=None if far is None else FarCopy(far.position, far.epoch, far.whole),
        )
        super().__init__(standing)

    # -- the one input --------------------------------------------------------------------------

    def step(self, event: ev.Event, now_ms: int) -> list[fx.Effect]:
        """Take one fact at `now_ms` (monotonic); returns what is to be done, in order."""
        standing = self._standing
        effects: list[fx.Effect] = []
        standing.effects = effects
        if isinstance(self._state, Failed):
            self._step_failed(event)
            return effects
        match event:  # those of the way of a write first
            case ev.Append():
                self._append(event, now_ms)
            case ev.Persisted():
                self._persisted(event.end, now_ms)
            case ev.AppliedTo():
                self._applied_to(event.end, now_ms)
            case ev.Received(node, message):
                self._receive(node, message, now_ms)
            case ev.Read(token):
                self._read(token, now_ms)
            case ev.RecordSeen(record) | ev.WriteConfirmed(record):
                self._see(record, now_ms)
            case ev.WriteRefused(base_version, current):
                self._see(current, now_ms)
                self._refused(base_version, now_ms)
            case ev.WriteUndecided(base_version):
                self._undecided(base_version, now_ms)
            case ev.RecordSynced(nonce, record):
                self._synced(nonce, record, now_ms)
            case ev.EpochPersisted(epoch):
                standing.epoch_seen = max(standing.epoch_seen, epoch)
                self._follow_record(now_ms)
            case ev.SessionStarted(inc):
                if standing.inc is not None and standing.inc != inc:
                    self._session_over()
                standing.inc = inc
                standing.replay()
                self._follow_record(now_ms)
            case ev.SessionExpired():
                self._session_over()
            case ev.LinkUp(node):
                if isinstance(self._state, Follower) and self._state.leader == node:
                    self._state.link(True, standing, now_ms)
            case ev.LinkDown(node):
                self._link_down(node, now_ms)
            case ev.Truncated(to_offset):
                standing.truncating -= 1
                self._persisted(to_offset, now_ms)
            case ev.Trimmed(start):
                standing.log_start = max(standing.log_start, start)
            case ev.GenRenewed(gen):
                standing.renewed(gen)
                if isinstance(self._state, Follower):
                    self._state.ask(standing, now_ms)
            case ev.FarStored() | ev.FarEnded():
                far.told(standing, event)
                if isinstance(self._state, Follower):
                    self._state.ask(standing, now_ms)
            case ev.PersistFailed(reason):
                self._fail(f"disk-failed: {reason}")
            case ev.Resign(heir):
                self._told_to_resign = True
                self._resign(heir, None, LEAVING, now_ms)
            case ev.HandOver(target, deadline_ms):
                self._resign(target, deadline_ms, f"hands over to {target or 'another member'}", now_ms)
            case ev.Tick():
                self._tick(now_ms)
            case _:
                assert_never(event)
        return effects

    # -- the metastore --------------------------------------------------------------------------

    def _see(self, record: PartitionRecord, now_ms: int) -> None:
        """Believe `record` if it is newer than the known one and contradicts nothing that is durable here. An older one
        is late, as a rule; whether the metastore went back behind this process a synced read tells."""
        standing = self._standing
        assert record.partition == standing.partition
        newest = self._newest
        if newest is not None and record.version < newest.version and record.lineage <= newest.lineage:
            self._suspect(now_ms)
        known = standing.record
        if known is not None and record.version <= known.version and record.lineage <= known.lineage:
            return
        if record.epoch < standing.epoch_wanted or record.lineage == self._rolled_back_lineage:
            self._disbelieve(record, standing.epoch_wanted, rolled_back(record.epoch, standing.epoch_wanted))
            return
        owner, noted = record.owner, standing.epoch_owner
        if record.epoch == standing.epoch_wanted and owner is not None and noted is not None and owner != noted:
            self._went_back(record, another_leader(record.epoch, noted, owner))
            return
        standing.record = record
        if newest is None or (record.lineage, record.version) >= (newest.lineage, newest.version):
            self._newest = record
        self._object("")
        if record.epoch > standing.epoch_wanted or (record.leader is not None and noted is None):
            standing.epoch_wanted, standing.epoch_owner = record.epoch, owner
            standing.effects.append(fx.PersistEpoch(record.epoch, owner))
        if isinstance(self._state, Leadership):
            self._state.record_moved(record)
        self._follow_record(now_ms)

    def _synced(self, nonce: int, record: PartitionRecord, now_ms: int) -> None:
        """A record read after a sync: what a read waits for whose leadership is to be sure. One that is older than
        what was known when it was asked for proves that the metastore went back."""
        standing, asked = self._standing, self._suspicion
        if asked is not None and nonce == asked.nonce:
            self._suspicion = None
            if record.version < asked.version and record.lineage <= asked.lineage and standing.epoch_wanted:
                self._went_back(record, older_version(record, asked.version))
                return
        self._see(record, now_ms)
        state = self._state
        if isinstance(state, Leadership):
            members = state.electable(standing.known)
            state.reads.synced(nonce, record, standing, state.epoch, members, now_ms)

    def _follow_record(self, now_ms: int) -> None:
        """Make the transitions that the known record, the session and the durable epoch ask for."""
        standing = self._standing
        record, me, node = standing.record, standing.me, standing.member.node
        if record is None:
            return
        match self._state:
            case Candidate(epoch=epoch):
                if record.epoch == epoch and record.leader == me:
                    self._lead(now_ms)
                elif record.epoch != epoch or record.candidate != me:
                    self._leave(f"withdrawn: {why_idle(record, me, node)}")
            case Leadership() as leadership:
                if record.epoch != leadership.epoch or record.leader != me:
                    self._leave(f"replaced: {why_idle(record, me, node)}")
                else:
                    self._advance(leadership, now_ms)
            case Follower() as follower if not follower.named(record, standing, now_ms):
                self._leave(why_idle(record, me, node))
            case Quarantined() if node not in record.replicas:
                self._become(Idle(), why_idle(record, me, node))
            case _:
                pass
        if isinstance(self._state, Idle) and record.epoch == standing.epoch_seen:
            self._leave_idle(record, now_ms)

    def _session_over(self) -> None:
        """Another session is another process to everybody else: give up what this one held, and read anew."""
        self._standing.inc = None
        self._leave("session-expired: the metastore ended this process's session")
        self._standing.record = None

    def _refused(self, base_version: int, now_ms: int) -> None:
        state = self._state
        if isinstance(state, Leadership) and state.pending is not None and state.pending.base_version == base_version:
            state.refused_as_it_stands(self._standing, now_ms)

    def _undecided(self, base_version: int, now_ms: int) -> None:
        """The write on `base_version` is as undecided as before: the same bytes again in a while."""
        state = self._state
        if isinstance(state, Leadership) and state.pending is not None and state.pending.base_version == base_version:
            state.pending.repeat_at_ms = now_ms + WRITE_REPEAT_MS

    # -- other replicas -------------------------------------------------------------------------

    def _receive(self, node: str, message: ms.Message, now_ms: int) -> None:
        """Take a message of this epoch; of a lower one tell the sender so, of a higher one read the record."""
        standing, state = self._standing, self._state
        if isinstance(message, ms.Fenced):
            if message.epoch > standing.epoch_wanted:
                standing.hint(now_ms)
            return
        if message.epoch != standing.epoch_wanted:
            if message.epoch > standing.epoch_wanted:
                standing.hint(now_ms)
            else:
                standing.effects.append(fx.Send(node, ms.Fenced(standing.epoch_wanted)))
            return
        match message:
            case ms.Probe(epoch, nonce):
                durable = standing.progress.durable if self.following else 0
                standing.effects.append(fx.Send(node, ms.ProbeOk(epoch, standing.member.gen, nonce, durable)))
            case ms.Forward() if isinstance(state, Follower) and state.leader == node:
                state.take(message, standing, now_ms)
            case ms.HelloOk() if isinstance(state, Follower) and state.leader == node:
                state.accepted(message, standing)
                self._quarantine_if(state.diverged)
            case ms.HelloRefused() if isinstance(state, Follower) and state.leader == node:
                state.refused(message, standing, now_ms)
                self._quarantine_if(state.diverged)
            case ms.FarRows() | ms.FarState() if isinstance(state, Follower) and state.leader == node:
                far.came(message, standing)
            case ms.FarAsk() if isinstance(state, Leadership):
                state.far_asked(node, message, standing)
            case ms.Ack() if isinstance(state, Leadership):
                state.acknowledged(node, message, standing, now_ms)
                self._want(state, now_ms)
            case ms.Nack() if isinstance(state, Leadership):
                state.missed(node, message, standing, now_ms)
            case ms.Hello() if isinstance(state, Leadership | Candidate):
                state.greet(node, message, standing, now_ms)
            case ms.ProbeOk() if isinstance(state, Leadership):
                members = state.electable(standing.known)
                state.reads.answered(node, message, standing, state.epoch, members, now_ms)
                if state.reassignment.answered(node, message):
                    self._want(state, now_ms)
            case _:
                pass  # said to the role that this replica had, or will have

    def _link_down(self, node: str, now_ms: int) -> None:
        state = self._state
        if isinstance(state, Leadership | Candidate):
            state.link_down(node)
        elif isinstance(state, Follower) and state.leader == node:
            state.link(False, self._standing, now_ms)

    # -- the log --------------------------------------------------------------------------------

    def _append(self, event: ev.Append, now_ms: int) -> None:
        """Take a batch into the log, or refuse all of it with nothing done."""
        assert event.entries
        state, standing = self._state, self._standing
        if isinstance(state, Leader):
            refused = refusal(state, standing, event)
        else:
            refused = NotReady.reason if isinstance(state, Candidate | Resigning) else NotLeader.reason
        if refused is not None:
            standing.effects.append(fx.Refused(refused, len(event.entries)))
            return
        assert isinstance(state, Leader)
        before = standing.progress.leo
        standing.progress.leo += len(event.entries)
        standing.effects.append(fx.Persist(event.entries))
        state.appended(before, standing, now_ms)

    def _persisted(self, end: int, now_ms: int) -> None:
        standing, state = self._standing, self._state
        if standing.truncating:
            return  # said of the log as it was before the cut
        standing.progress.persisted(end)
        if isinstance(state, Leadership):
            state.acked[standing.member] = standing.progress.durable
            self._advance(state, now_ms)
        elif isinstance(state, Follower):
            state.persisted(standing)
        elif (
            isinstance(state, Candidate) and state.announce_at_ms is None and standing.progress.durable > state.barrier
        ):
            self._announce(now_ms)

    def _applied_to(self, end: int, now_ms: int) -> None:
        standing, state = self._standing, self._state
        standing.applied_to(end)
        if isinstance(state, Leadership):
            if not state.ready and standing.progress.applied > state.barrier:
                state.ready = True
                standing.effects.append(fx.LeadershipReady(state.epoch))  # it may yet lead on
            state.reads.applied(standing)
            if isinstance(state, Resigning):
                self._want(state, now_ms)

    def _read(self, token: int, now_ms: int) -> None:
        """Take a committed read, or refuse it."""
        state, standing = self._state, self._standing
        if isinstance(state, Leader) and state.ready:
            state.reads.ask(token, standing, state.epoch, state.electable(standing.known), now_ms)
        else:
            reason = NotReady.reason if isinstance(state, Leadership | Candidate) else NotLeader.reason
            standing.effects.append(fx.ReadRefused((token,), reason))

    # -- writes and timers ----------------------------------------------------------------------

    def _announce(self, now_ms: int) -> None:
        candidate, standing = self._state, self._standing
        assert isinstance(candidate, Candidate)
        assert standing.inc is not None
        candidate.announce_at_ms = now_ms + PROMOTED_REPEAT_MS
        member = standing.member
        standing.effects.append(fx.Promoted(candidate.epoch, member.node, standing.inc, member.gen))

    def _tick(self, now_ms: int) -> None:
        standing = self._standing
        match self._state:
            case Candidate(announce_at_ms=int(due_ms)) if due_ms <= now_ms:
                self._announce(now_ms)
            case Follower() as follower:
                follower.tick(standing, now_ms)
            case Leadership() as leadership:
                slow = leadership.tick(standing, now_ms)
                if isinstance(leadership, Resigning):
                    deadline_ms = leadership.deadline_at_ms
                    if deadline_ms is not None and deadline_ms <= now_ms and not leadership.given_up:
                        self._lead_on(leadership)
                elif slow:
                    self._resign(None, now_ms + SLOW_HAND_OVER_MS, "hands over: its own disk is too slow", now_ms)
                if isinstance(self._state, Leadership):
                    self._want(self._state, now_ms)
            case _:
                pass
