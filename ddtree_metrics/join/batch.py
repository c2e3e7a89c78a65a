"""The batch of one run: who is in it, in which slot, and how one leaves it: done, retracted, lost from sight."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ddtree_metrics.join.prepare import UNKNOWN, Asked, Ints, StepColumns

UNNAMED = -1
"""The request number of an occupant that nobody told of."""

FAR = np.int64(2**62)
WAITING = 64
"""How many requests that have not joined yet are looked at."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far times may be off, in microseconds."""

    start_us: int
    end_us: int
    tie_us: int
    lag_us: int
    coarse_us: int = 0


@dataclass(slots=True)
class Occupant:
    """A request in the batch (or somebody unknown)."""

    request: int
    left: int
    need: int
    gate: int
    since: int
    slot: int = -1
    done: int = 0
    part: int = 0
    again: int = 0
    queued: int = 0

    def copy(self) -> Occupant:
        """Return a copy that a trial may change."""
        return Occupant(self.request, self.left, self.need, self.gate, self.since, self.slot, self.done, self.part, self.again, self.queued)


@dataclass(frozen=True, slots=True)
class Waiter:
    """When a request may join: not before ``opens`` or ``seen``, nor after ``gone``; ``inert``: only its receipt is known."""

    opens: int
    seen: int
    gone: int
    inert: bool


@dataclass(slots=True)
class Segments:
    """Stretches of steps in which a request kept one slot."""

    request: list[int] = field(default_factory=list)
    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)
    part: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    of: dict[int, list[int]] = field(default_factory=dict)

    def add(self, o: Occupant, end: int) -> None:
        """Note that ``o`` kept its slot from ``o.since`` to before ``end``."""
        if o.request >= 0 and end > o.since:
            self.of.setdefault(o.request, []).append(len(self.request))
            self.request.append(o.request)
            self.begin.append(o.since)
            self.end.append(end)
            self.slot.append(o.slot)
            self.part.append(o.part)
            self.again.append(o.again)

    def parts(self, request: int) -> list[tuple[int, int, int]]:
        """List (begin, end, slot) of one request."""
        return [(self.begin[i], self.end[i], self.slot[i]) for i in self.of.get(request, ())]


class Batch:
    """State of one stretch of steps that starts with an empty batch (or with one that nobody knows)."""

    def __init__(
        self,
        steps: StepColumns,
        asked: Asked,
        begin: int,
        end: int,
        pending: list[int],
        tol: Tolerance,
        retracted: Ints,
        prefills: tuple[Ints, Ints, Ints],
        notices: Ints,
        policy: str = "length",
    ) -> None:
        self.s, self.a, self.begin, self.end, self.tol = steps, asked, begin, end, tol
        self.queue, self.at = pending, 0
        self.pending: list[int] = []
        self.retracted = retracted
        self.prefills = prefills
        self.notices = notices
        self.policy = policy
        self.time = steps.time[begin:end]
        batch = steps.batch[begin:end]
        change = np.flatnonzero(np.concatenate([batch[1:] != batch[:-1], [True]])) + begin + 1
        self.change = change
        after = begin + np.searchsorted(self.time, retracted, side="left")
        self.losses = np.flatnonzero(steps.lost[begin:end]) + begin
        self.stops = np.union1d(self.losses, after[(after > begin) & (after < end)])
        self.fresh = np.flatnonzero(steps.fresh[begin:end]) + begin
        self.waiters = self._waiters(pending)
        self.visited = np.sort(np.concatenate([change, self.stops, self.fresh]))
        """Steps at which a batch of unknown occupants is looked at, whoever waits."""
        self.plain = bool((np.diff(self.time) >= 0).all() and (batch > 0).all())
        self.segments = Segments()
        self.flags: dict[int, set[str]] = {}
        self.active: list[Occupant] = []
        self.pool: list[Occupant] = []
        self.missed: list[int] = []
        self.trial = False
        self.settled = all(run.begin != begin for run in steps.runs)  # nobody is left in the queue who was received before the log
        self.watched: set[int] = set()
        self.ends: dict[int, tuple[int, int]] = {}

    # -- leaving ------------------------------------------------------------------------------------------------------

    def _leave(self, o: Occupant, k: int, *, early: bool) -> None:
        self.active.remove(o)
        self.segments.add(o, k)
        if o.request >= 0:
            if early and not (o.part and o.left < 0 and o.need < 0):
                self._flag(o.request, "left_early")
            self.ends[o.request] = (k, o.part)
        self._reslot(k)

    def _make_room(self, k: int, now: int, wanted: int) -> None:
        """Somebody must have left, since more have come than the batch has grown by."""
        for o in sorted(self.active, key=lambda o: (o.request != UNNAMED, self._finish(o))):
            if wanted <= 0:
                return
            if o.request == UNNAMED or self._finish(o) <= now or (o.left < 0 and o.need < 0 and self._finish(o) <= now + self.tol.end_us):
                self._leave(o, k, early=True)
                wanted -= 1

    def _finish(self, o: Occupant) -> int:
        at = int(self.a.finished[o.request]) if o.request >= 0 else int(UNKNOWN)
        return at if at != UNKNOWN else int(FAR)

    def _vacate(self, k: int, now: int, need: int) -> bool:
        """Let go of unknown occupants where more were prefilled than the batch has grown by: as many must have left."""
        unnamed = [o for o in self.active if o.request == UNNAMED]
        if not unnamed:
            return False
        gone = unnamed[: max(self._came(k, now) - max(need, 0), 0)]
        for o in gone:
            self._leave(o, k, early=True)
        return bool(gone)

    def _came(self, k: int, now: int) -> int:
        """Return of how many requests the prefills since the last step speak."""
        times, _, seqs = self.prefills
        if not len(times) or k == self.begin:
            return 0
        i, j = np.searchsorted(times, [int(self.s.time[k - 1]), now], side="right")
        return int(np.maximum(seqs[i:j], 0).sum())

    def _told(self, k: int, now: int) -> int:
        """Return how many requests the log says were retracted between the step before and this one."""
        if not len(self.retracted) or k == self.begin:
            return 0
        i, j = np.searchsorted(self.retracted, [int(self.s.time[k - 1]), now], side="right")
        return int(j - i)

    def _forced_out(self, k: int, now: int, wanted: int) -> None:
        """Let somebody go who was not done: retracted, aborted, or one whose lines are not all there."""
        victims = self._retraction_candidates(now, self._told(k, now) > 0)
        guessed = len(victims) > wanted
        for o in victims[:wanted]:
            self._retract(o, k, guessed)
            wanted -= 1
        if victims and self.policy == "length":
            self.active.sort(key=lambda o: (-self._made(o), int(self.a.prompt[o.request]) if o.request >= 0 else 0))
            self._reslot(k)
        if wanted <= 0:
            return
        gone = sorted(
            self.active,
            key=lambda o: (
                not (o.request >= 0 and self._finish(o) <= now + self.tol.end_us),
                not (o.request >= 0 and bool(self.a.aborted[o.request])),
                o.request != UNNAMED,
                self._finish(o),
            ),
        )
        for o in gone[:wanted]:
            self._leave(o, k, early=True)

    def _retraction_candidates(self, now: int, told: bool) -> list[Occupant]:
        some = [o for o in self.active if o.request >= 0 and self._finish(o) > now + self.tol.end_us]
        known = [o for o in some if self.a.retractions[o.request] > o.again]
        if not known and told:
            known = [o for o in some if self.a.client[o.request]]
        if self.policy == "newest":
            return known[::-1]
        return sorted(known, key=lambda o: (self._made(o), -int(self.a.prompt[o.request])))

    def _made(self, o: Occupant) -> int:
        """Return how much an occupant has written so far."""
        if o.request >= 0 and o.part == 0 and self.a.completion[o.request] >= 0:
            return int(self.a.completion[o.request]) - o.need
        return o.done

    def _retract(self, o: Occupant, k: int, guessed: bool) -> None:
        self._leave(o, k, early=False)
        self.ends.pop(o.request, None)
        self._flag(o.request, "retracted")
        if guessed:
            for x in (o, *self.active):
                if x.request >= 0:
                    self._flag(x.request, "retraction_guessed")
        o.again += 1
        event = int(np.searchsorted(self.retracted, int(self.s.time[k]), side="right")) - 1
        o.queued = int(self.s.time[k - 1]) if k > self.begin else int(self.s.time[k])
        if event >= 0:
            o.queued = max(o.queued, int(self.retracted[event]))
        if self.a.completion[o.request] >= 0:
            o.need -= 1  # the next prefill gives one token
        self.pool.append(o)

    # -- those who wait ------------------------------------------------------------------------------------------------

    def _eligible(self, now: int) -> list[int]:
        """List the requests whose prefill may be done, and drop those that ended unseen."""
        self._refill()
        while self.pending:
            r = self.pending[0]
            if self.waiters[r].gone < now:
                self.pending.pop(0)
                self.missed.append(r)
                self._refill()
                continue
            break
        found = []
        for r in self.pending:
            waiter = self.waiters[r]
            if waiter.opens > now:
                break
            if waiter.seen <= now <= waiter.gone:
                found.append(r)
        return found

    def _waiters(self, queue: list[int]) -> dict[int, Waiter]:
        a, tol, at = self.a, self.tol, np.array(queue, np.int64)
        opens = a.entry[at] - np.where(a.exact[at], tol.start_us, 0)
        seen = np.where(a.received[at] == UNKNOWN, UNKNOWN, a.received[at] - 2_000 - tol.start_us // 10 - tol.coarse_us)
        gone = np.where(a.finished[at] == UNKNOWN, FAR, a.finished[at] + tol.end_us)
        inert = ~a.exact[at] & (a.finished[at] == UNKNOWN) & (a.completion[at] < 0) & (a.prompt[at] < 0)
        columns = (column.tolist() for column in (opens, seen, gone, inert))
        return {r: Waiter(*row) for r, row in zip(queue, zip(*columns, strict=True), strict=True)}

    def _strangers_until(self, k: int) -> int:
        """Return the step, from ``k`` on, before which nobody who is known can join, stay or be doubted.

        A batch of unknown occupants has no history: only its size counts. Of requests of which nothing but the receipt is known none joins
        before it is settled that nobody from before the log is left in the queue.
        """
        if not self.plain or self.settled or self.pool or not self.active or any(o.request != UNNAMED for o in self.active):
            return k
        self._refill()
        wake = min((min(w.opens, w.gone) for w in map(self.waiters.__getitem__, self.pending) if not w.inert), default=int(FAR))
        stop = self.begin + int(np.searchsorted(self.time, wake, side="left"))
        i = int(np.searchsorted(self.losses, k, side="left"))
        if i < len(self.losses):
            stop = min(stop, int(self.losses[i]))
        i = int(np.searchsorted(self.visited, stop, side="right")) - 1
        return max(int(self.visited[i]), k) if i >= 0 else k

    def _refill(self) -> None:
        while len(self.pending) < WAITING and self.at < len(self.queue):
            self.pending.append(self.queue[self.at])
            self.at += 1

    def _occupant(self, r: int, k: int) -> Occupant:
        fin = int(self.a.finished[r])
        gate = int(FAR) if fin == UNKNOWN else self.begin + int(np.searchsorted(self.time, fin + self.tol.end_us, side="right"))
        completion = int(self.a.completion[r])
        need = max(completion - 1, 1) if completion >= 0 else -1
        return Occupant(r, int(self.a.steps[r]), need, max(gate, k + 1) if gate != FAR else gate, k)

    # -- losses and bookkeeping ---------------------------------------------------------------------------------------

    def _after_loss(self, k: int, now: int, size: int) -> None:
        """Lines are missing before step ``k``: whoever can be in the batch by its times is in it, if their number fits."""
        old = list(self.active)
        for o in old:
            self.active.remove(o)
            self.segments.add(o, k)
        waiting = [r for r in self._eligible(now) if self.a.entry[r] <= now]
        still = [o for o in (*old, *self.pool) if o.request >= 0 and self._finish(o) > now - self.tol.lag_us]
        for o in (*old, *self.pool):
            if o.request >= 0:
                self._flag(o.request, "lost_lines")
        told = int(np.searchsorted(self.notices, now, side="right")) - 1
        notice = int(self.notices[told]) if told >= 0 else int(FAR)
        clean = [r for r in waiting if self._begins_after(r, notice)]  # nothing of theirs is missing
        if len(clean) == size and not any(self._finish(o) > now for o in (*old, *self.pool)):
            self.pool = []
            for r in clean:
                self.pending.remove(r)
                self.active.append(self._occupant(r, k))
            return
        for r in waiting:
            if r not in clean:
                self._flag(r, "lost_lines")
        self.pool = []
        if len(still) + len(waiting) == size:
            for o in still:
                self.ends.pop(o.request, None)
                o.part, o.left, o.need, o.since, o.slot = o.part + 1, -1, -1, k, -1
                o.gate = self._tight_gate(o.request, k)
                self.active.append(o)
            for r in waiting:
                self.pending.remove(r)
                o = self._occupant(r, k)
                if r not in clean:
                    o.part, o.left, o.need, o.gate = 1, -1, -1, self._tight_gate(r, k)
                self.active.append(o)
        else:
            for r in waiting:
                self.pending.remove(r)
                self.missed.append(r)
            self.active.extend(Occupant(UNNAMED, -1, -1, int(FAR), k) for _ in range(size))

    def _begins_after(self, r: int, notice: int) -> bool:
        """Whether a request came after journald had told of the last lines it lost."""
        received = int(self.a.received[r])
        return (received if received != UNKNOWN else int(self.a.entry[r]) - self.tol.start_us) > notice

    def _tight_gate(self, r: int, k: int) -> int:
        fin = int(self.a.finished[r])
        if fin == UNKNOWN:
            return int(FAR)
        return max(self.begin + int(np.searchsorted(self.time, fin, side="right")), k + 1)

    def _reslot(self, k: int) -> None:
        for slot, o in enumerate(self.active):
            if o.slot != slot:
                if o.slot >= 0:
                    self.segments.add(o, k)
                o.slot, o.since = slot, k

    def _flag(self, r: int, flag: str) -> None:
        self.flags.setdefault(r, set()).add(flag)
