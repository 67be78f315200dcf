"""`adjudge worker`: works on operations that wait in a queue on Redis, by asking a service over HTTP."""

import asyncio
import logging
import threading
import warnings
from typing import Annotated

import typer

from adjudge_services.cli.output import err, give_up
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store


def worker(
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Chunks in work at a time; each is a request to the service.")
    ] = 4,
    url: Annotated[str | None, typer.Option(help="The service's address.")] = None,
) -> None:
    """Work on operations until stopped. Settings come from ADJUDGE_… variables; ADJUDGE_QUEUE_URL names the queue.

    A worker holds no model. It asks the service at ADJUDGE_URL, and keeps results in ADJUDGE_DATABASE_URL. Stopped
    with SIGTERM or Ctrl-C it ends what it has begun; killed, it loses nothing but that.
    """
    settings = Settings.with_options(url=url)
    if not settings.queue_url.startswith(("redis://", "rediss://")):
        give_up("set ADJUDGE_QUEUE_URL to redis://HOST:PORT/DB; with memory:// the service does the work itself")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx2", "alembic", "celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="celery.platforms")  # that it runs as root, as in a container
    from adjudge_services.worker import Worker

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="operations", daemon=True)
    try:
        asyncio.run(prepare_store(settings))
        working = Worker(settings, loop)
        thread.start()
        working.start()
    except (StartError, ValueError) as error:
        give_up(str(error))
    err.print(f"Adjudge works on operations, asking {settings.url}", soft_wrap=True)
    try:
        code = working.serve(concurrency)
    finally:
        working.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    raise typer.Exit(code)
