"""Two training runs and bulk work at a cluster of plain processes, with a kill, a hold or a partition every so often.

Two apis, two judges with a scripted engine, two workers, one PostgreSQL and one Redis, with a link on every way between
them; trainers find the apis behind one address. Every answer is compared with that of a service nobody disturbed, the
ledger with what was answered, operations with what is due, and memory and open files with what they were.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console

from benchmarks.report import publish
from benchmarks.soak import invariants
from benchmarks.soak.expected_answers import compare_answers, compute_expected
from benchmarks.soak.faults import FAULTS, judges_gone
from benchmarks.soak.figures import TIMES_CALM, between, by_kind, p99, request_timings
from benchmarks.soak.process_monitor import growth_rows
from benchmarks.soak.runner import Plan, SoakResult, soak
from benchmarks.soak.workload import AT_A_JUDGE


def checked(result: SoakResult, say: Console) -> tuple[list[str], list[str]]:
    """What is wrong, and what there was, in words."""
    told = [line for line in result.lines if "error" not in line]
    errors = Counter(line["error"].partition(":")[0] for line in result.lines if "error" in line)
    subjects = {line["subject"] for line in told} | {s for one in result.operations for s in one.submitted.subjects}
    say.print(f"asking a calm service about {len(subjects):,} groups")
    known = compute_expected(subjects)
    about = compare_answers(told, known)
    ledger = invariants.ledger(result.database, told, result.kills)
    operations = invariants.operations(
        result.database, result.operations, known, lost_calls=AT_A_JUDGE * judges_gone(result.faults)
    )
    violations = about.violations + ledger.violations + operations.violations + result.unwritten
    violations += [f"group {line['subject']}: {line['error']}" for line in result.lines if "error" in line]
    if operations.figures["operations"] == 0:
        violations.append("no operation was accepted")
    notes = [
        f"requests answered {len(told):,}; errors after all tries {dict(errors)}; failed {dict(about.failures)}",
        f"ledger: {ledger.figures}",
        f"operations: {operations.figures}; submissions refused after all tries: {len(result.refused)}",
    ]
    return violations, notes


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of faults")
    parser.add_argument("--every", type=float, default=30.0, help="seconds from one fault to the next")
    parser.add_argument("--hold", type=float, default=6.0, help="seconds that a fault lasts")
    parser.add_argument("--calm", type=float, default=60.0, help="seconds before the first fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--keep", type=Path, help="folder for data and logs, which is kept")
    given = parser.parse_args()
    console = Console(stderr=True, width=160)
    begin = time.monotonic()
    found: list[tuple[list[str], list[str]]] = []

    def say(what: str) -> None:
        console.print(f"{time.monotonic() - begin:7.1f} s  {what}", highlight=False)

    plan = Plan(
        faults=round(given.minutes * 60 / given.every),
        rest_s=given.every / 2,
        interval_s=given.every,
        hold_s=given.hold,
        calm_s=given.calm,
        seed=given.seed,
        kinds=given.only,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = soak(plan, folder, say, lambda result: found.append(checked(result, console)))
    ((violations, notes),) = found
    requests = request_timings(result.lines)
    calm = p99(between(requests, *result.calm))
    rows = by_kind(requests, result.faults, result.end, calm)
    soon, none_slow = (sum(row[name] for row in rows) for name in ("p99 as before then", "none slow after 10 s"))
    hosts = growth_rows(result.samples)
    more_mb = max(hosts, key=lambda row: row["MB, last quarter"] - row["MB, first quarter"])
    more_files = max(hosts, key=lambda row: row["files, last quarter"] - row["files, first quarter"])
    publish(
        "soak-memory",
        "Memory and open files under faults",
        hosts,
        [
            f"grown most, first to last quarter: {more_mb['host']} by "
            f"{more_mb['MB, last quarter'] - more_mb['MB, first quarter']:.1f} MB, {more_files['host']} by "
            f"{more_files['files, last quarter'] - more_files['files, first quarter']} files"
        ],
    )
    publish(
        "soak",
        f"{given.minutes:g} minutes with a fault every {given.every:g} s, at {plan.share:.0%} of "
        f"{result.capacity:,.0f} verdicts/s",
        rows,
        [
            f"p99 in the calm time: {calm:.2f} s; from 10 s after a fault on, it is below {TIMES_CALM:g} times that "
            f"after {soon} of {len(result.faults)}, and no request is slower after {none_slow}",
            *notes,
            f"wrong: {len(violations)}",
            *violations[:20],
        ],
    )
    raise SystemExit(bool(violations))


if __name__ == "__main__":
    main()
