"""What came of an attack: whether the promises held, and how fast honest requests were, calm and attacked."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.attacks.scenario import Attacked, Window
from benchmarks.soak import invariants
from benchmarks.soak.expected_answers import compare_answers
from benchmarks.soak.figures import TIMES_CALM, p99, request_timings
from benchmarks.soak.runner import Lines

_DAMAGE = ("lost", "refused", "waiting", "spool_bytes", "restarts")
"""What of the ledger's state must be 0 at the end."""


class Promises(NamedTuple):
    """What is wrong, in words, and the figures behind it.

    `unanswered` is how many honest requests were given up by the client, `failures` their failed verdicts by kind: both
    are said to the caller, and neither makes a reward wrong.
    """

    wrong: list[str]
    honest: int
    unanswered: Counter[str]
    failures: Counter[str]
    ledger: dict[str, int]


class Times(NamedTuple):
    """Seconds of honest requests, and of the slowest answer to `/healthz`, in calm or attacked windows.

    `others` is how many processors were busy with other work on this machine meanwhile.
    """

    requests: int
    p50: float
    p99: float
    longest: float
    largest_lag: float
    others: float


def promises(found: Attacked) -> Promises:
    """Compare every honest reward with the right one, the ledger with the answers, and look for failures."""
    told = [line for line in found.lines if "error" not in line]
    about = compare_answers(told, found.known(line["subject"] for line in told))
    ledger = invariants.ledger(found.database, told, ())
    wrong = about.wrong + ledger.wrong
    wrong += [f"the ledger's {name} is {found.ledger[name]}" for name in _DAMAGE if found.ledger.get(name)]
    if found.ended_by_itself:
        wrong.append("the service's process ended")
    if not told:
        wrong.append("no honest request was answered")
    wrong += [f"{line['attack']}: {text}" for line in found.attacks for text in line["examples"] if text[:3] == "500"]
    wrong += [f"{line['attack']} could not attack: {line['problem']}" for line in found.attacks if line["problem"]]
    unanswered = Counter(line["error"].partition(":")[0] for line in found.lines if "error" in line)
    return Promises(wrong, len(told), unanswered, about.failures, ledger.figures)


def times(found: Attacked, windows: Sequence[Window]) -> Times:
    """The times within windows."""

    def inside(at: float) -> bool:
        return any(begin <= at < end for begin, end in windows)

    took = [seconds for began, seconds in request_timings(found.lines) if inside(began)]
    lags = [one.took for one in found.probed if inside(one.at)]
    return Times(
        len(took),
        statistics.median(took) if took else math.nan,
        p99(took),
        max(took, default=math.nan),
        max(lags, default=math.nan),
        statistics.mean([busy for at, busy in found.others if inside(at)] or [math.nan]),
    )


def rows_of_times(found: Attacked) -> list[dict[str, Any]]:
    """A row for calm windows, one for attacked ones, and one for what the second is of the first."""
    calm, attacked = times(found, found.calm), times(found, found.attacked)
    rows: list[dict[str, Any]] = [
        {
            "windows": name,
            "honest requests": str(of.requests),
            "p50 s": of.p50,
            "p99 s": of.p99,
            "longest s": of.longest,
            "largest lag of /healthz s": of.largest_lag,
            "processors busy with other work": of.others,
        }
        for name, of in (("calm", calm), ("attacked", attacked))
    ]
    ratios = [b / a for a, b in zip(calm[1:], attacked[1:], strict=True)]
    rows.append(dict(zip(rows[0], ("times calm", "", *ratios), strict=True)))
    return rows


def ratio(found: Attacked) -> float:
    """The attacked 99th percentile over the calm one; the aim is below `TIMES_CALM`."""
    return times(found, found.attacked).p99 / times(found, found.calm).p99


def meets_aim(found: Attacked) -> bool:
    """Whether the ratio is below the aim."""
    return ratio(found) < TIMES_CALM


def rows_by_attack(found: Attacked) -> list[dict[str, Any]]:
    """A row for each kind of attack: its answers by class, and honest times while it ran, beside whatever else did."""
    rows = []
    for kind in sorted({line["attack"] for line in found.attacks}):
        own = [line for line in found.attacks if line["attack"] == kind]
        windows = [(line["began"], line["ended"]) for line in own]
        overlapped_work = times(found, windows)
        rows.append(
            {"attack": kind, "times": len(own), "rounds": sum(line["rounds"] for line in own)}
            | by_class(own)
            | {"honest p99 s": overlapped_work.p99, "largest lag s": overlapped_work.largest_lag}
        )
    return rows


def by_class(lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Answers by class of status. What hung up, waited or was cancelled by the end of its time had none."""
    answers: Counter[str] = Counter()
    for line in lines:
        answers.update(line["answers"])
    statuses = {name: number for name, number in answers.items() if name.isdecimal()}
    classes = {f"{n}xx": sum(v for name, v in statuses.items() if name[0] == str(n)) for n in (2, 4)}
    classes |= {name: statuses.get(name, 0) for name in ("500", "503")}
    others = sum(v for name, v in statuses.items() if name[0] == "5" and name not in ("500", "503"))
    rest = answers["no answer"] + answers["given up"]
    return classes | {"other 5xx": others, "no answer": rest}


def totals(lines: Lines) -> str:
    """All answers to attackers by status, in words."""
    answers: Counter[str] = Counter()
    for line in lines:
        answers.update(line["answers"])
    return ", ".join(f"{name} {number:,}" for name, number in sorted(answers.items()))
