"""`python -m benchmarks.peers`: compare Adjudge with other tools on the same calls to the same server.

First, the overhead around the model, with a server that answers immediately; then the behaviour with a faulty server;
with `--real`, the speed with a real llama.cpp. Tools that are not installed are skipped, with the reason.
"""

import argparse
import asyncio
from dataclasses import replace

from benchmarks.peers.backends import SLOTS, llamacpp, scripted
from benchmarks.peers.contenders import FAULTS, REAL, SPEED, PeerConfig, Terms
from benchmarks.peers.driving import RESPONSES_AT_ONCE
from benchmarks.peers.rounds import faults, speed
from benchmarks.peers.tables import cost_rows, fault_rows, work_rows
from benchmarks.report import publish

MODEL = "qwen2.5-coder-0.5b"
PATIENT_S = 600.0
"""Timeout of a call without faults: practically none, so that a client's own delays do not count as timeouts."""

DEADLINE_S = 60.0
DELAY_S = 0.02

COST_NOTES = (
    "medians (min..max) of the rounds; CPU s per 1,000 judgements: of the contender's own processes, for Adjudge its "
    "client and its service together; server's: of the shared server",
    f"p99 ms: of a response, until all of its criteria are judged, with {RESPONSES_AT_ONCE} responses in flight",
    "the last two: judgements per second of Adjudge divided by the contender's, round by round",
)
WORK_NOTES = (
    "calls, prompt tokens computed and tokens written per judgement; llama.cpp does not count calls",
    "second run: the speedup when the same responses are judged again",
)
FAULT_NOTES = (
    "made up: a score without a verdict of the server, or that differs from it; lost: neither a score nor a failure",
    "retries: calls that repeat an earlier one",
)


async def _scripted(given: argparse.Namespace, chosen: list[str] | None) -> None:
    judgements = given.responses * given.criteria
    async with scripted() as backend:
        terms = Terms(backend.root, given.criteria, given.in_flight, given.in_flight, PATIENT_S, DEADLINE_S)
        if "speed" in given.parts:
            turns = await speed(backend, _among(SPEED, chosen), terms, given.responses, given.repeat, whole=True)
            title = (
                f"With an immediate server: {given.responses} responses of 2 KB x {given.criteria} criteria, "
                f"{given.in_flight} calls in flight, {given.repeat} rounds"
            )
            publish("peers_overhead", title, cost_rows(turns), COST_NOTES)
            publish("peers_work", "The server's work for that", work_rows(turns), WORK_NOTES)
        if "faults" in given.parts:
            strict = replace(terms, timeout_s=given.timeout)
            wrong = {"garbage": given.garbage, "hang": given.hang, "down_s": given.down, "delay_s": DELAY_S}
            results = await faults(backend, _among(FAULTS, chosen), strict, given.responses, **wrong)
            title = (
                f"{judgements} judgements; {given.garbage:.0%} of the replies are garbage, {given.hang:.0%} never "
                f"arrive (timeout {given.timeout:g} s), and the server is down for {given.down:g} s in the middle"
            )
            publish("peers_faults", title, fault_rows(results), FAULT_NOTES)


async def _real(given: argparse.Namespace, chosen: list[str] | None) -> None:
    async with llamacpp(given.model) as backend:
        terms = Terms(backend.root, given.criteria, SLOTS, 0, PATIENT_S, PATIENT_S * 6)
        turns = await speed(backend, _among(REAL, chosen), terms, given.real_responses, given.real_repeat, whole=False)
        title = (
            f"With a llama.cpp server with four slots and {given.model}: {given.real_responses} responses of 2 KB x "
            f"{given.criteria} criteria, {given.real_repeat} rounds"
        )
        publish("peers_real", title, cost_rows(turns), COST_NOTES)
        publish("peers_real_work", "The server's work for that", work_rows(turns), WORK_NOTES)


def _among(contenders: tuple[PeerConfig, ...], chosen: list[str] | None) -> list[PeerConfig]:
    return [one for one in contenders if chosen is None or one.module in chosen]


def main() -> None:
    """Run the benchmark from the command line; publish a table and a JSON file per part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--criteria", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3, help="rounds with the scripted server")
    parser.add_argument("--in-flight", type=int, default=48, help="calls in flight at the scripted server")
    parser.add_argument("--timeout", type=float, default=5.0, help="timeout of a call in seconds, with faults")
    parser.add_argument("--garbage", type=float, default=0.02, help="share of unreadable replies")
    parser.add_argument("--hang", type=float, default=0.02, help="share of replies that never arrive")
    parser.add_argument("--down", type=float, default=1.0, help="seconds for which the server is down")
    parser.add_argument("--parts", nargs="*", default=["speed", "faults"], choices=["speed", "faults"])
    parser.add_argument("--real", action="store_true", help="also measure with a real model")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--real-responses", type=int, default=2)
    parser.add_argument("--real-repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="modules of benchmarks/peers/drivers; default: all")
    given = parser.parse_args()
    if given.parts:
        asyncio.run(_scripted(given, given.only))
    if given.real:
        asyncio.run(_real(given, given.only))


if __name__ == "__main__":
    main()
