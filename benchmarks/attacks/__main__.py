"""Two honest training runs at a service that attackers hold keys of, for half an hour: `make soak-attacks`.

Exit status 1 says that an honest reward was wrong, a row of the ledger missing or there twice, a 500 answered, or the
process gone. How fast honest requests were beside their calm time is reported; it counts for the exit status with
`--assert-latency` alone, since other work on the machine changes it too.
"""

import argparse
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.attacks.attacker import ATTACKS
from benchmarks.attacks.results import meets_aim, promises, ratio, rows_by_attack, rows_of_times, totals
from benchmarks.attacks.scenario import Attacked, Plan, attack
from benchmarks.report import publish
from benchmarks.soak.figures import TIMES_CALM
from benchmarks.soak.process_monitor import growth_rows

CYCLE_S, CALM_SHARE = 300.0, 0.2


def windows(minutes: float) -> list[tuple[float, float]]:
    """Cycles of about five minutes, a fifth of each calm."""
    cycles = max(1, round(minutes * 60 / CYCLE_S))
    cycle_s = minutes * 60 / cycles
    return [(CALM_SHARE * cycle_s, (1 - CALM_SHARE) * cycle_s)] * cycles


def report(found: Attacked, plan: Plan, minutes: float) -> list[str]:
    """Print the tables; what is wrong, in words."""
    held = promises(found)
    hosts = growth_rows(found.looks)
    if hosts:
        publish("attacks-memory", "Memory and open files under attack", hosts)
    publish("attacks-by-kind", "Attacks, their answers, and honest requests meanwhile", rows_by_attack(found))
    notes = [
        f"attackers were answered: {totals(found.attacks)}",
        f"p99 attacked / calm: {ratio(found):.2f}; the aim is below {TIMES_CALM:g}",
        f"honest requests answered {held.honest:,}; given up {dict(held.unanswered)}; failed verdicts "
        f"{dict(held.failures)}",
        f"ledger: {held.ledger}; state {found.ledger}",
        f"probes of /healthz {len(found.probed):,}, without a good answer "
        f"{sum(one.problem is not None for one in found.probed)}; tracebacks in the log {found.tracebacks}",
        *([] if found.small_disk else ["no file system could be mounted: the spool's disk was not filled"]),
        f"wrong: {len(held.wrong)}",
        *held.wrong[:20],
    ]
    publish("attacks", f"{minutes:g} minutes, seed {plan.seed}", rows_of_times(found), notes)
    return held.wrong


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="calm and attacked time together")
    parser.add_argument("--slot", type=float, default=10.0, help="seconds that one attack goes on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS), metavar="ATTACK")
    parser.add_argument("--keep", type=Path, help="folder for data and logs, which is kept")
    parser.add_argument("--assert-latency", action="store_true", help="fail where the aim for the p99 is missed")
    given = parser.parse_args()
    console = Console(stderr=True, width=160)
    begin = time.monotonic()
    failed: list[bool] = []

    def say(what: str) -> None:
        console.print(f"{time.monotonic() - begin:7.1f} s  {what}", highlight=False)

    plan = Plan(windows=windows(given.minutes), slot_s=given.slot, seed=given.seed, kinds=given.only)

    def check(found: Attacked) -> None:
        wrong = report(found, plan, given.minutes)
        failed.append(bool(wrong) or (given.assert_latency and not meets_aim(found)))

    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        attack(plan, folder, say, check)
    raise SystemExit(any(failed))


if __name__ == "__main__":
    main()
