"""`python -m benchmarks.bare_engine`: compare Adjudge with its bare engine on the same calls.

Both have the model loaded and take turns on new responses, so that fluctuations of the machine affect both turns of a
pair; the ratio is computed per pair. The same run compares the computed prompt tokens with the ideal: the shared part
of a response once, each criterion once. An engine that is not available is skipped, with the reason.
"""

import argparse
import asyncio
import time
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks.bare_engine.engines import ENGINES, Contest, EngineUnavailable
from benchmarks.bare_engine.workload import RUBRIC, Pair, Prompts, batches, figures, groups
from benchmarks.report import publish
from benchmarks.server import running_service
from judge_server.ports import Batch
from trainer_client import AsyncClient
from trainer_client.wire import Group, JudgingProtocol, RewardAnswer

DEADLINE_S = 600.0
NOTES = (
    "rates are medians over turns, normalised to the mean judgement's tokens, since turns differ in length;",
    "the ratio is Adjudge over bare, pair by pair: median, smallest, largest;",
    "over ideal: prompt tokens computed, divided by the shared part once per response and each question once,",
    "for the binary protocol and, from one group, for stepwise (none if the judge named no step)",
)


async def measure(engine: str, model: str, in_flight: int, pairs: int, per_turn: int) -> dict[str, Any]:
    """Measure a row: rates, ratios of the pairs, tokens over the ideal. Raises `EngineUnavailable`."""
    async with ENGINES[engine].start(model, in_flight) as contest:
        with running_service(contest.engine_url, **contest.settings) as (url, _):
            async with AsyncClient(url, run="benchmark") as client:
                labels = {"model": model, "in flight": str(in_flight or "all")}
                return labels | await _compare(contest, client, f"{engine}, {model}", pairs, per_turn)


async def _compare(contest: Contest, client: AsyncClient, name: str, pairs: int, per_turn: int) -> dict[str, Any]:
    source, measured = groups(per_turn), []
    with Progress(transient=True) as bar:
        for number in bar.track(range(pairs + 1), description=f"{name}: pairs"):
            pair = await _pair(contest, client, next(source), next(source), through_first=number % 2 == 1)
            if number:  # the first pair warms both up
                measured.append(pair)
    group = next(source)
    answer = await _through(client, group, "stepwise")
    _, prompts = await _prepared(contest, group, "stepwise")
    stepwise = None if answer.usage.failed else answer.usage.prompt_tokens_computed / _ideal(prompts)
    return figures(measured, per_turn * len(RUBRIC.criteria)) | {"stepwise": stepwise}


async def _pair(contest: Contest, client: AsyncClient, mine: Group, its: Group, *, through_first: bool) -> Pair:
    bare_batches, prompts = await _prepared(contest, its)
    _, own_prompts = await _prepared(contest, mine)
    for through in (through_first, not through_first):
        started = time.perf_counter()
        if through:
            answer = await _through(client, mine)
            adjudge_s = time.perf_counter() - started
        else:
            await contest.bare.ask(bare_batches, prompts)
            bare_s = time.perf_counter() - started
    return Pair(adjudge_s, _ideal(own_prompts), answer.usage.prompt_tokens_computed, bare_s, _ideal(prompts))


async def _through(client: AsyncClient, group: Group, protocol: JudgingProtocol = "binary") -> RewardAnswer:
    answer = await client.rewards(
        groups=[group],
        rubric=RUBRIC,
        protocol=protocol,
        contextual_calibration=False,  # the bare engine is not asked about an empty response either
        deadline_s=DEADLINE_S,
    )
    if answer.usage.failed and protocol == "binary":
        reasons = {v.failure.detail for r in answer.groups[0].responses for v in r.verdicts if v.failure}
        raise RuntimeError(f"{answer.usage.failed} verdicts failed, so there is nothing to compare: {reasons.pop()}")
    return answer


async def _prepared(
    contest: Contest, group: Group, protocol: JudgingProtocol = "binary"
) -> tuple[list[Batch], list[Prompts]]:
    planned = batches(group, protocol)
    return planned, [await contest.bare.prepare(batch) for batch in planned]


def _ideal(prompts: list[Prompts]) -> int:
    return sum(response.ideal for response in prompts)


def main() -> None:
    """Run the benchmark for each engine and model; publish a table and a JSON file per engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["llamacpp", "llamacpp-server"], choices=list(ENGINES))
    parser.add_argument("--models", nargs="+", default=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    parser.add_argument("--in-flight", type=int, help="calls in flight at a server of the OpenAI chat API")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--responses", type=int, default=3, help="responses per turn")
    arguments = parser.parse_args()
    for engine in arguments.engines:
        rows = []
        contender = ENGINES[engine]
        in_flight = arguments.in_flight if arguments.in_flight and contender.server else contender.in_flight
        for model in arguments.models:
            try:
                rows.append(asyncio.run(measure(engine, model, in_flight, arguments.pairs, arguments.responses)))
            except EngineUnavailable as reason:
                Console().print(f"[bold yellow]SKIPPED[/] {engine} with {model}: {reason}", highlight=False)
        if rows:
            title = f"Adjudge against the bare engine on the same calls, in turns: {contender.title}"
            publish(f"bare_engine_{engine}", title, rows, NOTES)


if __name__ == "__main__":
    main()
