"""Judge samples with one configuration, and compute its row of figures."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.figures import agreement, auroc
from benchmarks.judging_configs.samples import Sample
from trainer_client import AsyncClient
from trainer_client.wire import JudgingProtocol, Verdict, VerdictAnswer

SOME = 4
"""The number of criteria per call besides one and all."""

DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class CallConfig:
    """One configuration: protocol, criteria per call, and whether the judge gives reasons first."""

    protocol: JudgingProtocol
    k: int | Literal["all"]
    rationale: bool

    def __str__(self) -> str:
        return f"{self.protocol}, {self.k} a call{', reasons first' if self.rationale else ''}"


@dataclass(frozen=True, slots=True)
class ConfigAnswers:
    """The answers to the samples under one configuration, and the seconds for all of them."""

    answers: tuple[VerdictAnswer, ...]
    seconds: float


def call_configs(protocols: Sequence[JudgingProtocol], most_criteria: int) -> Iterator[CallConfig]:
    """Yield the configurations to measure; `all` only if a rubric has more criteria than `SOME`."""
    sizes: list[int | Literal["all"]] = [1, SOME, "all"] if most_criteria > SOME else [1, SOME]
    for protocol in protocols:
        for rationale in (False, True):
            yield from (CallConfig(protocol, k, rationale) for k in sizes)


async def ask(
    client: AsyncClient, samples: Sequence[Sample], config: CallConfig, mark: str, done: Callable[[], None]
) -> ConfigAnswers:
    """Judge all samples at once. `mark` starts each prompt, so that configurations do not share cached prefixes."""

    async def one(sample: Sample) -> VerdictAnswer:
        group = {**sample.group, "prompt": f"{mark} {sample.group['prompt']}"}
        answer = await client.verdicts(
            [group],
            protocol=config.protocol,
            criteria_per_call=config.k,
            rationale=config.rationale,
            deadline_s=DEADLINE_S,
        )
        done()
        return answer

    started = time.perf_counter()
    answers = await asyncio.gather(*map(one, samples))
    return ConfigAnswers(tuple(answers), time.perf_counter() - started)


def row(data: str, config: CallConfig, samples: Sequence[Sample], results: ConfigAnswers) -> dict[str, Any]:
    """Compute a row. Tokens are per requested verdict; rate, agreement and AUROC are over successful verdicts."""
    pairs: list[tuple[Verdict, int]] = [
        (verdict, labels[verdict.criterion])
        for sample, answer in zip(samples, results.answers, strict=True)
        for labels, response in zip(sample.labels, answer.groups[0].responses, strict=True)
        for verdict in response.verdicts
    ]
    scored = [(verdict.score, label) for verdict, label in pairs if verdict.score is not None]
    probable = [(verdict.probability, label) for verdict, label in pairs if verdict.probability is not None]
    usage = [answer.usage for answer in results.answers]
    observed = (
        agreement([int(score >= 0.5) for score, _ in scored], [label for _, label in scored])[0] if scored else None
    )
    order = auroc([p for p, _ in probable], [label for _, label in probable]) if probable else math.nan
    return {
        "data set": data,
        "protocol": config.protocol,
        "k": str(config.k),
        "rationale": "yes" if config.rationale else "no",
        "verdicts": len(pairs),
        "failed": len(pairs) - len(scored),
        "judgements/s": len(scored) / results.seconds,
        "computed": sum(u.prompt_tokens_computed for u in usage) / len(pairs),
        "reused": sum(u.prompt_tokens_reused for u in usage) / len(pairs),
        "written": sum(u.tokens_written for u in usage) / len(pairs),
        "yes, labels": sum(label for _, label in pairs) / len(pairs),
        "agreement": observed,
        "AUROC": None if math.isnan(order) else order,
    }
