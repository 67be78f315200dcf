"""Fair queueing of judge calls over priority classes, projects and runs, and limits on the length of the queue.

`FairQueue` is start-time fair queueing (Goyal, Vin and Cheng, 1996) in virtual time. The next item of a run has a
start tag: the larger of the virtual time at which the run became active and the tag of its previous item plus that
item's cost divided by the run's weight. The item with the smallest tag is served, and its tag becomes the virtual
time. Over any interval in which two runs are both active, the service they receive, divided by their weights, differs
by at most one item of each, unless the items belong to batches. Removing a waiting item costs its run nothing.

The runs of a project finish batch after batch. A batch is what a run asks for at one training step, which waits for the
last of its verdicts, and two batches that share the engine piece by piece both end late. Virtual time is therefore that
of generalised processor sharing (Parekh and Gallager, 1993, IEEE/ACM Trans. Networking 1:344-357): it advances by the
service divided by the weights of the runs that would still have work if they shared it. The run whose batch would end
first if they shared is served, so that each batch ends no later than it then would, but for two items (the fair sojourn
protocol; Friedman and Henderson, 2003, SIGMETRICS). Items without a batch go by their start tags (decision 0094).

An idle run or project that has been served before earns a credit: its start tag when it becomes active again is its
last one, but at most `idle_credit_s` seconds of virtual time behind. So a light run does not wait for the queue of a
heavy one, and still gets no more than its share over longer intervals. A run seen for the first time has no credit,
since otherwise a new name for each request would gain one.

Projects are scheduled in the same way by their shares, and the runs of a project share what the project gets, so more
runs do not get a project more service. Between the two priority classes the item that would finish first is served:
`online` has the weight that `bulk_share` leaves, so its items precede bulk items, and bulk still gets its share of the
cost while both classes wait.

`QueueLimits` accepts or rejects a request with all its calls, before they enter the queue.
"""

import math
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from judge_server.errors import Overloaded
from judge_server.judging.results import label_of_run, project_of_run
from trainer_client.wire import Priority

T = TypeVar("T")
K = TypeVar("K", bound=str)

_IDLE_TAGS_KEPT = 64

_RATE_HALF_LIFE_S = 5.0
_MIN_RETRY_AFTER_S, _MAX_RETRY_AFTER_S = 1, 60
_DEFAULT_RETRY_AFTER_S = 5

BATCH_WINDOW_S = 30.0
"""Items of a batch that arrive later than this after its first one are a batch of their own.

The end of a batch that grew forever would never come nearer, so it would be served last."""

_NEGLIGIBLE_COUNT = 1e-6
_MIN_RATE_WINDOW_S = 1.0


@dataclass(slots=True, eq=False)
class FairQueueItem(Generic[T]):
    """A waiting item of work.

    Attributes:
        run: the caller's run key, which includes the project; see `judge_server.judging.results.Caller`.
        priority: the class of the item.
        cost: in any unit, above 0.
        item: the work.
        share: the weight of the project, above 0.
        resumed: the item is the remainder of work that was served before. It precedes the other items of its run,
            and costs other runs nothing.
        batch: the name of the batch that the item belongs to within its run; empty if it is needed by itself.
        part: the part of this batch, which the queue sets: what arrives within `BATCH_WINDOW_S`.
    """

    run: str
    priority: Priority
    cost: float
    item: T
    share: float = 1.0
    resumed: bool = False
    batch: str = ""
    part: int = 0


class FairQueue(Generic[T]):
    """A queue that is fair between priority classes, projects and runs.

    Args:
        weights: the weights of runs, 1 by default; a run of a named project is written `project/run`.
        bulk_share: the share of the cost that bulk work gets while both classes wait; in (0, 1).
        idle_credit_s: the most service, in seconds at the recent rate, that an idle run or project may catch up on.
        clock: returns seconds.

    Raises:
        ValueError: a weight is not above 0, or the share is not between 0 and 1.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        *,
        bulk_share: float = 0.1,
        idle_credit_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < bulk_share < 1:
            raise ValueError(f"bulk_share is {bulk_share}; it must be above 0 and below 1")
        for run, weight in (weights or {}).items():
            if not weight > 0:
                raise ValueError(f"the weight of run {run!r} is {weight}; it must be above 0")
        self._weights = dict(weights or {})
        self._class_weights: dict[Priority, float] = {"online": 1.0 - bulk_share, "bulk": bulk_share}
        make_clock = partial(_VirtualClock[str], idle_credit_s, clock)
        self._classes: _VirtualClock[Priority] = _VirtualClock(0.0, clock)
        self._projects: dict[Priority, _VirtualClock[str]] = {"online": make_clock(), "bulk": make_clock()}
        make_run_clock = partial(_BatchClock, idle_credit_s, clock)
        self._runs: dict[Priority, defaultdict[str, _BatchClock]] = {
            "online": defaultdict(make_run_clock),
            "bulk": defaultdict(make_run_clock),
        }
        self._waiting: dict[Priority, _ByProject[T]] = {"online": {}, "bulk": {}}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, entry: FairQueueItem[T]) -> None:
        """Add an item behind those of its run and class; a resumed item goes behind the other resumed ones."""
        projects, project = self._waiting[entry.priority], project_of_run(entry.run)
        if not projects:
            self._classes.activate(entry.priority)
        if project not in projects:
            self._projects[entry.priority].activate(project)
            projects[project] = {}
        runs, clock = projects[project], self._runs[entry.priority][project]
        if entry.run not in runs:
            runs[entry.run] = _RunQueue()
            clock.activate(entry.run, self._weight(entry))
        clock.add(entry)
        runs[entry.run].add(entry)
        self._length += 1

    def remove(self, entry: FairQueueItem[T]) -> bool:
        """Remove an item; return False if it is not in the queue."""
        project = project_of_run(entry.run)
        run_queue = self._waiting[entry.priority].get(project, {}).get(entry.run)
        if run_queue is None or not run_queue.discard(entry):
            return False
        self._length -= 1
        self._runs[entry.priority][project].remove(entry)
        self._discard_idle(entry)
        return True

    def pop(self, excluded_runs: Container[str] = ()) -> FairQueueItem[T] | None:
        """Remove and return the next item; return None if only excluded runs have items.

        An excluded run does not catch up later on the service it missed.
        """
        heads: dict[Priority, FairQueueItem[T]] = {}
        eligible = {priority: _without(excluded_runs, projects) for priority, projects in self._waiting.items()}
        for priority, projects in eligible.items():
            if projects:
                project = self._projects[priority].first(projects)
                runs = projects[project]
                heads[priority] = runs[self._runs[priority][project].first(runs)].first()
        if not heads:
            return None
        costs = {priority: head.cost / self._class_weights[priority] for priority, head in heads.items()}
        entry = heads[self._classes.earliest_finish(costs)]
        project, projects = project_of_run(entry.run), self._waiting[entry.priority]
        projects[project][entry.run].discard(entry)
        self._length -= 1
        self._classes.charge(entry.priority, costs[entry.priority])
        self._projects[entry.priority].charge(project, entry.cost / entry.share)
        self._runs[entry.priority][project].serve(entry, [run for run in projects[project] if run in excluded_runs])
        for other in projects:
            if other not in eligible[entry.priority]:
                self._projects[entry.priority].skip(other)
        self._discard_idle(entry)
        return entry

    def _weight(self, entry: FairQueueItem[T]) -> float:
        return self._weights.get(label_of_run(entry.run), 1.0)

    def _discard_idle(self, entry: FairQueueItem[T]) -> None:
        """Drop the run of an item that left the queue, if the run is now empty, and tags that are out of date."""
        projects, project = self._waiting[entry.priority], project_of_run(entry.run)
        runs = projects[project]
        if runs[entry.run]:
            return
        del runs[entry.run]
        self._runs[entry.priority][project].forget(runs)
        if not runs:
            del projects[project]
        self._projects[entry.priority].forget(projects)


class _RunQueue(Generic[T]):
    """The items of one run in one class, first in, first out; resumed items precede new ones."""

    __slots__ = ("_new", "_resumed")

    def __init__(self) -> None:
        self._resumed: OrderedDict[FairQueueItem[T], None] = OrderedDict()
        self._new: OrderedDict[FairQueueItem[T], None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._new or self._resumed)

    def add(self, entry: FairQueueItem[T]) -> None:
        """Append an item."""
        (self._resumed if entry.resumed else self._new)[entry] = None

    def discard(self, entry: FairQueueItem[T]) -> bool:
        """Remove an item; return False if it is not in the queue."""
        items = self._resumed if entry.resumed else self._new
        if entry not in items:
            return False
        del items[entry]
        return True

    def first(self) -> FairQueueItem[T]:
        """The next item; the queue must not be empty."""
        return next(iter(self._resumed or self._new))


_ByProject = dict[str, dict[str, _RunQueue[T]]]
"""The runs that wait, by project."""


def _without(excluded_runs: Container[str], projects: _ByProject[T]) -> _ByProject[T]:
    """Return the projects with their runs that are not excluded."""
    if not excluded_runs:
        return projects
    left = {
        project: {run: queue for run, queue in runs.items() if run not in excluded_runs}
        for project, runs in projects.items()
    }
    return {project: runs for project, runs in left.items() if runs}


class _VirtualClock(Generic[K]):
    """The start tags of a set of keys, and their virtual time."""

    def __init__(self, idle_credit_s: float, clock: Callable[[], float]) -> None:
        self._now = 0.0
        self._tags: dict[K, float] = {}
        self._idle_credit_s = idle_credit_s
        self._progress = DecayingRate(_RATE_HALF_LIFE_S, clock)

    def activate(self, key: K) -> None:
        """Start a key's wait: a known one at its last tag, within the credit, and a new one at the virtual time."""
        last = self._tags.get(key)
        if last is None or last >= self._now:
            self._tags[key] = self._now if last is None else last
        else:
            credit = self._idle_credit_s * self._progress.per_second if self._idle_credit_s else 0.0
            self._tags[key] = max(self._now - credit, last)

    def skip(self, key: K) -> None:
        """Pass over a waiting key, which does not catch up on what it misses."""
        self._tags[key] = max(self._now, self._tags[key])

    def first(self, keys: Iterable[K]) -> K:
        """The key with the smallest tag."""
        return min(keys, key=self._tags.__getitem__)

    def earliest_finish(self, costs: Mapping[K, float]) -> K:
        """The key whose next item, at the given cost, would finish first in virtual time."""
        return min(costs, key=lambda key: self._tags[key] + costs[key])

    def charge(self, key: K, cost: float) -> None:
        """Serve a key at a cost: advance the virtual time to its tag, and its tag by the cost."""
        if (tag := self._tags[key]) > self._now:
            self._progress.add(tag - self._now)
            self._now = tag
        self._tags[key] = tag + cost

    def forget(self, waiting: Collection[K]) -> None:
        """Drop the tags of idle keys that no longer matter, once there are many tags."""
        if len(self._tags) <= _IDLE_TAGS_KEPT:
            return
        if not waiting:
            self._now = max(self._tags.values())  # with all keys idle, every tag may be dropped
        if self._now >= min(self._tags.values()):
            self._tags = {key: tag for key, tag in self._tags.items() if tag > self._now or key in waiting}


_Part = tuple[str, int]
_NO_BATCH: _Part = ("", 0)


@dataclass(slots=True)
class _RunTags:
    """The place of a run in virtual time.

    Attributes:
        weight: the weight of the run.
        start: the virtual time at which its current batch, or its next item without one, begins.
        end: the virtual time at which all of its work ends.
        batch: the part of a batch that it has begun.
        begun: the cost that was served of it.
        waiting: the cost that waits, and the number of items, by part.
        served: the number of the item of the project that was served last for this run.
        newest: the part that was added to last, and when its first item came.
        place: the place of its next item among those of other runs; None until it is needed again.
    """

    weight: float
    start: float
    end: float
    batch: _Part = _NO_BATCH
    begun: float = 0.0
    waiting: dict[_Part, tuple[float, int]] = field(default_factory=dict)
    served: int = 0
    newest: tuple[_Part, float] = (_NO_BATCH, 0.0)
    place: tuple[float, bool, int] | None = None

    def part_for(self, batch: str, now: float) -> int:
        """Return the part of a batch that an item belongs to which arrives now."""
        (name, part), since = self.newest
        if batch and (name != batch or now - since > BATCH_WINDOW_S):
            part += 1
            self.newest = (batch, part), now
        return part if batch else 0

    def add(self, batch: _Part, cost: float, items: int) -> None:
        """Add items of a part, or remove them with negative numbers."""
        self.place = None
        own, number = self.waiting.pop(batch, (0.0, 0))
        if number + items:
            self.waiting[batch] = (own + cost, number + items)

    def leave_batch(self) -> None:
        """Move the start behind what was served of a batch that the run does not continue."""
        self.start += self.begun / self.weight
        self.batch, self.begun = _NO_BATCH, 0.0

    def order(self, batch: _Part) -> float:
        """The virtual time by which the run's next item is ordered: its batch's end, or its own start without one."""
        begun = self.begun / self.weight
        if batch == _NO_BATCH:
            return self.start + begun
        own = self.waiting[batch][0] / self.weight
        return self.start + begun + own


class _BatchClock:
    """The runs of a project in the virtual time of generalised processor sharing.

    Costs are those of items; they are divided by the weight of their run here.
    """

    def __init__(self, idle_credit_s: float, clock: Callable[[], float]) -> None:
        self._now = 0.0
        self._served = 0
        self._tags: dict[str, _RunTags] = {}
        self._idle_credit_s = idle_credit_s
        self._clock = clock
        self._progress = DecayingRate(_RATE_HALF_LIFE_S, clock)

    def __len__(self) -> int:
        return len(self._tags)

    def activate(self, run: str, weight: float) -> None:
        """Start a run's wait: a known one at the end of its last work, within the credit, a new one at the time."""
        known = self._tags.get(run)
        if known is None:
            self._tags[run] = _RunTags(weight, self._now, self._now)
            return
        credit = self._idle_credit_s * self._progress.per_second if self._idle_credit_s else 0.0
        start = max(self._now - credit, known.end)
        self._tags[run] = _RunTags(weight, start, start, served=known.served, newest=known.newest)

    def add(self, entry: FairQueueItem[T]) -> None:
        """Add an item to a run that waits."""
        tags = self._tags[entry.run]
        entry.part = tags.part_for(entry.batch, self._clock())
        tags.add((entry.batch, entry.part), entry.cost, 1)
        tags.end += entry.cost / tags.weight

    def remove(self, entry: FairQueueItem[T]) -> None:
        """Remove an item that was not served."""
        tags = self._tags[entry.run]
        tags.add((entry.batch, entry.part), -entry.cost, -1)
        tags.end -= entry.cost / tags.weight

    def first(self, runs: Mapping[str, "_RunQueue[T]"]) -> str:
        """The run to serve of these, which wait.

        Of equal ones, it is one that has begun its batch, or else the one that was served longest ago.
        """
        return min(runs, key=lambda run: self._tags[run].place or self._find_place(run, runs[run].first()))

    def _find_place(self, run: str, head: FairQueueItem[T]) -> tuple[float, bool, int]:
        tags = self._tags[run]
        batch = _NO_BATCH if head.resumed else (head.batch, head.part)
        tags.place = tags.order(batch), batch == _NO_BATCH or batch != tags.batch, tags.served
        return tags.place

    def serve(self, entry: FairQueueItem[T], skipped: Collection[str]) -> None:
        """Serve an item: advance the virtual time, in which skipped runs do not catch up later."""
        tags, began = self._tags[entry.run], self._now
        batch, cost = (entry.batch, entry.part), entry.cost
        tags.add(batch, -cost, -1)
        if batch != tags.batch:
            tags.leave_batch()
            tags.batch = batch
        tags.begun += cost
        self._served += 1
        tags.served = self._served
        if batch == _NO_BATCH or batch not in tags.waiting:
            tags.leave_batch()
        self._advance(cost, skipped)
        self._progress.add(self._now - began)
        for other in skipped:
            if (own := self._tags.get(other)) is not None:
                own.start += self._now - began
                own.end += self._now - began
                own.place = None

    def _advance(self, cost: float, skipped: Collection[str]) -> None:
        """Serve all runs that would have work if they shared it, in proportion to their weights."""
        sharing = [tags for run, tags in self._tags.items() if tags.end > self._now and run not in skipped]
        while sharing:
            weight, nearest = sum(tags.weight for tags in sharing), min(tags.end for tags in sharing)
            if (nearest - self._now) * weight > cost:
                self._now += cost / weight
                return
            cost -= (nearest - self._now) * weight
            self._now = nearest
            sharing = [tags for tags in sharing if tags.end > nearest]

    def forget(self, waiting: Collection[str]) -> None:
        """Drop idle runs that no longer matter, once there are many."""
        if len(self._tags) > _IDLE_TAGS_KEPT:
            if not waiting:
                self._now = max(tags.end for tags in self._tags.values())
            self._tags = {run: tags for run, tags in self._tags.items() if tags.end > self._now or run in waiting}


class QueueLimits:
    """Limits on the calls that wait or run.

    The limit is `calls`, with two exceptions: an idle queue accepts a request of any size, and a run that holds less
    than an equal share of the queue is accepted when other runs have filled it, up to twice `calls` in all.
    `run_calls` limits the calls of one run. `clock` returns seconds.
    """

    def __init__(self, calls: int, run_calls: int | None, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._run_calls = run_calls
        self.held_by_run: Counter[str] = Counter()
        self._total = 0
        self._completion_rate = DecayingRate(_RATE_HALF_LIFE_S, clock)

    @property
    def held(self) -> int:
        """The number of calls in the queue or at the engine."""
        return self._total

    def acquire(self, run: str, calls: int) -> None:
        """Reserve places for all calls of a request.

        Raises:
            Overloaded: they exceed a limit; `retry_after_s` estimates when they may fit.
        """
        own = self.held_by_run[run]
        if self._run_calls is not None and own and own + calls > self._run_calls:
            raise Overloaded(
                f"{own} judge calls of this run are waiting and {calls} more exceed the run's limit of "
                f"{self._run_calls}; try again later, or send fewer responses at once",
                retry_after_s=self._retry_after_s(own + calls - self._run_calls),
            )
        if (
            calls
            and self._total
            and self._total + calls > self._calls
            and not self._is_within_fair_share(own + calls, calls)
        ):
            raise Overloaded(
                f"{self._total} judge calls are waiting and {calls} more exceed the queue's limit of {self._calls}; "
                "try again later, or send fewer responses at once",
                retry_after_s=self._retry_after_s(self._total + calls - self._calls),
            )
        self.held_by_run[run] += calls
        self._total += calls

    def release(self, run: str, calls: int) -> None:
        """Free the places of calls that ended, whether they succeeded or not."""
        self._total -= calls
        self.held_by_run[run] -= calls
        if not self.held_by_run[run]:
            del self.held_by_run[run]
        self._completion_rate.add(calls)

    def _is_within_fair_share(self, own: int, calls: int) -> bool:
        others = len(self.held_by_run) + (own == calls)
        return own * others <= self._calls and self._total + calls <= 2 * self._calls

    def _retry_after_s(self, calls: int) -> int:
        rate = self._completion_rate.per_second
        if not rate:
            return _DEFAULT_RETRY_AFTER_S
        return min(_MAX_RETRY_AFTER_S, max(_MIN_RETRY_AFTER_S, math.ceil(calls / rate)))


class DecayingRate:
    """An exponentially decaying count and its rate: an event's weight halves every `half_life_s` seconds.

    `clock` returns seconds.
    """

    __slots__ = ("_clock", "_decay", "_started_at", "_updated_at", "_value")

    def __init__(self, half_life_s: float, clock: Callable[[], float]) -> None:
        self._decay = math.log(2) / half_life_s
        self._clock = clock
        self._updated_at = self._started_at = clock()
        self._value = 0.0

    def add(self, amount: float) -> None:
        """Add to the count, as of now."""
        current, now = self.value, self._clock()
        if current < _NEGLIGIBLE_COUNT:
            self._started_at = now
        self._value, self._updated_at = current + amount, now

    @property
    def value(self) -> float:
        """The decayed count, as of now."""
        return self._value * math.exp(-self._decay * (self._clock() - self._updated_at))

    @property
    def per_second(self) -> float:
        """The recent rate; exact for a steady rate that has lasted for at least a second."""
        seconds = max(_MIN_RATE_WINDOW_S, self._clock() - self._started_at)
        return self.value * self._decay / (1.0 - math.exp(-self._decay * seconds))
