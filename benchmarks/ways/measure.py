"""Asking samples in one way, and the row of figures that comes of it."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.figures import agreement, auroc
from benchmarks.ways.samples import Sample
from trainer_client import AsyncClient
from trainer_client.wire import Protocol, Verdict, VerdictAnswer

SOME = 4
"""How many criteria share a call where it is neither one nor all."""

DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way of asking."""

    protocol: Protocol
    k: int | Literal["all"]
    rationale: bool

    def __str__(self) -> str:
        return f"{self.protocol}, {self.k} a call{', reasons first' if self.rationale else ''}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a way came to on samples: an answer for each, and the seconds that all took."""

    answers: tuple[VerdictAnswer, ...]
    seconds: float


def ways(protocols: Sequence[Protocol], most_criteria: int) -> Iterator[Way]:
    """Every way worth asking; `all` only where some rubric has more criteria than `SOME`."""
    sizes: list[int | Literal["all"]] = [1, SOME, "all"] if most_criteria > SOME else [1, SOME]
    for protocol in protocols:
        for rationale in (False, True):
            yield from (Way(protocol, k, rationale) for k in sizes)


async def ask(client: AsyncClient, samples: Sequence[Sample], way: Way, mark: str, done: Callable[[], None]) -> Asked:
    """Ask all samples at once. `mark` begins each prompt, so that no prefix is known from another way's."""

    async def one(sample: Sample) -> VerdictAnswer:
        group = {**sample.group, "prompt": f"{mark} {sample.group['prompt']}"}
        answer = await client.verdicts(
            [group],
            protocol=way.protocol,
            criteria_per_call=way.k,
            rationale=way.rationale,
            deadline_s=DEADLINE_S,
        )
        done()
        return answer

    started = time.perf_counter()
    answers = await asyncio.gather(*map(one, samples))
    return Asked(tuple(answers), time.perf_counter() - started)


def row(data: str, way: Way, samples: Sequence[Sample], asked: Asked) -> dict[str, Any]:
    """One row. Tokens are for each verdict asked for; the rate, agreement and AUROC are of those that did not fail."""
    pairs: list[tuple[Verdict, int]] = [
        (verdict, labels[verdict.criterion])
        for sample, answer in zip(samples, asked.answers, strict=True)
        for labels, response in zip(sample.labels, answer.groups[0].responses, strict=True)
        for verdict in response.verdicts
    ]
    given = [(verdict.score, label) for verdict, label in pairs if verdict.score is not None]
    likely = [(verdict.probability, label) for verdict, label in pairs if verdict.probability is not None]
    usage = [answer.usage for answer in asked.answers]
    observed = agreement([int(score >= 0.5) for score, _ in given], [label for _, label in given])[0] if given else None
    order = auroc([p for p, _ in likely], [label for _, label in likely]) if likely else math.nan
    return {
        "data set": data,
        "protocol": way.protocol,
        "k": str(way.k),
        "rationale": "yes" if way.rationale else "no",
        "verdicts": len(pairs),
        "failed": len(pairs) - len(given),
        "judgements/s": len(given) / asked.seconds,
        "computed": sum(u.prompt_tokens_computed for u in usage) / len(pairs),
        "reused": sum(u.prompt_tokens_reused for u in usage) / len(pairs),
        "written": sum(u.tokens_written for u in usage) / len(pairs),
        "yes, labels": sum(label for _, label in pairs) / len(pairs),
        "agreement": observed,
        "AUROC": None if math.isnan(order) else order,
    }
