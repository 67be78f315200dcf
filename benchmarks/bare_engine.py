"""Adjudge against the engine it stands on: the same calls, through the service and straight to llama.cpp.

Both have the model loaded and take turns on fresh responses, so that each pair shares the machine's mood; the ratio is
taken pair by pair. The same run compares the prompt tokens that were computed with the ideal: the shared part of a
response once, each criterion once.
"""

import argparse
import asyncio
import json
import secrets
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.report import publish
from benchmarks.server import running_service
from judge_server.engines.llamacpp import GREEDY, TOP_TOKENS
from judge_server.engines.llamacpp_process import LlamaCppProcess
from judge_server.engines.llamacpp_tokens import ChatTokens
from judge_server.engines.weights import locate_weights
from judge_server.judging.plan import JudgeSetup, ResponsePlan, plan_response
from judge_server.prompts import PromptTemplates
from judge_server.prompts.fencing import Fence
from trainer_client import AsyncClient
from trainer_client.wire import Criterion, Group, Protocol, RubricContent

SECRET = secrets.token_hex(16)
CONTEXT = 8192
RUBRIC = RubricContent(
    criteria=(
        Criterion(id="answer", description="The final answer of the response equals the correct final answer."),
        Criterion(id="arithmetic", description="Every calculation in the response is carried out correctly."),
        Criterion(id="quantities", description="Every quantity given in the problem is used in the response."),
        Criterion(id="order", description="The calculations come in an order in which each uses only known values."),
        Criterion(id="units", description="The response says what the numbers it calculates stand for."),
        Criterion(id="concise", description="The response contains nothing that the problem does not ask for."),
    )
)


def groups(per_turn: int) -> Iterator[Group]:
    """Real problems with `per_turn` real rollouts each, in an endless round, marked so that no prompt recurs."""
    lines = Path("examples/gsm8k.jsonl").read_text(encoding="utf-8").splitlines()
    turn = 0
    while True:
        for line in lines:
            row = json.loads(line)
            turn += 1
            prompt = f"Problem {turn}. {row['prompt']}"
            yield Group.model_validate(row | {"prompt": prompt, "responses": row["responses"][:per_turn]})


class BareEngine:
    """llama.cpp alone, asked for the very tokens that Adjudge asks for."""

    def __init__(self, process: LlamaCppProcess, tokens: ChatTokens) -> None:
        self.process, self.tokens = process, tokens

    async def token_lists(self, plan: ResponsePlan) -> list[list[int]]:
        """The prompts of a plan as token ids."""
        prefix = await self.tokens.prefix(plan.batch)
        return [prefix + await self.tokens.question(call.question) for call in plan.batch.calls]

    async def ideal_tokens(self, plan: ResponsePlan) -> int:
        """The shared part once and each question once."""
        questions = [len(await self.tokens.question(call.question)) for call in plan.batch.calls]
        return len(await self.tokens.prefix(plan.batch)) + sum(questions)

    async def ask(self, prompts: list[list[int]]) -> None:
        """Ask each prompt in turn for one token with its probabilities."""
        for prompt in prompts:
            body = {"prompt": prompt, "n_predict": 1, "n_probs": TOP_TOKENS} | GREEDY
            (await self.process.http.post("/completion", json=body)).raise_for_status()


async def compare(model: str, url: str, pairs: int, per_turn: int) -> dict[str, Any]:
    """One row: rates, the ratio of every pair, tokens against the ideal."""
    weights = locate_weights(model)
    process = LlamaCppProcess(context_tokens=CONTEXT, threads=2)
    await process.start(weights.path)
    bare = BareEngine(process, await ChatTokens.load(process.http))
    setup, stepwise = _setup("binary"), _setup("stepwise")
    source = groups(per_turn)
    through, straight, computed, ideal = [], [], 0, 0
    judgements = per_turn * len(RUBRIC.criteria)
    try:
        async with AsyncClient(url, run="benchmark") as client:
            with Progress(transient=True) as bar:
                for pair in bar.track(range(pairs + 1), description=f"{model}: pairs"):
                    mine, its = next(source), next(source)
                    plans = [plan_response(setup, its, text, RUBRIC.criteria, None) for text in its.responses]
                    prompts = [await bare.token_lists(plan) for plan in plans]
                    sides = [("adjudge", mine), ("bare", its)]
                    for side, group in sides if pair % 2 else reversed(sides):
                        started = time.perf_counter()
                        if side == "adjudge":
                            answer = await client.rewards(groups=[group], rubric=RUBRIC, deadline_s=600)
                        else:
                            for prompt in prompts:
                                await bare.ask(prompt)
                        seconds = time.perf_counter() - started
                        tokens = await _group_tokens(bare, setup, group)
                        if pair:  # the first pair warms both up
                            (through if side == "adjudge" else straight).append(tokens / seconds)
                    if pair:
                        computed += answer.usage.prompt_tokens_computed
                        ideal += await _group_tokens(bare, setup, mine)
            group = next(source)
            answer = await client.rewards(groups=[group], rubric=RUBRIC, protocol="stepwise", deadline_s=600)
            stepwise_ratio = answer.usage.prompt_tokens_computed / await _group_tokens(bare, stepwise, group)
    finally:
        await process.stop()
    ratios = [a / b for a, b in zip(through, straight, strict=True)]
    per_judgement = ideal / (pairs * judgements)
    return {
        "model": model,
        "pairs": pairs,
        "judgements": pairs * judgements,
        "Adjudge /s": statistics.median(through) / per_judgement,
        "bare /s": statistics.median(straight) / per_judgement,
        "ratio": statistics.median(ratios),
        "ratio min": min(ratios),
        "ratio max": max(ratios),
        "tokens computed": computed,
        "over ideal": computed / ideal,
        "stepwise": stepwise_ratio,
    }


def _setup(protocol: Protocol) -> JudgeSetup:
    return JudgeSetup(protocol, PromptTemplates(protocol, Fence(SECRET.encode())), "benchmark")


async def _group_tokens(bare: BareEngine, setup: JudgeSetup, group: Group) -> int:
    plans = [plan_response(setup, group, text, RUBRIC.criteria, None) for text in group.responses]
    return sum([await bare.ideal_tokens(plan) for plan in plans])


def main() -> None:
    """Run it for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--responses", type=int, default=3, help="responses in a turn")
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models:
        with running_service(f"llamacpp://{model}?context={CONTEXT}", ADJUDGE_FENCE_SECRET=SECRET) as (url, _):
            rows.append(asyncio.run(compare(model, url, arguments.pairs, arguments.responses)))
    publish(
        "bare_engine",
        "Adjudge against bare llama.cpp on the same calls, in turns",
        rows,
        [
            "rates are medians over turns, normalised to the mean judgement's tokens, since turns differ in length;",
            "the ratio is Adjudge over bare, pair by pair: median, smallest, largest;",
            "over ideal: prompt tokens computed over the shared part once per response and each question once,",
            "for the binary protocol and, from one group, for stepwise",
        ],
    )


if __name__ == "__main__":
    main()
