"""`adjudge serve`, `adjudge api`, `adjudge judge` and `adjudge worker`: run a process.

- `serve`: the API and its judges in one process.
- `api`: the API without a model, in front of judges in other processes.
- `judge`: one engine, or a pool of them, and its queue, for the api processes of a deployment.
- `worker`: works on operations from a queue on Redis, by asking a service over HTTP.
"""

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated

import typer
from fastapi import FastAPI

from adjudge_services.cli.output import exit_with_error
from adjudge_services.http_server import bind_socket, serve_api, serve_app
from adjudge_services.judges import (
    build_engine,
    build_judge,
    load_judge,
    local_judges,
    remote_judges,
    wait_for_engine_failure,
)
from adjudge_services.process import configure_logging, log_startup, start_tracing
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
from judge_server.api.auth import is_loopback
from judge_server.errors import EngineStartError
from judge_server.prompts.fencing import Fence
from judge_server.remote import JudgeProcess, create_judge_app
from judge_server.scheduling.executor import LocalExecutor


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; off loopback requests need an API key.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL, for example llamacpp://qwen2.5-coder-0.5b.")] = None,
) -> None:
    """Serve the API and its judge until stopped. Other settings come from ADJUDGE_… variables."""
    settings = Settings.with_options(host=host, port=port, engine_url=engine)
    serve_api(settings, local_judges, settings.engine_url, process="adjudge")


def api(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; off loopback requests need an API key.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(help="URL of a judge process; may be repeated for processes with the same model."),
    ] = None,
) -> None:
    """Serve the API in front of `adjudge judge` processes. Any number of api processes may run side by side."""
    settings = Settings.with_options(host=host, port=port, judges=" ".join(judge) if judge else None)
    serve_api(settings, remote_judges, "judges in other processes", process="adjudge-api")


def build_judge_app(settings: Settings, *, on_failure: Callable[[str], None]) -> FastAPI:
    """Build the application of a judge process; its engine loads in the background.

    `on_failure` is called with the reason if the engine cannot be loaded or dies. Raises `ValueError` for an unknown
    engine.
    """
    token = settings.judge_token
    process = JudgeProcess(token.get_secret_value() if token else None, open_metrics=settings.metrics == "open")
    judge = build_judge(
        LocalExecutor(build_engine(settings), rules=settings.queue_rules), settings, Fence(settings.fencing_secret())
    )

    def set_problem(why: str) -> None:
        process.problem = why

    async def run() -> None:
        try:
            await load_judge(judge, set_problem)
        except EngineStartError as error:
            process.problem = str(error)
            on_failure(process.problem)
            return
        process.judge = judge
        on_failure(await wait_for_engine_failure([judge]))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await judge.close()

    return create_judge_app(process, lifespan)


PORT = 8001


def judge(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; off loopback ADJUDGE_JUDGE_TOKEN must be set.")
    ] = None,
    port: Annotated[int | None, typer.Option(help=f"Port to listen on, by default {PORT}; 0 takes a free one.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL, for example llamacpp://qwen2.5-coder-0.5b.")] = None,
) -> None:
    """Serve a judge to `adjudge api` processes until stopped. This is an internal service, not the API."""
    settings = Settings.with_options(host=host, port=port, engine_url=engine)
    if "port" not in settings.model_fields_set:
        settings = settings.model_copy(update={"port": PORT})
    if settings.judge_token is None and not is_loopback(settings.host):
        exit_with_error(
            f"refusing to listen on {settings.host} without ADJUDGE_JUDGE_TOKEN: any host there could use the "
            "judge. Set it to the same secret here and for `adjudge api`"
        )
    serve_app(
        settings,
        lambda failed: build_judge_app(settings, on_failure=failed),
        f"Adjudge judge with {settings.engine_url} on",
        process="adjudge-judge",
    )


def worker(
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Chunks to process at a time; each is a request to the service.")
    ] = 4,
    url: Annotated[str | None, typer.Option(help="Address of the service; by default ADJUDGE_URL.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port for /healthz, /readyz and /metrics; none by default, 0 takes a free one.")
    ] = None,
) -> None:
    """Process operations until stopped. Settings come from ADJUDGE_… variables, the queue from ADJUDGE_QUEUE_URL.

    A worker has no model. It asks the service at ADJUDGE_URL and stores results in ADJUDGE_DATABASE_URL. On SIGTERM or
    Ctrl-C it finishes the chunks in progress; if it is killed, other workers process them again.
    """
    settings = Settings.with_options(url=url, worker_port=port)
    if not settings.queue_url.startswith(("redis://", "rediss://")):
        exit_with_error("set ADJUDGE_QUEUE_URL to redis://HOST:PORT/DB; with memory:// the service needs no workers")
    configure_logging(settings)
    warnings.filterwarnings("ignore", module="celery.platforms")  # warns about running as root, as in a container
    from adjudge_services.worker import Worker

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="operations", daemon=True)
    try:
        listening = None if settings.worker_port is None else bind_socket(settings.host, settings.worker_port)
        asyncio.run(prepare_store(settings))
        send_last_spans = start_tracing("adjudge-worker")
        process = Worker(settings, loop, concurrency)
        thread.start()
        process.start(listening)
    except (StartError, ValueError) as error:
        exit_with_error(str(error))
    at = "" if listening is None else f"; probes on http://{settings.host}:{listening.getsockname()[1]}"
    log_startup(settings, f"Adjudge worker started, using {settings.url}{at}")
    try:
        code = process.serve()
    finally:
        process.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        send_last_spans()
    raise typer.Exit(code)
