"""Compare two judges behind one api with one judge: judgements per second, with a fixed time per call.

Each judge has a scripted engine that answers 16 responses at a time and takes 20 ms per call, so that one judge can
give 800 judgements a second, however slow the machine. Rounds with one and with two judges alternate.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx2
from rich.progress import track

from benchmarks.load import CRITERIA, judged, request, spread
from benchmarks.report import publish
from benchmarks.server import running_process

ENGINE = "scripted://hash?delay_s=0.02&concurrency=16"
RESPONSES, IN_FLIGHT = 8, 48
WARM_S = 1.0


@contextmanager
def api_with(judges: int) -> Iterator[str]:
    """Start an api and its judges; yield the api's URL when all are ready."""
    with ExitStack() as stack:
        started = [stack.enter_context(running_process("judge", "--engine", ENGINE)) for _ in range(judges)]
        options = [part for url, _ in started for part in ("--judge", url)]
        url, _ = stack.enter_context(running_process("api", *options, ADJUDGE_LEDGER="off"))
        yield url


async def judgements_per_second(url: str, seconds: float) -> float:
    """Measure the throughput while all senders are busy; the first and last requests do not count."""
    done = 0
    begin = time.perf_counter() + WARM_S
    async with httpx2.AsyncClient(base_url=url, timeout=120.0) as client:

        async def sender() -> None:
            nonlocal done
            while time.perf_counter() < begin + seconds + WARM_S:
                await judged(client, request(RESPONSES))
                now = time.perf_counter()
                done += RESPONSES * CRITERIA if begin <= now < begin + seconds else 0

        await asyncio.gather(*[sender() for _ in range(IN_FLIGHT)])
    return done / seconds


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of a round")
    options = parser.parse_args()
    rates: dict[int, list[float]] = {1: [], 2: []}
    with api_with(1) as one, api_with(2) as two:
        for _ in track(range(options.rounds), "rounds", transient=True):
            for judges, url in ((1, one), (2, two)):
                rates[judges].append(asyncio.run(judgements_per_second(url, options.seconds)))
    ratios = [b / a for a, b in zip(rates[1], rates[2], strict=True)]
    publish(
        "judges",
        "Judges behind one api, scripted engines of 800 judgements/s each",
        [{"judges": judges} | spread("judgements/s", values) for judges, values in rates.items()],
        notes=[
            f"two over one: {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f}), "
            f"{options.rounds} rounds of {options.seconds:g} s in turn, {IN_FLIGHT} requests of {RESPONSES} responses",
        ],
    )


if __name__ == "__main__":
    main()
