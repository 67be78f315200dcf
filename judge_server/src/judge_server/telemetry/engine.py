"""Batches at the engine, as spans: what they took and what became of their calls; never a span for a single call."""

from collections import Counter
from collections.abc import AsyncIterator

from judge_server.ports import Batch, CallFailed, Engine, Reply
from judge_server.telemetry.spans import failed, note, tracer

Outcome = tuple[int, Reply | CallFailed]


def answers(engine: Engine, batch: Batch) -> AsyncIterator[Outcome]:
    """What the engine answers a batch; it goes through a span where spans are made, and else straight through."""
    return engine.answer(batch) if tracer() is None else _observed(engine, batch)


async def _observed(engine: Engine, batch: Batch) -> AsyncIterator[Outcome]:
    makes = tracer()
    assert makes is not None
    at = makes.start_span("engine", attributes={"adjudge.calls": len(batch.calls)})
    computed = reused = written = replies = 0
    failures: Counter[str] = Counter()
    answering = engine.answer(batch)
    try:
        async for place, outcome in answering:
            if isinstance(outcome, CallFailed):
                failures[outcome.kind] += 1
            else:
                replies += 1
                computed += outcome.tokens_computed
                reused += outcome.tokens_reused
                written += outcome.tokens_written
            yield place, outcome
    except Exception as error:
        failed(at, type(error).__name__)
        raise
    finally:
        note(at, replies=replies, tokens_computed=computed, tokens_reused=reused, tokens_written=written)
        note(at, **{f"failed.{kind}": number for kind, number in failures.items()})
        if failures:
            failed(at, failures.most_common(1)[0][0])
        at.end()
        if (close := getattr(answering, "aclose", None)) is not None:
            await close()
