"""`adjudge demo-run`: fill a made-up run in which a criterion is gamed, to look at in the console.

A script judges the run, and it is recorded like any other.
"""

import asyncio
from urllib.parse import urlencode

from adjudge_services.cli.output import exit_with_error, out


def demo_run() -> None:
    """Fill a made-up run in which a criterion is gamed, and a healthy one beside it, to look at in the console.

    No model is asked: a program plays the policy and another one the judge. The runs are demo/gamed and demo/healthy,
    in the database that ADJUDGE_DATABASE_URL or ADJUDGE_DATA_DIR names; a service on the same database shows them at
    once. Runs that are already there are left as they are.
    """
    from adjudge_services.cli.scoring.demo_run_work import DEMO_RUNS, fill_missing
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError
    from trainer_client import AdjudgeError

    settings = Settings()
    if settings.ledger == "off":
        exit_with_error("the ledger is off, so nothing would be kept; set ADJUDGE_LEDGER=all")
    out.print(
        "These runs are made up: a program plays the policy and another one the judge; no model is asked.",
        highlight=False,
        soft_wrap=True,
    )
    try:
        asyncio.run(fill_missing(settings))
    except (StartError, AdjudgeError, OSError) as error:
        exit_with_error(str(error))
    page = f"{settings.url.rstrip('/')}/console/run?{urlencode({'run': DEMO_RUNS[0].name})}"
    out.print(f"Open {page} in a service on this database; adjudge serve starts one.", highlight=False, soft_wrap=True)
