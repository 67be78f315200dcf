"""`python -m benchmarks.peers`: Adjudge beside what people use today, on the same calls to the same server.

First what each costs around the model, over a server that answers at once; then what each makes of a server that goes
wrong; with `--real`, each over a real llama.cpp. Who is not installed is skipped, and the reason said.
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
"""When a call is given up where nothing goes wrong: never, so that nobody's own seconds count as the server's."""

DEADLINE_S = 60.0
DELAY_S = 0.02

COST_NOTES = (
    "medians (min..max) of the rounds; CPU s per 1,000 judgements: of the contender's own processes, for Adjudge its "
    "client and its service together; server's: of the server that all ask",
    f"p99 ms: a response's, from asking until all of its criteria are judged, {RESPONSES_AT_ONCE} responses under way",
    "the last two: judgements a second of Adjudge over the contender's, round by round",
)
WORK_NOTES = (
    "calls, prompt tokens computed and tokens written for each judgement; llama.cpp counts no calls",
    "second run: how many times as fast the same responses were judged again",
)
FAULT_NOTES = (
    "made up: a score where the server gave no verdict, or another one; lost: neither a score nor a failure came back",
    "of them again: calls that asked what had been asked before",
)


async def _scripted(given: argparse.Namespace, chosen: list[str] | None) -> None:
    judgements = given.responses * given.criteria
    async with scripted() as backend:
        terms = Terms(backend.root, given.criteria, given.in_flight, given.in_flight, PATIENT_S, DEADLINE_S)
        if "speed" in given.parts:
            turns = await speed(backend, _among(SPEED, chosen), terms, given.responses, given.repeat, whole=True)
            title = (
                f"Over a server that answers at once: {given.responses} responses of 2 KB x {given.criteria} criteria, "
                f"{given.in_flight} calls in flight, {given.repeat} rounds"
            )
            publish("peers_overhead", title, cost_rows(turns), COST_NOTES)
            publish("peers_work", "What that asked of the server", work_rows(turns), WORK_NOTES)
        if "faults" in given.parts:
            hasty = replace(terms, timeout_s=given.timeout)
            wrong = {"garbage": given.garbage, "hang": given.hang, "down_s": given.down, "delay_s": DELAY_S}
            fates = await faults(backend, _among(FAULTS, chosen), hasty, given.responses, **wrong)
            title = (
                f"Of {judgements} judgements, where {given.garbage:.0%} of the replies are garbage, {given.hang:.0%} "
                f"never come (timeout {given.timeout:g} s) and the server is away for {given.down:g} s in the middle"
            )
            publish("peers_faults", title, fault_rows(fates), FAULT_NOTES)


async def _real(given: argparse.Namespace, chosen: list[str] | None) -> None:
    async with llamacpp(given.model) as backend:
        terms = Terms(backend.root, given.criteria, SLOTS, 0, PATIENT_S, PATIENT_S * 6)
        turns = await speed(backend, _among(REAL, chosen), terms, given.real_responses, given.real_repeat, whole=False)
        title = (
            f"Over a llama.cpp server with four slots and {given.model}: {given.real_responses} responses of 2 KB x "
            f"{given.criteria} criteria, {given.real_repeat} rounds"
        )
        publish("peers_real", title, cost_rows(turns), COST_NOTES)
        publish("peers_real_work", "What that asked of the server", work_rows(turns), WORK_NOTES)


def _among(contenders: tuple[PeerConfig, ...], chosen: list[str] | None) -> list[PeerConfig]:
    return [one for one in contenders if chosen is None or one.module in chosen]


def main() -> None:
    """Run it; a table and a JSON file for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--criteria", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3, help="rounds over the scripted server")
    parser.add_argument("--in-flight", type=int, default=48, help="calls under way at the scripted server")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds until a call is given up, under faults")
    parser.add_argument("--garbage", type=float, default=0.02, help="share of unreadable replies")
    parser.add_argument("--hang", type=float, default=0.02, help="share of replies that never come")
    parser.add_argument("--down", type=float, default=1.0, help="seconds for which the server is away")
    parser.add_argument("--parts", nargs="*", default=["speed", "faults"], choices=["speed", "faults"])
    parser.add_argument("--real", action="store_true", help="also over a real model")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--real-responses", type=int, default=2)
    parser.add_argument("--real-repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="modules of benchmarks/peers/drivers; all unless given")
    given = parser.parse_args()
    if given.parts:
        asyncio.run(_scripted(given, given.only))
    if given.real:
        asyncio.run(_real(given, given.only))


if __name__ == "__main__":
    main()
