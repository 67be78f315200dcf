"""Measure how many responses are scored completely under a deadline, in virtual time, so alike on every machine.

One run requests 2, 5 and 20 times the responses under 4 criteria that a judge of 4 calls at a time, 0.4 s each, can
judge within 3 seconds (28 calls). *Possible* is the number of responses that the verdicts would suffice for. The judge
is in the same process or behind an api. Its engine is the scripted one, or a server of the OpenAI API at the same
speed: vLLM, whose calls share their prefix if they arrive together, or another, where the first call about a response
is sent alone. In the rows *left out*, a call asks for two criteria, and every fourth answer omits one of them, which is
then asked separately.

Then a light run requests 4 responses under 12 criteria, one request after another, alone and beside a flood, from a
judge of 16 calls at a time, 20 ms each. This shows what finishing responses first costs other runs.
"""

import argparse
import asyncio
import statistics
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tests.fixtures.ports import unused_port
from tests.fixtures.virtual_time import run_in_virtual_time
from tests.judge_server import support
from tests.judge_server.remote.judges import api_of, judges

from benchmarks.peers.scripted_server import Faults, Server
from benchmarks.report import publish
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.ports import Batch, Call, Reply, TokenChoice
from judge_server.scheduling.admission import QueueRules
from judge_server.scoring.judge import Judge
from judge_server.scoring.scorer import Scorer
from trainer_client import wire

CRITERIA, GROUP = 4, 2
CALLS, CALL_S, DEADLINE_S = 4, 0.4, 3.0
POSSIBLE = int(DEADLINE_S / CALL_S) * CALLS // CRITERIA
"""Number of responses that can be scored if every call gives a verdict."""

LOADS = (2, 5, 20)
BESIDE_CALLS, BESIDE_CALL_S = 16, 0.02
QUEUE_CALLS = 1_000_000


def left_out(batch: Batch, call: Call) -> Reply:
    """Answer by hash, but give only the first verdict in every fourth answer about several criteria."""
    if isinstance(call.answer, TokenChoice) or zlib.crc32(f"{batch.shared}{call.question}".encode()) % 4:
        return by_hash(batch, call)
    return Reply(text='{"verdicts": [{"id": 1, "satisfied": true}]}')


def request(
    responses: int, *, per_call: int = 1, criteria: int = CRITERIA, run: str = "a", deadline_s: float = DEADLINE_S
) -> wire.RewardRequest:
    """Build a run's request, with the responses in groups of two."""
    groups = [
        {"id": f"g{place}", "prompt": "Prove it.", "responses": [f"Proof {place + n} of {run}." for n in range(GROUP)]}
        for place in range(0, responses, GROUP)
    ]
    rubric = {"criteria": [{"id": f"c{n}", "description": f"Part {n} of it holds."} for n in range(criteria)]}
    judging = {"criteria_per_call": per_call}
    return wire.RewardRequest.model_validate(
        {"run": run, "rubric": rubric, "groups": groups, "deadline_s": deadline_s, "judging": judging}
    )


@asynccontextmanager
async def judge_of(name: str, calls: int = CALLS, call_s: float = CALL_S) -> AsyncIterator[Judge]:
    """Start the judge with this name and yield it."""
    if name.startswith("OpenAI"):
        port = unused_port()
        server = Server(port, "vllm" if "vLLM" in name else "another")
        await server.listen()
        judge = await support.judge(
            OpenAIEngine(f"http://127.0.0.1:{port}/v1", concurrency=calls),  # type: ignore[arg-type]
            rules=QueueRules(calls=QUEUE_CALLS),
        )
        server.script.begin(Faults(delay_s=call_s))
        yield judge
        await judge.close()
        return
    engine = ScriptedEngine(left_out, delay_s=call_s, concurrent_batches=calls)
    if "pool" in name:
        half = partial(ScriptedEngine, left_out, delay_s=call_s, concurrent_batches=calls // 2)
        judge = await support.judge(EnginePool({"a": half, "b": half}), rules=QueueRules(calls=QUEUE_CALLS))  # type: ignore[arg-type]
        yield judge
        await judge.close()
        return
    if "api" in name:
        async with judges(engine, queue_calls=QUEUE_CALLS) as served, api_of(*served) as api:
            yield api
        return
    judge = await support.judge(engine, rules=QueueRules(calls=QUEUE_CALLS))
    yield judge
    await judge.close()


async def measure(name: str, load: int, per_call: int) -> dict[str, Any]:
    """Measure one row of the table."""
    responses = -(-POSSIBLE * load // GROUP) * GROUP
    async with judge_of(name) as judge:
        scorer = Scorer(judge, None)  # type: ignore[arg-type]  # the rubric is inline
        answer = await scorer.score(request(responses, per_call=per_call), request_id="", project_id="default")
    verdicts = [
        sum(verdict.failure is None for verdict in response.verdicts)
        for group in answer.groups
        for response in group.responses
    ]
    whole = [all(response.reward is not None for response in group.responses) for group in answer.groups]
    possible = sum(verdicts) // CRITERIA
    return {
        "judge": name,
        "answers": "whole" if per_call == 1 else "left out",
        "load": load,
        "responses": responses,
        "verdicts made": sum(verdicts),
        "possible": possible,
        "scored": sum(of_one == CRITERIA for of_one in verdicts),
        "begun": sum(0 < of_one < CRITERIA for of_one in verdicts),
        "groups possible": possible // GROUP,
        "groups whole": sum(whole),
    }


async def beside_a_flood(name: str) -> dict[str, Any]:
    """Measure the light run's median time per request, alone and beside the flood."""
    async with judge_of(name, BESIDE_CALLS, BESIDE_CALL_S) as judge:
        scorer, now = Scorer(judge, None), asyncio.get_running_loop().time  # type: ignore[arg-type]

        async def light(which: str) -> float:
            durations = []
            for number in range(10):
                began = now()
                scoring = request(4, criteria=12, run=f"light {which} {number}", deadline_s=600.0)
                await scorer.score(scoring.model_copy(update={"run": "light"}), request_id="", project_id="default")
                durations.append(now() - began)
            return statistics.median(durations) * 1000

        alone = await light("alone")
        heavy = request(1000, criteria=12, run="flood", deadline_s=600.0)
        flood = asyncio.create_task(scorer.score(heavy, request_id="", project_id="default"))
        await asyncio.sleep(0.5)
        beside = await light("beside")
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
    return {"judge": name, "alone, ms": alone, "beside a flood, ms": beside, "beside to alone": beside / alone}


def main() -> None:
    """Run the benchmark from the command line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    cases = [(name, 1) for name in ("serve", "api and judge", "OpenAI API, vLLM", "OpenAI API, another")]
    cases += [("serve", 2), ("api and judge", 2)]
    rows = [run_in_virtual_time(measure(name, load, per_call)) for name, per_call in cases for load in LOADS]
    publish("deadline_order", f"A run under a deadline that allows {POSSIBLE * CRITERIA} calls, in virtual time", rows)
    rows = [
        run_in_virtual_time(beside_a_flood(name))
        for name in ("serve", "pool of two", "OpenAI API, vLLM", "OpenAI API, another")
    ]
    publish("deadline_order_neighbours", "A light run alone and beside a flood, in virtual time", rows)


if __name__ == "__main__":
    main()
