"""Where spans go: to an OTLP collector that the standard `OTEL_…` variables name, or nowhere.

The SDK and its exporter are the extra `adjudge[otel]`. What is sampled, how spans are batched, and what is added to
them are the SDK's variables too; this file only starts it.
"""

import os
from collections.abc import Callable, Mapping

from opentelemetry import trace

from trainer_client import __version__

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SUPPORTED_PROTOCOL = "http/protobuf"


def start_tracing(process: str, environment: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """Have spans exported where the environment asks for it; what sends the last ones, to be called at the end.

    `process` is the name that spans carry unless `OTEL_SERVICE_NAME` gives another.

    Raises:
        ValueError: the environment asks for what cannot be done; the message says what to change.
    """
    if not _tracing_requested(environment):
        return _no_op
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _SUPPORTED_PROTOCOL)
    if protocol != _SUPPORTED_PROTOCOL:
        raise ValueError(
            f"traces are sent by {_SUPPORTED_PROTOCOL} only; unset {' and '.join(_PROTOCOLS)}, or set them to {_SUPPORTED_PROTOCOL}"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ValueError(
            "OTEL_… variables ask for traces, and what exports them is not installed; install adjudge[otel], or unset "
            f"{', '.join(_ENDPOINTS)} and OTEL_TRACES_EXPORTER"
        ) from error
    service_name = {} if environment.get("OTEL_SERVICE_NAME") else {"service.name": process}
    provider = TracerProvider(resource=Resource.create({"service.version": __version__, **service_name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _tracing_requested(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter not in ("", "otlp", "none"):
        raise ValueError(f"OTEL_TRACES_EXPORTER is {exporter!r}; traces go to otlp, or nowhere with none")
    return exporter == "otlp" or (exporter == "" and any(environment.get(name) for name in _ENDPOINTS))


def _no_op() -> None:
    """Nothing is exported, so nothing is left to send."""
