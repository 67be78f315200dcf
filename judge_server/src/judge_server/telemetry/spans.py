"""Spans by OpenTelemetry's API: where a process exports none they cost about a microsecond each, and are nothing.

A span holds ids, counts and kinds of failures, and never a text. The SDK, what it exports and what it samples are the
process's business: see `adjudge_services.tracing`.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, Link, ProxyTracerProvider, Span, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from judge_server.errors import ServiceError

P = ParamSpec("P")
T = TypeVar("T")

TRACER_NAME = "adjudge"
_NO_SPAN = nullcontext(INVALID_SPAN)


def tracer() -> Tracer | None:
    """What makes spans; None where nobody takes them."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, ProxyTracerProvider) else provider.get_tracer(TRACER_NAME)


def span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, /, *, links: Sequence[Link] = (), **attributes: AttributeValue
) -> AbstractContextManager[Span]:
    """A span over the block, below the one that is current. Attributes are named `adjudge.…`.

    What the block raises marks it as failed, by its kind; being cancelled is no failure.
    """
    active_tracer = tracer()
    return _NO_SPAN if active_tracer is None else _start_span(active_tracer, name, kind, links, attributes)


def traced(name: str) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """A span over each call of a coroutine function."""

    def decorate(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(work)
        async def recorded(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return await work(*args, **kwargs)

        return recorded

    return decorate


def set_span_attributes(target_span: Span, /, **attributes: AttributeValue | None) -> None:
    """Add what is known only now; None is left out."""
    if target_span.is_recording():
        target_span.set_attributes(
            {f"adjudge.{name}": value for name, value in attributes.items() if value is not None}
        )


def mark_span_failed(target_span: Span, kind: str) -> None:
    """Mark a span as failed, by the kind of failure."""
    target_span.set_attribute("error.type", kind)
    target_span.set_status(StatusCode.ERROR, kind)


@contextmanager
def _start_span(
    active_tracer: Tracer, name: str, kind: SpanKind, links: Sequence[Link], attributes: dict[str, AttributeValue]
) -> Iterator[Span]:
    named = {f"adjudge.{key}": value for key, value in attributes.items()}
    with active_tracer.start_as_current_span(
        name, kind=kind, links=links, attributes=named, record_exception=False, set_status_on_exception=False
    ) as new_span:
        try:
            yield new_span
        except Exception as error:
            mark_span_failed(new_span, error.type if isinstance(error, ServiceError) else type(error).__name__)
            raise
