"""All attackers, in one process: one to three attacks at a time, in an order determined by a seed.

Each kind of attack runs once before any runs again. The log has one line per run of an attack, with the answers it got.
The times to attack come from standard input, as one line of JSON: pairs of seconds since 1970.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import httpx2

from benchmarks.attacks.burners import NICE
from benchmarks.attacks.cases import CASES
from benchmarks.attacks.connections import CONNECTIONS
from benchmarks.attacks.console import CONSOLE
from benchmarks.attacks.formats import FORMATS
from benchmarks.attacks.fuzzing import FUZZING
from benchmarks.attacks.target import Attack, Target

ATTACKS: dict[str, Attack] = CASES | CONNECTIONS | CONSOLE | FORMATS | FUZZING
KEYS_VARIABLE = "ATTACKER_KEYS"
READY = "ready"
MOST_AT_A_TIME = 3
_PAUSE_S = 0.05


def order(seed: int, kinds: Sequence[str]) -> Iterator[list[str]]:
    """Yield the attacks to run together, endlessly."""
    draw = random.Random(seed)
    deck: list[str] = []
    while True:
        together: list[str] = []
        for _ in range(draw.randint(1, MOST_AT_A_TIME)):
            deck = deck or draw.sample(kinds, len(kinds))
            together.append(deck.pop())
        yield together


async def run_attack(kind: str, on: Target, until: float, log: TextIO) -> None:
    """Repeat an attack until a time in seconds since 1970, and log the answers it got."""
    began, rounds, problem = time.time(), 0, None
    try:
        async with asyncio.timeout(max(0.0, until - time.time())):
            while True:
                await ATTACKS[kind](on)
                rounds += 1
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        pass
    except Exception as error:  # noqa: BLE001 - a bug in one attack must not end the others
        problem = f"{type(error).__name__}: {error}"[:500]
    finally:
        await on.http.aclose()
    line = {"attack": kind, "began": began, "ended": time.time(), "rounds": rounds, "problem": problem}
    routes = sorted(" ".join(route) for route in on.routes)
    log.write(json.dumps(line | {"answers": on.counts, "examples": on.examples, "routes": routes}) + "\n")


async def attack(given: argparse.Namespace, keys: Sequence[str], log: TextIO) -> None:
    """Print `READY`, read the windows from standard input, and attack within them."""
    async with httpx2.AsyncClient(timeout=60.0) as http:
        document: dict[str, Any] = (await http.get(f"{given.url}/openapi.json")).json()
    print(READY, flush=True)
    windows: list[tuple[float, float]] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    schedule = order(given.seed, given.only)
    draw = random.Random(given.seed)
    for begin, end in windows:
        await asyncio.sleep(max(0.0, begin - time.time()))
        while time.time() < end:
            until = min(end, time.time() + given.slot)
            async with asyncio.TaskGroup() as tasks:
                for kind in next(schedule):
                    own = random.Random(draw.getrandbits(64))
                    on = Target(
                        given.url, own.choice(keys), own, document, spool=given.spool, small_disk=given.small_disk
                    )
                    tasks.create_task(run_attack(kind, on, until, log))


def main() -> None:
    """Run the attackers from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("log")
    parser.add_argument("--slot", type=float, required=True, help="duration of one attack in seconds")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", nargs="*", default=list(ATTACKS))
    parser.add_argument("--spool", type=Path)
    parser.add_argument("--small-disk", action="store_true")
    given = parser.parse_args()
    os.nice(NICE)  # real attackers have their own machines; here they share one with the service
    with open(given.log, "a", encoding="utf-8", buffering=1) as log:
        asyncio.run(attack(given, json.loads(os.environ[KEYS_VARIABLE]), log))


if __name__ == "__main__":
    main()
