"""Batches at the engine, as spans: what they took and what became of their calls; never a span for a single call."""

from collections import Counter
from collections.abc import AsyncIterator

from judge_server.ports import Batch, CallFailure, Engine, Reply
from judge_server.telemetry.spans import mark_span_failed, set_span_attributes, tracer

BatchOutcome = tuple[int, Reply | CallFailure]


def traced_answers(engine: Engine, batch: Batch) -> AsyncIterator[BatchOutcome]:
    """What the engine answers a batch; it goes through a span where spans are made, and else straight through."""
    return engine.answer(batch) if tracer() is None else _answer_in_span(engine, batch)


async def _answer_in_span(engine: Engine, batch: Batch) -> AsyncIterator[BatchOutcome]:
    active_tracer = tracer()
    assert active_tracer is not None
    engine_span = active_tracer.start_span("engine", attributes={"adjudge.calls": len(batch.calls)})
    computed = reused = written = replies = 0
    failures: Counter[str] = Counter()
    answer_stream = engine.answer(batch)
    try:
        async for place, outcome in answer_stream:
            if isinstance(outcome, CallFailure):
                failures[outcome.kind] += 1
            else:
                replies += 1
                computed += outcome.tokens_computed
                reused += outcome.tokens_reused
                written += outcome.tokens_written
            yield place, outcome
    except Exception as error:
        mark_span_failed(engine_span, type(error).__name__)
        raise
    finally:
        set_span_attributes(
            engine_span, replies=replies, tokens_computed=computed, tokens_reused=reused, tokens_written=written
        )
        set_span_attributes(engine_span, **{f"failed.{kind}": number for kind, number in failures.items()})
        if failures:
            mark_span_failed(engine_span, failures.most_common(1)[0][0])
        engine_span.end()
        if (close := getattr(answer_stream, "aclose", None)) is not None:
            await close()
