"""Fair queueing over projects, runs and groups (start-time fair queueing), and limits on what may wait.

Whose turn it is: start-time fair queueing over runs, over projects above them, and over two classes above those.

Knows no engine and no clock. Start-time fair queueing (Goyal, Vin and Cheng, 1996) in virtual time. The next piece of
work of a run carries a start tag: the larger of the virtual time at which the run came to wait and the tag of its last
piece plus that piece's cost over the run's weight. The smallest tag is served, and is the virtual time from then on.
Over any interval in which two runs both wait, what they were given, over their weights, differs by at most one piece of
each; what is taken out while it waits has cost its run nothing. A run that did not wait is owed nothing.

The same stands between projects by their shares, so that a project gets no more by having more runs: runs share what
their project gets. And it stands between the classes, but that the piece goes first which would end first: `online` has
the weight that `bulk_share` leaves, so its work comes before bulk's, and bulk still gets its share of the cost while
both wait.

Room in the queue: how many calls may be on their way, of all runs and of each, and when there will be more.

Knows nothing of turns. A request is let in with all its calls or refused as a whole.

A count that fades, and the rate it stands for.
"""

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from judge_server.errors import Overloaded
from trainer_client.wire import Priority
from trainer_client.wire.tenants import DEFAULT_PROJECT

T = TypeVar("T")
K = TypeVar("K", bound=str)

_IDLE_TAGS_KEPT = 64

NUL = "\0"


def project_of_run(run: str) -> str:
    """The project in the run's name of a caller."""
    project_id, nul, _ = run.partition(NUL)
    return project_id if nul else DEFAULT_PROJECT


def label_of_run(run: str) -> str:
    """The run's name of a caller as people read it: `run`, or `project/run`."""
    return run.replace(NUL, "/")


@dataclass(slots=True, eq=False)
class FairQueueItem(Generic[T]):
    """A piece of work that waits: whose it is, in which class, and what it costs (any unit, above 0).

    `run` names the project too, see `TrainerContext`; `share` is the project's weight (above 0). `begun` is set for the rest of
    work that was served before: it comes before its run's other pieces, and costs other runs nothing.
    """

    run: str
    priority: Priority
    cost: float
    item: T
    share: float = 1.0
    resumed: bool = False


class FairQueue(Generic[T]):
    """Pieces of work, given out one at a time.

    Args:
        weights: of runs, those of other projects as `project/run`; 1 for those not named.
        bulk_share: what share of the cost goes to bulk work while both classes wait; in (0, 1).

    Raises:
        ValueError: a weight is not above 0, or the share is not between 0 and 1.
    """

    def __init__(self, weights: Mapping[str, float] | None = None, *, bulk_share: float = 0.1) -> None:
        if not 0 < bulk_share < 1:
            raise ValueError(f"bulk_share is {bulk_share}; it is a share between 0 and 1, neither of them itself")
        for run, weight in (weights or {}).items():
            if not weight > 0:
                raise ValueError(f"the weight of run {run!r} is {weight}; a weight is above 0")
        self._weights = dict(weights or {})
        self._class_weights: dict[Priority, float] = {"online": 1.0 - bulk_share, "bulk": bulk_share}
        self._classes: _VirtualClock[Priority] = _VirtualClock()
        self._projects: dict[Priority, _VirtualClock[str]] = {"online": _VirtualClock(), "bulk": _VirtualClock()}
        self._runs: dict[Priority, defaultdict[str, _VirtualClock[str]]] = {
            "online": defaultdict(_VirtualClock),
            "bulk": defaultdict(_VirtualClock),
        }
        self._waiting: dict[Priority, dict[str, _RunQueue[T]]] = {"online": {}, "bulk": {}}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, entry: FairQueueItem[T]) -> None:
        """Let a piece of work wait behind those of its run and class: what is begun behind what is begun."""
        runs = self._waiting[entry.priority]
        if not runs:
            self._classes.activate(entry.priority)
        if entry.run not in runs:
            project = project_of_run(entry.run)
            if project not in map(project_of_run, runs):
                self._projects[entry.priority].activate(project)
            runs[entry.run] = _RunQueue()
            self._runs[entry.priority][project].activate(entry.run)
        runs[entry.run].add(entry)
        self._length += 1

    def remove(self, entry: FairQueueItem[T]) -> bool:
        """Take out a piece of work that waits; False where it does not."""
        runs = self._waiting[entry.priority]
        own = runs.get(entry.run)
        if own is None or not own.discard(entry):
            return False
        self._length -= 1
        self._tidy(entry)
        return True

    def pop(self, excluded_runs: Container[str] = ()) -> FairQueueItem[T] | None:
        """The piece of work whose turn it is; None where there is none but of the runs passed over.

        A run that was passed over makes up for nothing later.
        """
        heads: dict[Priority, FairQueueItem[T]] = {}
        able: dict[Priority, dict[str, list[str]]] = {}
        for priority, runs in self._waiting.items():
            able[priority] = _by_project([run for run in runs if run not in excluded_runs])
            if able[priority]:
                project = self._projects[priority].first(able[priority])
                run = self._runs[priority][project].first(able[priority][project])
                heads[priority] = runs[run].first()
        if not heads:
            return None
        ends = {priority: head.cost / self._class_weights[priority] for priority, head in heads.items()}
        entry = heads[self._classes.earliest_finish(ends)]
        project, waiting = project_of_run(entry.run), self._waiting[entry.priority]
        projects, turns = self._projects[entry.priority], self._runs[entry.priority]
        waiting[entry.run].discard(entry)
        self._length -= 1
        self._classes.charge(entry.priority, ends[entry.priority])
        projects.charge(project, entry.cost / entry.share)
        turns[project].charge(entry.run, entry.cost / self._weights.get(label_of_run(entry.run), 1.0))
        for other in waiting:
            if other in excluded_runs:
                turns[project_of_run(other)].activate(other)
                if project_of_run(other) not in able[entry.priority]:
                    projects.activate(project_of_run(other))
        self._tidy(entry)
        return entry

    def _tidy(self, entry: FairQueueItem[T]) -> None:
        runs = self._waiting[entry.priority]
        if not runs[entry.run]:
            del runs[entry.run]
            project, waiting = project_of_run(entry.run), _by_project(runs)
            self._projects[entry.priority].forget(waiting)
            self._runs[entry.priority][project].forget(waiting.get(project, ()))


class _RunQueue(Generic[T]):
    """What waits of a run in a class, in order: the rest of what was begun, then the others, each as it came."""

    __slots__ = ("_begun", "_new")

    def __init__(self) -> None:
        self._begun: OrderedDict[FairQueueItem[T], None] = OrderedDict()
        self._new: OrderedDict[FairQueueItem[T], None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._new or self._begun)

    def add(self, entry: FairQueueItem[T]) -> None:
        """Behind those like it."""
        (self._begun if entry.resumed else self._new)[entry] = None

    def discard(self, entry: FairQueueItem[T]) -> bool:
        """Take one out; False where it is not here."""
        pieces = self._begun if entry.resumed else self._new
        if entry not in pieces:
            return False
        del pieces[entry]
        return True

    def first(self) -> FairQueueItem[T]:
        """The one that comes next; there must be one."""
        return next(iter(self._begun or self._new))


def _by_project(runs: Iterable[str]) -> dict[str, list[str]]:
    projects: dict[str, list[str]] = {}
    for run in runs:
        projects.setdefault(project_of_run(run), []).append(run)
    return projects


class _VirtualClock(Generic[K]):
    """The tags of some keys, and the virtual time."""

    def __init__(self) -> None:
        self._now = 0.0
        self._tags: dict[K, float] = {}

    def activate(self, key: K) -> None:
        """The key begins to wait."""
        self._tags[key] = max(self._now, self._tags.get(key, 0.0))

    def first(self, keys: Iterable[K]) -> K:
        """Which of the keys has its turn."""
        return min(keys, key=self._tags.__getitem__)

    def earliest_finish(self, costs: Mapping[K, float]) -> K:
        """Which of the keys would be the first whose next piece, at this cost, is done with in virtual time."""
        return min(costs, key=lambda key: self._tags[key] + costs[key])

    def charge(self, key: K, cost: float) -> None:
        """The key is served at this cost."""
        self._now = max(self._now, self._tags[key])
        self._tags[key] += cost

    def forget(self, waiting: Collection[K]) -> None:
        """Drop the tags that say nothing any more, once there are many."""
        if len(self._tags) <= _IDLE_TAGS_KEPT:
            return
        if not waiting:
            self._now = max(self._tags.values())  # nobody waits: all begin anew
        if self._now >= min(self._tags.values()):
            self._tags = {key: tag for key, tag in self._tags.items() if tag > self._now or key in waiting}


_NOTHING = 1e-6
_SHORTEST_S = 1.0


class DecayingRate:
    """Counts what happens, each event counting half as much after every `half_life_s`; `clock` gives seconds."""

    __slots__ = ("_at", "_began", "_clock", "_decay", "_value")

    def __init__(self, half_life_s: float, clock: Callable[[], float]) -> None:
        self._decay = math.log(2) / half_life_s
        self._clock = clock
        self._at = self._began = clock()
        self._value = 0.0

    def add(self, amount: float) -> None:
        """Count so much more, now."""
        left, now = self.value, self._clock()
        if left < _NOTHING:
            self._began = now
        self._value, self._at = left + amount, now

    @property
    def value(self) -> float:
        """What is left of the count now."""
        return self._value * math.exp(-self._decay * (self._clock() - self._at))

    @property
    def per_second(self) -> float:
        """The rate of late; exact for a steady one that has gone on for a second or longer."""
        seconds = max(_SHORTEST_S, self._clock() - self._began)
        return self.value * self._decay / (1.0 - math.exp(-self._decay * seconds))


_RATE_HALF_LIFE_S = 5.0
_MIN_RETRY_AFTER_S, _MAX_RETRY_AFTER_S = 1, 60
_DEFAULT_RETRY_AFTER_S = 5


class QueueLimits:
    """Counts the calls that are on their way.

    At most `calls` of them, but two exceptions: an idle queue takes a request of any size; and a run that holds less
    than its equal share of the room is let in although others have filled it, up to twice `calls` in all. `run_calls`
    bounds those of one run.
    """

    def __init__(self, calls: int, run_calls: int | None, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._run_calls = run_calls
        self.held_by_run: Counter[str] = Counter()
        self._total = 0
        self._completion_rate = DecayingRate(_RATE_HALF_LIFE_S, clock)

    @property
    def held(self) -> int:
        """Calls on their way, waiting or at the engine."""
        return self._total

    def acquire(self, run: str, calls: int) -> None:
        """Let a request's calls in.

        Raises:
            Overloaded: there is no room for them; says when there may be.
        """
        own = self.held_by_run[run]
        if self._run_calls is not None and own and own + calls > self._run_calls:
            raise Overloaded(
                f"{own} judge calls of this run are waiting and {calls} more exceed the {self._run_calls} a run may "
                "have; try again later, or send fewer responses at once",
                retry_after_s=self._retry_after_s(own + calls - self._run_calls),
            )
        if (
            calls
            and self._total
            and self._total + calls > self._calls
            and not self._is_within_fair_share(own + calls, calls)
        ):
            raise Overloaded(
                f"{self._total} judge calls are waiting and {calls} more exceed the queue's {self._calls}; "
                "try again later, or send fewer responses at once",
                retry_after_s=self._retry_after_s(self._total + calls - self._calls),
            )
        self.held_by_run[run] += calls
        self._total += calls

    def release(self, run: str, calls: int) -> None:
        """So many calls of a run have ended, one way or another."""
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
