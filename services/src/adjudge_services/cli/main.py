"""The command `adjudge`: its subcommands by name. Their modules are imported when they are invoked."""

from typing import Final

from adjudge_services.cli.lazy import CommandSource, lazy_app

COMMANDS: Final = {
    "serve": CommandSource(
        "adjudge_services.cli.operating.serving:serve",
        "Serve the API and its judge until stopped. Other settings come from ADJUDGE_… variables.",
    ),
    "api": CommandSource(
        "adjudge_services.cli.operating.serving:api",
        "Serve the API in front of `adjudge judge` processes. Any number of api processes may run side by side.",
    ),
    "judge": CommandSource(
        "adjudge_services.cli.operating.serving:judge",
        "Serve a judge to `adjudge api` processes until stopped. This is an internal service, not the API.",
    ),
    "worker": CommandSource(
        "adjudge_services.cli.operating.serving:worker",
        "Process operations until stopped. Settings come from ADJUDGE_… variables, the queue from ADJUDGE_QUEUE_URL.",
    ),
    "score": CommandSource("adjudge_services.cli.scoring.score:score", "Score every response in a file."),
    "measure": CommandSource(
        "adjudge_services.cli.measuring.measure:measure",
        "Measure responses: accuracy, pass@k, looping and diversity; with --rubric or --steps also a judge's verdicts.",
    ),
    "generate": CommandSource(
        "adjudge_services.cli.rubrics.generate:generate",
        "Have a model write a rubric for every input, and publish the rubrics that pass the checks.",
    ),
    "rows": CommandSource(
        "adjudge_services.cli.rubrics.generate:rows",
        "Write a run's splits as rows for a trainer: prompt, rubric, grounding, ground_truth and reference_answer.",
    ),
    "calibrate": CommandSource(
        "adjudge_services.cli.judges.calibrate:calibrate",
        "Fit a calibration on one half of a data set, measure it on the other, and store it as a new version.",
    ),
    "evaluate": CommandSource(
        "adjudge_services.cli.judges.evaluate:evaluate",
        "Measure a judge on labelled data: is it good enough, and what does it cost?",
    ),
    "bakeoff": CommandSource(
        "adjudge_services.cli.judges.bakeoff:bakeoff",
        "Compare judges, and ways of asking them, on labelled data: which is good enough, and what does it cost?",
    ),
    "attack": CommandSource(
        "adjudge_services.cli.judges.attack:attack",
        "Attack a judge: how many false accepts do attacks add, and which defences help?",
    ),
    "filter-easy": CommandSource(
        "adjudge_services.cli.scoring.score:filter_easy",
        "Rate the base policy's responses on a Likert scale, and keep the questions that it does not answer well.",
    ),
    "recompute": CommandSource(
        "adjudge_services.cli.scoring.recompute:recompute",
        "Recompute the rewards of a run from its recorded verdicts, without asking a judge.",
    ),
    "top": CommandSource(
        "adjudge_services.cli.operating.top:top",
        "Show a service's queue, rates and runs until Ctrl-C. Rates are averages over the update interval.",
    ),
    "doctor": CommandSource(
        "adjudge_services.cli.operating.doctor:doctor",
        "Check an installation part by part and say how to fix it. Exits with 1 if any part fails.",
    ),
    "backup": CommandSource(
        "adjudge_services.cli.operating.database:backup",
        "Copy the SQLite database to a file, as of one moment. Services may keep running.",
    ),
    "audit": CommandSource(
        "adjudge_services.cli.operating.projects:audit",
        "Show who changed rubrics, aliases, tags, keys, projects and limits, with the values before and after.",
    ),
    "migrate": CommandSource(
        "adjudge_services.cli.operating.database:app", "Upgrade, check or downgrade the database schema."
    ),
    "rubrics": CommandSource(
        "adjudge_services.cli.rubrics:app", "Manage rubrics: publish, find, compare, check, import and export them."
    ),
    "runs": CommandSource(
        "adjudge_services.cli.measuring.runs:app",
        "List training runs, the most recently judged first. `adjudge runs show RUN` shows one.",
    ),
    "ledger": CommandSource(
        "adjudge_services.cli.operating.database:ledger_app",
        "Purge the ledger, and handle rows that the database refused.",
    ),
    "keys": CommandSource("adjudge_services.cli.operating.projects:keys_app", "Create, list and revoke API keys."),
    "projects": CommandSource("adjudge_services.cli.operating.projects:app", "Create projects and set their limits."),
    "cascade": CommandSource(
        "adjudge_services.cli.judges.combined:cascade",
        "Fit the band in which a cascade asks its large judge, and show its agreement against its cost.",
    ),
    "panel": CommandSource(
        "adjudge_services.cli.judges.combined:panel",
        "Fit the error rates of a panel's judges by Dawid and Skene's model, and compare ways of combining them.",
    ),
    "calibrations": CommandSource(
        "adjudge_services.cli.judges.calibrate:app", "List, show and select stored calibrations."
    ),
    "judges": CommandSource("adjudge_services.cli.judges.compare:app", "Compare judges before you switch."),
    "models": CommandSource(
        "adjudge_services.cli.judges.models:app", "Fetch judge models, list them, print their paths."
    ),
    "operations": CommandSource(
        "adjudge_services.cli.operating.operations:app",
        "Run long work at a service: bulk scoring, rubric generation and validation, evaluation.",
    ),
    "templates": CommandSource("adjudge_services.cli.judges.templates:app", "Check, show and list prompt templates."),
}

app = lazy_app(
    COMMANDS,
    help="Judge responses by rubrics and turn the verdicts into rewards.",
    pretty_exceptions_show_locals=False,  # they include keys and texts
)
