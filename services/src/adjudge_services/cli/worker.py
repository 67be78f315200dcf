"""`adjudge worker`: works on operations that wait in a queue on Redis, by asking a service over HTTP."""

import asyncio
import threading
import warnings
from typing import Annotated

import typer

from adjudge_services.cli.listening import bind_socket
from adjudge_services.cli.output import exit_with_error
from adjudge_services.logs import configure_logging, log_startup
from adjudge_services.settings import Settings
from adjudge_services.tracing import start_tracing
from adjudge_services.wiring import StartError, prepare_store


def worker(
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Chunks in work at a time; each is a request to the service.")
    ] = 4,
    url: Annotated[str | None, typer.Option(help="The service's address.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port for /healthz, /readyz and /metrics; none unless set, 0 takes a free one.")
    ] = None,
) -> None:
    """Work on operations until stopped. Settings come from ADJUDGE_… variables; ADJUDGE_QUEUE_URL names the queue.

    A worker holds no model. It asks the service at ADJUDGE_URL, and keeps results in ADJUDGE_DATABASE_URL. Stopped
    with SIGTERM or Ctrl-C it ends what it has begun; killed, it loses nothing but that.
    """
    settings = Settings.with_options(url=url, worker_port=port)
    if not settings.queue_url.startswith(("redis://", "rediss://")):
        exit_with_error(
            "set ADJUDGE_QUEUE_URL to redis://HOST:PORT/DB; with memory:// the service does the work itself"
        )
    configure_logging(settings)
    warnings.filterwarnings("ignore", module="celery.platforms")  # that it runs as root, as in a container
    from adjudge_services.worker import Worker

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="operations", daemon=True)
    try:
        listening = None if settings.worker_port is None else bind_socket(settings.host, settings.worker_port)
        asyncio.run(prepare_store(settings))
        send_last_spans = start_tracing("adjudge-worker")
        working = Worker(settings, loop, concurrency)
        thread.start()
        working.start(listening)
    except (StartError, ValueError) as error:
        exit_with_error(str(error))
    at = "" if listening is None else f"; probes on http://{settings.host}:{listening.getsockname()[1]}"
    log_startup(settings, f"Adjudge works on operations, asking {settings.url}{at}")
    try:
        code = working.serve()
    finally:
        working.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        send_last_spans()
    raise typer.Exit(code)
