"""Follow the batch of one run: who joins it, in which slot, who leaves it.

A request joins the end of the batch when its prefill is done and keeps its place until it ends; those behind it move up. So the batch
sizes, the order of the prefills, and how many steps (or tokens) each request got, tell who made which slot of which step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from ddtree_metrics.join.batch import FAR, UNNAMED, Batch, Occupant, Segments
from ddtree_metrics.join.prepare import UNKNOWN, Ints, Small

MOST_ORDERS = 24
"""How many orders of requests that joined together are tried."""

LOOK_AHEAD = 20_000
"""How many steps a trial follows."""


class Follower(Batch):
    """Follow one stretch of steps that starts with an empty batch (or with one that nobody knows)."""

    # -- the walk -----------------------------------------------------------------------------------------------------

    def go(self, *, leap: bool = True) -> None:
        """Follow to the end; what nobody known takes part in is passed over, which changes nothing but the time it takes."""
        k = self.begin
        while k < self.end:
            k = self._advance(k)
            if leap and (far := self._strangers_until(k)) > k:
                k = far
                size = int(self.s.batch[k - 1])
                self.active = [Occupant(UNNAMED, -1, -1, int(FAR), k, slot) for slot in range(size)]
        for o in self.active:
            self.segments.add(o, self.end)
            if o.request >= 0 and (o.left > 0 or o.need > 0 or (o.left < 0 and o.need < 0)):
                self._flag(o.request, "ended_after" if self.end == self._run_end() else "cut")

    def _run_end(self) -> int:
        return next((r.end for r in self.s.runs if r.begin <= self.begin < r.end), self.end)

    def _advance(self, k: int) -> int:
        now = int(self.s.time[k])
        size = int(self.s.batch[k])
        if self.s.lost[k]:
            self._after_loss(k, now, size)
        else:
            for o in [o for o in self.active if o.gate <= k]:
                self._leave(o, k, early=o.left != 0)
        waiting = self._eligible(now)
        need = size - len(self.active)
        sure = sum(1 for r in waiting if self.a.entry[r] <= now and self.a.exact[r])
        told = self._told(k, now)
        if not told and self._vacate(k, now, need):
            need = size - len(self.active)
        come = self._came(k, now) if told else 0
        if come - told != need:
            come = min(sure, need + told) if told and need < sure else 0
        if come > 0 and told:  # some came and some were retracted at once, perhaps even the same ones
            self._join(k, now, come, waiting)
            self._forced_out(k, now, come - need)
            need = 0
        elif need < sure:
            self._make_room(k, now, sure - need)
            need = size - len(self.active)
        if need < 0:
            self._forced_out(k, now, -need)
            need = 0
        if need > 0:
            self._join(k, now, need, waiting)
        self._reslot(k)
        stop = self._next_change(k)
        if any(o.request == UNNAMED or (o.left < 0 and o.need < 0) for o in self.active):
            i = int(np.searchsorted(self.fresh, k, side="right"))
            if i < len(self.fresh):
                stop = min(stop, int(self.fresh[i]))
            if self.pending:
                stop = min(stop, self._index_of(int(self.a.entry[self.pending[0]]), k))
            for o in self.active:
                if o.request >= 0 and any(x.request == UNNAMED for x in self.active):
                    self._flag(o.request, "beside_unknown")
        stop = max(min([stop] + [max(o.gate, k + 1) for o in self.active]), k + 1)
        leaving: list[Occupant] = []
        for o in self.active:
            last = self._finishes(o, k, stop)
            if last < stop:
                stop, leaving = last, [o]
            elif last == stop and o not in leaving:
                leaving.append(o)
        for o in self.active:
            n = stop - k
            o.done += n
            if o.left > 0:
                o.left -= n
            if o.request >= 0 and o.part == 0 and self.a.completion[o.request] >= 0:
                o.need -= self._tokens(o, k, stop)
        for o in leaving:
            if self._is_done(o):
                self._leave(o, stop, early=False)
        return stop

    def _next_change(self, k: int) -> int:
        at = int(self.change[np.searchsorted(self.change, k, side="right")]) if k < self.end else self.end
        i = int(np.searchsorted(self.stops, k, side="right"))
        return min(at, int(self.stops[i])) if i < len(self.stops) else at

    def _index_of(self, time: int, k: int) -> int:
        """Return the first step after ``k`` that is not before ``time``."""
        return max(k + 1, self.begin + int(np.searchsorted(self.time, time, side="left")))

    def _is_done(self, o: Occupant) -> bool:
        return o.left == 0 if o.left >= 0 else o.need <= 0 and o.request >= 0 and o.part == 0 and self.a.completion[o.request] >= 0

    def _finishes(self, o: Occupant, k: int, stop: int) -> int:
        """Return the step after the last one of this occupant, or something past ``stop``."""
        if o.left > 0:
            return k + o.left
        if o.left < 0 and o.need > 0:
            n = min(stop - k, o.need)
            got = np.cumsum(np.maximum(self._commits(o, k, k + n), 0))
            at = int(np.searchsorted(got, o.need))
            return k + at + 1 if at < n else stop + 1
        return stop + 1

    def _commits(self, o: Occupant, k: int, stop: int) -> Small:
        first = int(self.s.place[k]) + o.slot
        return self.s.commit[self.s.place[k:stop] + o.slot] if stop - k > 1 else self.s.commit[first : first + 1]

    def _tokens(self, o: Occupant, k: int, stop: int) -> int:
        return int(np.maximum(self._commits(o, k, stop), 0).sum())

    # -- joining ------------------------------------------------------------------------------------------------------

    def _join(self, k: int, now: int, need: int, waiting: list[int]) -> None:
        """Let ``need`` occupants in: as the prefills say, else in the order of their own times."""
        said = self._as_prefilled(k, now, need, waiting)
        if said is not None:
            self._enter(k, said)
            return
        # whose first token is told to have come by now is in; who was only received may still be waiting
        told = [r for r in waiting if self.a.exact[r] and self.a.entry[r] <= now]
        waiting = self._by_arrival(told) + self._by_arrival([r for r in waiting if r not in told and not self._may_be_another(r, now)])
        back = self._rejoining(k, now, need, waiting)
        need -= len(back)
        chosen = waiting[:need]
        if need > 0:
            together = self._tied(waiting, need)
            if len(together) > 1 and not self.trial:
                chosen = self._choose(k, waiting, need, together)
        comers: list[tuple[int, int, Occupant | int]] = [(o.queued, 0, o) for o in back]
        for place, r in enumerate(chosen):
            received = int(self.a.received[r])
            comers.append((received if back and received != UNKNOWN else place, 1, r))
        if back:
            comers.sort(key=lambda c: c[:2])
        line: list[Occupant | int] = [c[2] for c in comers]
        rest = [o for o in self.pool if o not in back]
        line += [rest[i] if i < len(rest) else UNNAMED for i in range(need - len(chosen))]
        self._doubt_prefills(k, now, line)
        self._enter(k, line)

    def _doubt_prefills(self, k: int, now: int, line: list[Occupant | int]) -> None:
        """Flag those who join if the prefills since the last step were not of their lengths."""
        times, lengths, _ = self.prefills
        if not len(times) or self.trial:
            return
        before = int(self.s.time[k - 1]) if k > self.begin else now - 60_000_000
        i, j = np.searchsorted(times, [before, now], side="right")
        some = [x for x in line if isinstance(x, Occupant) or x != UNNAMED]
        asked = sum(self._length(x) if isinstance(x, Occupant) else int(self.a.prompt[x]) for x in some)
        if len(some) == len(line) and int(lengths[i:j].sum()) == asked:
            return
        single = set(lengths[i:j].tolist())
        for x in some:
            r = x.request if isinstance(x, Occupant) else x
            if not (len(line) == 1 and int(self.a.prompt[r]) in single):
                self._flag(r, "prefill_differs")

    def _enter(self, k: int, line: list[Occupant | int]) -> None:
        for one in line:
            if isinstance(one, Occupant):
                self.pool.remove(one)
                one.since, one.slot = k, -1
                self.active.append(one)
            elif one == UNNAMED:
                self.active.append(Occupant(UNNAMED, -1, -1, int(FAR), k))
            else:
                self.pending.remove(one)
                self.active.append(self._occupant(one, k))
                if self.a.received[one] >= self.s.time[self.begin] and not self._vague(one):
                    self.settled = True

    def _as_prefilled(self, k: int, now: int, need: int, waiting: list[int]) -> list[Occupant | int] | None:
        """Read who joined from the prefills since the last step, if each was of one request and its length tells which."""
        times, lengths, seqs = self.prefills
        if not len(times) or k == self.begin:
            return None
        i, j = np.searchsorted(times, [int(self.s.time[k - 1]), now], side="right")
        if j - i != need or not (seqs[i:j] == 1).all() or (lengths[i:j] < 0).any():
            return None
        line: list[Occupant | int] = []
        free: list[Occupant | int] = [*self.pool, *waiting]
        for length in lengths[i:j].tolist():
            fits = [x for x in free if self._could_be(x, length)]
            vague = [x for x in free if not isinstance(x, Occupant) and self.a.prompt[x] < 0]
            if len(fits) > 1 or vague:
                return None
            if fits:
                free.remove(fits[0])
                if isinstance(fits[0], Occupant):
                    more = length - self._length(fits[0])
                    fits[0].again += more
                    fits[0].need -= more
            line.append(fits[0] if fits else UNNAMED)
        return line if any(x != UNNAMED for x in line) or not free else None

    def _could_be(self, x: Occupant | int, length: int) -> bool:
        if isinstance(x, Occupant):
            return 0 <= length - self._length(x) <= self._unseen(x)
        return int(self.a.prompt[x]) == length

    def _rejoining(self, k: int, now: int, need: int, waiting: list[int]) -> list[Occupant]:
        """List the retracted ones that a prefill of their very length says are back, or whom nobody else can be."""
        if not self.pool:
            return []
        times, lengths, _ = self.prefills
        before = int(self.s.time[k - 1]) if k > self.begin else now
        i, j = np.searchsorted(times, [before, now], side="right")
        total = int(lengths[i:j].sum())
        seen = set(lengths[i:j].tolist())
        sure = [r for r in waiting if self.a.entry[r] <= now and self.a.exact[r]]
        beside = sum(int(self.a.prompt[r]) for r in sure[:need])
        for n in range(1, min(len(self.pool), need) + 1):  # the first n of the pool, with the new ones
            some = self.pool[:n]
            more = total - sum(self._length(o) for o in some) - sum(int(self.a.prompt[r]) for r in sure[: need - n])
            if more == 0 or (0 < more <= sum(self._unseen(o) for o in some) and n == 1):
                some[0].again += more
                some[0].need -= more
                return some
        back = [o for o in self.pool if self._length(o) in seen and (len(sure) < need or beside != total)]
        if not back and need > len(sure):
            back = self.pool[: need - len(sure)]
        return back[:need]

    def _unseen(self, o: Occupant) -> int:
        """Return how often a request was retracted beyond what was seen: prefilled, and retracted again before a step."""
        return max(int(self.a.retractions[o.request]) - o.again, 0)

    def _length(self, o: Occupant) -> int:
        """Return what is prefilled when a retracted request comes back: prompt and output so far, the new token not counted."""
        return int(self.a.prompt[o.request]) + self._output(o)

    def _output(self, o: Occupant) -> int:
        got = sum(int(np.maximum(self.s.commit[self.s.place[b:e] + sl], 0).sum()) for b, e, sl in self.segments.parts(o.request))
        return got + o.again

    def _by_arrival(self, waiting: list[int]) -> list[int]:
        """Sort those whose times do not settle their order by when they were received: the queue is first come, first served."""
        out: list[int] = []
        group: list[int] = []
        for r in waiting:
            if group and self.a.entry[r] - self.a.entry[group[-1]] > self._tie(r, group[-1]):
                out += sorted(group, key=lambda x: int(self.a.received[x]))
                group = []
            group.append(r)
        return out + sorted(group, key=lambda x: int(self.a.received[x]))

    def _may_be_another(self, r: int, now: int) -> bool:
        """Whether it cannot be told if a request of which only the receipt is known joins now, or somebody from before the log.

        The queue is first come, first served: nobody from before the log is left in it once somebody joined who was received in it, and
        nobody joins before one that came earlier.
        """
        if not self._vague(r):
            return False
        if not self.settled:
            return True
        mine = int(self.a.received[r])
        return any(
            self.a.exact[x] and UNKNOWN != self.a.received[x] < mine and self.a.entry[x] > now + self.tol.start_us for x in self.pending
        )

    def _vague(self, r: int) -> bool:
        return not self.a.exact[r] and self.a.finished[r] == UNKNOWN and self.a.completion[r] < 0

    def _tied(self, waiting: list[int], need: int) -> list[int]:
        """List those at the head of the queue whose order their times do not settle."""
        if not waiting:
            return []
        entry = self.a.entry
        tie = [self.tol.tie_us if self.a.exact[r] else 250_000 for r in waiting]
        group = [waiting[0]]
        start = 0
        for i in range(1, len(waiting)):
            if abs(entry[waiting[i]] - entry[waiting[i - 1]]) <= max(tie[i], tie[i - 1]):
                group.append(waiting[i])
            elif i >= need:
                break
            else:  # a new group; those before it are settled among themselves only
                start = i
                group.append(waiting[i])
        return (
            group
            if len(group) - start > 1 or any(abs(entry[b] - entry[a]) <= self.tol.tie_us for a, b in itertools.pairwise(group))
            else []
        )

    def _choose(self, k: int, waiting: list[int], need: int, group: list[int]) -> list[int]:
        """Try the orders of a group that joined together, and take the one that its members' own numbers fit."""
        rest = [r for r in waiting if r not in group]
        orders = self._orders(group)
        costs = []
        for order in orders:
            line = [*order, *rest]
            joined = [self._occupant(r, k) for r in line[:need]]
            costs.append(self._cost(k, [*self.active, *joined], line[:need], group))
        best = int(np.argmin(costs))
        near = 1
        if any(self.a.accepted[r] < 0 for r in group):  # lengths alone are weak evidence: the order of arrival stands, and is doubted
            near = 5
            best = 0 if costs[0] - costs[best] < near else best
        close = [i for i in range(len(orders)) if i != best and costs[i] - costs[best] < near]
        unsure = {r for i in close for place, r in enumerate(orders[i]) if orders[best][place] != r}
        for r in unsure:
            self._flag(r, "order_ambiguous")
        return [*orders[best], *rest][:need]

    def _orders(self, group: list[int]) -> list[tuple[int, ...]]:
        if len(group) <= 4:
            near = []
            for order in itertools.permutations(group):
                entries = [int(self.a.entry[r]) for r in order]
                if all(a - b <= self._tie(x, y) for (a, x), (b, y) in itertools.combinations(zip(entries, order, strict=True), 2)):
                    near.append(order)
            return near[:MOST_ORDERS]
        made = [tuple(group)]
        for i in range(len(group) - 1):
            swapped = list(group)
            swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
            made.append(tuple(swapped))
        return made[:MOST_ORDERS]

    def _tie(self, x: int, y: int) -> int:
        return self.tol.tie_us if self.a.exact[x] and self.a.exact[y] else 250_000

    # -- trials -------------------------------------------------------------------------------------------------------

    def _cost(self, k: int, order: list[Occupant], taken: Iterable[int], group: Iterable[int]) -> float:
        """Follow one hypothesis and say how badly the numbers of those concerned fit it."""
        copies = [o.copy() for o in order]
        watched = set(group) or {o.request for o in order if o.request >= 0}
        t = Follower.__new__(Follower)
        t.s, t.a, t.begin, t.end, t.tol, t.retracted, t.prefills, t.notices = (
            self.s,
            self.a,
            self.begin,
            self.end,
            self.tol,
            self.retracted,
            self.prefills,
            self.notices,
        )
        t.fresh = self.fresh
        t.time, t.change, t.stops, t.waiters = self.time, self.change, self.stops, self.waiters
        t.queue, t.at = self.queue, self.at
        gone = set(taken)
        t.pending = [r for r in self.pending if r not in gone]
        t.pool = [o.copy() for o in self.pool]
        t.active, t.segments, t.flags, t.missed, t.ends = copies, Segments(), {}, [], {}
        t.trial, t.watched, t.policy, t.settled = True, watched, self.policy, self.settled
        for o in copies:
            o.since = k if o.slot < 0 else o.since
        t._reslot(k)
        at = k
        while at < self.end and at - k < LOOK_AHEAD and any(o.request in watched for o in t.active) | any(r in watched for r in t.pending):
            at = t._advance(at)
        for o in t.active:
            t.segments.add(o, min(at, self.end))
        return t._misfit(self.segments)

    def _misfit(self, before: Segments) -> float:
        """Sum, over the watched requests, how far what they got is from what they say."""
        cost = 0.0
        steady = [r for r in self.watched if self.a.retractions[r] == 0]
        for r in steady or self.watched:
            parts = before.parts(r) + self.segments.parts(r)
            if not parts:
                cost += 50
                continue
            where = np.concatenate([self.s.place[b:e] + sl for b, e, sl in parts])
            if r in self.ends:
                cost += self._misfit_of(r, where, self.ends[r][0] - 1)
            if "left_early" in self.flags.get(r, ()):
                cost += 20
        return cost

    def _misfit_of(self, r: int, where: Ints, last: int) -> float:
        hist = self.a.hist[r]
        accepted = self.s.accepted[where]
        if hist is not None and (accepted >= 0).all():
            got = np.bincount(accepted, minlength=len(hist))
            want = np.zeros(len(got), np.int64)
            want[: len(hist)] = hist
            return float(np.abs(got - want).sum())
        if self.a.accepted[r] >= 0 and (accepted >= 0).all():
            return float(abs(int(accepted.sum()) - int(self.a.accepted[r])))
        fin = int(self.a.finished[r])
        if fin == UNKNOWN:
            return 0.0
        expected = self.begin + int(np.searchsorted(self.time, fin - self.tol.lag_us // 2, side="right")) - 1
        return float(abs(last - expected))
