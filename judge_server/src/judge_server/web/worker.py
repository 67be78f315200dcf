"""The probes and the metrics of a worker, which serves nothing else. What they look at, the process says."""

from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector

from judge_server.errors import NotReady
from judge_server.metrics import OperationMetrics, metrics_page
from judge_server.telemetry.requests import FASTAPI_TELEMETRY_OFF
from judge_server.web import problems
from judge_server.web.boundary import BoundaryMiddleware

MAX_PROBE_BODY_BYTES = 1024
"""What a request may bring: nobody has anything to send here."""


def create_worker_app(
    metrics: OperationMetrics,
    checks: Callable[[], Awaitable[Mapping[str, bool]]],
    stalled: Callable[[], bool],
) -> FastAPI:
    """The application of a worker.

    Args:
        metrics: what it did.
        checks: what it needs, each part by itself, and whether it is there.
        deaf: whether it hears nothing of the work that waits for it; only a restart helps then.
    """
    app = FastAPI(
        title="Adjudge worker", docs_url=None, redoc_url=None, openapi_url=None, telemetry=FASTAPI_TELEMETRY_OFF
    )
    process = ProcessCollector(registry=CollectorRegistry())

    @app.get("/healthz")
    async def healthz() -> Response:
        if stalled():
            raise NotReady("work waits, and none of it is handed to this worker, which has room: restart it")
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        found = await checks()
        if away := [name for name, there in found.items() if not there]:
            raise NotReady(f"not ready: {', '.join(away)}", retry_after_s=2)
        return JSONResponse({"checks": dict(found)})

    @app.get("/metrics")
    async def page() -> Response:
        return Response(metrics_page({}, [metrics, process]), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    problems.install_problem_handlers(app)
    app.add_middleware(BoundaryMiddleware, max_body_bytes=MAX_PROBE_BODY_BYTES)
    return app
