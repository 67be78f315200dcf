"""The options of the commands that run processes and look after them, and their help."""

from pathlib import Path
from typing import Annotated

import typer

from adjudge_services.cli.options import (
    DEFAULT_PROJECT,
    JsonOption,
    JudgeOption,
    JudgingProtocol,
    ModeOption,
    RankingSchedule,
    RubricOption,
    copy_input,
    implemented_by,
    input_argument,
)

JUDGE_PORT = 8001
SCOPES = ("read", "score", "rubrics:write", "labels:write", "projects:write", "metrics", "admin")


@implemented_by("adjudge_services.cli.operating.serving:serve")
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; off loopback requests need an API key.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL, for example llamacpp://qwen2.5-coder-0.5b.")] = None,
) -> None:
    """Serve the API and its judge until stopped. Other settings come from ADJUDGE_… variables."""


@implemented_by("adjudge_services.cli.operating.serving:api")
def api(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; off loopback requests need an API key.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(help="URL of a judge process; may be repeated for processes with the same model."),
    ] = None,
) -> None:
    """Serve the API in front of `adjudge judge` processes. Any number of api processes may run side by side."""


@implemented_by("adjudge_services.cli.operating.serving:judge")
def judge(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; off loopback ADJUDGE_JUDGE_TOKEN must be set.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"Port to listen on, by default {JUDGE_PORT}; 0 takes a free one."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL, for example llamacpp://qwen2.5-coder-0.5b.")] = None,
) -> None:
    """Serve a judge to `adjudge api` processes until stopped. This is an internal service, not the API."""


@implemented_by("adjudge_services.cli.operating.serving:worker")
def worker(
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Chunks to process at a time; each is a request to the service.")
    ] = 4,
    url: Annotated[str | None, typer.Option(help="Address of the service; by default ADJUDGE_URL.")] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port for /healthz, /readyz and /metrics; none by default, 0 takes a free one."
        ),
    ] = None,
) -> None:
    """Process operations until stopped. Settings come from ADJUDGE_… variables, the queue from ADJUDGE_QUEUE_URL.

    A worker has no model. It asks the service at ADJUDGE_URL and stores results in ADJUDGE_DATABASE_URL. On SIGTERM or
    Ctrl-C it finishes the chunks in progress; if it is killed, other workers process them again.
    """


@implemented_by("adjudge_services.cli.operating.doctor:doctor")
def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            help="URL of an engine, or of a server of the OpenAI API, to check in place of the installation."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check an installation part by part and say how to fix it. Exits with 1 if any part fails.

    If ADJUDGE_JUDGES is set, those judges are checked; otherwise the engine of this host is loaded and checked.

    With a URL, print what was found out about the engine there and what is done about each gap. Exits with 1 if it
    cannot judge. The key is ADJUDGE_ENGINE_API_KEY.
    """


@implemented_by("adjudge_services.cli.operating.top:top")
def top(
    url: Annotated[str, typer.Argument(help="Address of the service.", envvar="ADJUDGE_URL")] = "http://127.0.0.1:8000",
    once: Annotated[bool, typer.Option("--once", help="Show the totals since the service started, and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between updates.")] = 2.0,
) -> None:
    """Show a service's queue, rates and runs until Ctrl-C. Rates are averages over the update interval.

    If the service's metrics need a key, set it as ADJUDGE_API_KEY.
    """


ServiceUrlOption = Annotated[str | None, typer.Option("--url", help="Address of the service; by default ADJUDGE_URL.")]
OperationIdArgument = Annotated[str, typer.Argument(help="The operation's id.", metavar="ID")]


operations_app = typer.Typer(
    help="Run long work at a service: bulk scoring, rubric generation and validation, evaluation.", no_args_is_help=True
)


@operations_app.command("submit")
@implemented_by("adjudge_services.cli.operating.operations:submit")
def operations_submit(
    kind: Annotated[
        str,
        typer.Argument(help="score, evaluate_judge, discriminate_rubrics, generate_rubrics or validate_rubrics."),
    ],
    file: Annotated[Path | None, input_argument("JSONL with an input per line.", metavar="INPUT")] = None,
    options: Annotated[
        str, typer.Option(help="Other fields of the request, as JSON: rubric, reward, judging, run, generator, …")
    ] = "{}",
    rubric: Annotated[str | None, typer.Option(help="Reference of the rubric.")] = None,
    run: Annotated[str | None, typer.Option(help="Run to account the work to.")] = None,
    watch_it: Annotated[bool, typer.Option("--watch", help="Follow the operation until it ends.")] = False,
    url: ServiceUrlOption = None,
) -> None:
    """Submit an operation and print its id."""


@operations_app.command("list")
@implemented_by("adjudge_services.cli.operating.operations:list_operations")
def operations_list(as_json: JsonOption = False, url: ServiceUrlOption = None) -> None:
    """List the newest operations."""


@operations_app.command("show")
@implemented_by("adjudge_services.cli.operating.operations:show")
def operations_show(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Print an operation and its progress as JSON."""


@operations_app.command("watch")
@implemented_by("adjudge_services.cli.operating.operations:watch")
def operations_watch(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Follow an operation until it ends; exit with 1 if it fails or is cancelled."""


@operations_app.command("results")
@implemented_by("adjudge_services.cli.operating.operations:results")
def operations_results(
    id_: OperationIdArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the results; by default standard output.")
    ] = None,
    url: ServiceUrlOption = None,
) -> None:
    """Write an operation's results so far as JSONL, in order of creation."""


@operations_app.command("cancel")
@implemented_by("adjudge_services.cli.operating.operations:cancel")
def operations_cancel(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Cancel an operation; results so far are kept."""


@operations_app.command("retry")
@implemented_by("adjudge_services.cli.operating.operations:retry")
def operations_retry(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Continue an operation that failed or was cancelled."""


@operations_app.command("purge")
@implemented_by("adjudge_services.cli.operating.operations:purge")
def operations_purge() -> None:
    """Delete expired operations from the database. Services and workers also do so every hour."""


migrate_app = typer.Typer(help="Upgrade, check or downgrade the database schema.", invoke_without_command=True)


@migrate_app.callback()
@implemented_by("adjudge_services.cli.operating.database:migrate")
def migrate(context: typer.Context) -> None:
    """Upgrade the database schema. SQLite is also upgraded when a process starts; PostgreSQL only by this command."""


@migrate_app.command("check")
@implemented_by("adjudge_services.cli.operating.database:check")
def migrate_check(
    as_json: JsonOption = False,
    with_contents: Annotated[
        bool,
        typer.Option("--contents", help="Also read all rubrics and the ledger and check them, as after a restore."),
    ] = False,
) -> None:
    """Show the schema status, what a migration would do, and what a downgrade would lose. Changes nothing.

    Exits with 0 if this version runs on the database as it is, 1 if a migration is pending, and 2 if this version
    cannot run on it or the contents have problems.
    """


@migrate_app.command("down")
@implemented_by("adjudge_services.cli.operating.database:down")
def migrate_down(
    revision: Annotated[str, typer.Argument(help="The revision to downgrade to; base: before the first.")],
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the downgrade and its loss of data.")] = False,
) -> None:
    """Downgrade the schema to an older revision. Data of newer revisions is lost; without --yes it is only listed.

    Processes of this version cannot run on an older schema: replace them with older ones first.
    """


@implemented_by("adjudge_services.cli.operating.database:backup")
def backup(file: Annotated[Path, typer.Argument(help="The copy to write; the file must not exist.")]) -> None:
    """Copy the SQLite database to a file, as of one moment. Services may keep running.

    For PostgreSQL use pg_dump; docs/backup.md describes that and what else to back up.
    """


ledger_app = typer.Typer(help="Purge the ledger, and handle rows that the database refused.", no_args_is_help=True)


@ledger_app.callback()
def ledger() -> None:
    """Purge the ledger, and handle rows that the database refused."""


@ledger_app.command("purge")
@implemented_by("adjudge_services.cli.operating.database:purge")
def ledger_purge(
    run: Annotated[str | None, typer.Option(help="Delete this run; '' for requests without a run.")] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, help="Delete requests older than this many days.")
    ] = None,
    project: Annotated[str, typer.Option(help="The project to delete from.")] = DEFAULT_PROJECT,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete recorded requests by run, by age, or by both, and then unreferenced verdicts and texts.

    Stop a run before you delete it: rows that a service still has in its spool are written afterwards.
    """


@ledger_app.command("refused")
@implemented_by("adjudge_services.cli.operating.database:refused")
def ledger_refused(as_json: JsonOption = False) -> None:
    """List the rows that the database refused, and why. They are kept in the data folder.

    Each line is a request, or a spool file that cannot be read.
    """


@ledger_app.command("retry")
@implemented_by("adjudge_services.cli.operating.database:retry")
def ledger_retry(
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, as `adjudge ledger refused` lists them; by default all.")
    ] = None,
) -> None:
    """Write refused rows to the database again, as after an upgrade. Rows that are still refused are kept.

    Exits with 1 if any row is still refused.
    """


WeightOption = Annotated[str | None, typer.Option(help="Weight of the project's share of the judge; 1 by default.")]
RequestsPerMinuteOption = Annotated[
    str | None, typer.Option(help="Limit of requests per minute per API process; none removes it.")
]
TokensPerDayOption = Annotated[
    str | None, typer.Option(help="Limit of prompt tokens computed per day (UTC); none removes it.")
]
TokensTotalOption = Annotated[
    str | None, typer.Option(help="Limit of prompt tokens computed in total; none removes it.")
]


projects_app = typer.Typer(help="Create projects and set their limits.", no_args_is_help=True)


@projects_app.command("create")
@implemented_by("adjudge_services.cli.operating.projects:create")
def projects_create(
    name: Annotated[str, typer.Argument(help="Name of the project, for example team-b.")],
    weight: WeightOption = None,
    requests_per_minute: RequestsPerMinuteOption = None,
    tokens_per_day: TokensPerDayOption = None,
    tokens_total: TokensTotalOption = None,
) -> None:
    """Create a project. It sees only its own rubrics, runs and verdicts."""


@projects_app.command("limits")
@implemented_by("adjudge_services.cli.operating.projects:limits")
def projects_limits(
    name: Annotated[str, typer.Argument(help="The project.")],
    weight: WeightOption = None,
    requests_per_minute: RequestsPerMinuteOption = None,
    tokens_per_day: TokensPerDayOption = None,
    tokens_total: TokensTotalOption = None,
) -> None:
    """Change limits of a project; limits that are not given stay. Services apply them within five seconds."""


@projects_app.command("list")
@implemented_by("adjudge_services.cli.operating.projects:list_projects")
def projects_list(as_json: JsonOption = False) -> None:
    """List projects with their limits and the prompt tokens computed for them, today and in total."""


keys_app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)


@keys_app.command("create")
@implemented_by("adjudge_services.cli.operating.projects:create_key")
def keys_create(
    scopes: Annotated[
        list[str] | None, typer.Option("--scope", help=f"What the key permits: {', '.join(SCOPES)}; may be repeated.")
    ] = None,
    project: Annotated[str, typer.Option(help="The key's project.")] = DEFAULT_PROJECT,
    label: Annotated[str, typer.Option(help="A label to recognise the key by.")] = "",
    expires_in: Annotated[
        float | None,
        typer.Option("--expires-in", min=0.001, max=36500, help="Days until the key expires; never by default."),
    ] = None,
) -> None:
    """Create a key and print it on standard output. It is shown only once: the database keeps only its digest."""


@keys_app.command("list")
@implemented_by("adjudge_services.cli.operating.projects:list_keys")
def keys_list(
    project: Annotated[str | None, typer.Option(help="Only keys of this project.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Include revoked and expired keys.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List keys. Their secrets are not stored and cannot be shown."""


@keys_app.command("revoke")
@implemented_by("adjudge_services.cli.operating.projects:revoke")
def keys_revoke(key: Annotated[str, typer.Argument(help="The key's id, as `adjudge keys list` shows it.")]) -> None:
    """Revoke a key permanently. Services apply it within five seconds."""


@implemented_by("adjudge_services.cli.operating.projects:audit")
def audit(
    project: Annotated[str | None, typer.Option(help="Only this project's changes.")] = None,
    subject: Annotated[
        str | None,
        typer.Option(help="Only changes of this subject: math/quadratics@production, a key's id, a project."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of changes to show, newest first.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show who changed rubrics, aliases, tags, keys, projects and limits, with the values before and after."""


@implemented_by("adjudge_services.cli.operating.plan:plan")
def plan(
    file: Annotated[
        str,
        typer.Argument(
            help="A sample with a group per row (prompt, responses, …), as JSONL, CSV or Parquet: a path, a URL, or - "
            "for JSONL on standard input.",
            callback=copy_input,
        ),
    ],
    rubric: RubricOption = None,
    mode: ModeOption = "weighted_mean",
    protocol: Annotated[
        JudgingProtocol | None, typer.Option(help="Judging protocol; by default the mode's own.")
    ] = None,
    schedule: Annotated[
        RankingSchedule | None, typer.Option(help="Pairs that mode ranking compares; by default all.")
    ] = None,
    steps_per_hour: Annotated[float, typer.Option(min=0.001, help="Training steps per hour of each run.")] = 60.0,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per step.")] = 8,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Responses per prompt; by default as in the sample.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Training runs at the same time.")] = 1,
    judging_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds that judging may add to a step; by default a tenth of the step."),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(help="Published rates to plan with, as MODEL@GPUS; by default the engine is measured."),
    ] = None,
    small: Annotated[
        str | None, typer.Option(help="Published rates of the small judge of a cascade, to compare with.")
    ] = None,
    escalated: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the verdicts that the cascade escalates.")
    ] = 0.3,
    gpu_price: Annotated[
        float | None, typer.Option(min=0, help="Price of a GPU (or machine) per hour, in any currency.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N lines.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also judge the sample, and compare that with the prediction.")
    ] = False,
    judge: JudgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many GPUs a judge needs for a number of training runs.

    Counts the judgements and prompt tokens of a sample with the real prompts and the engine's tokenizer, and prints
    GPUs, time in the queue, cost, and what prefix reuse, the verdict cache, fewer criteria and a cascade change.
    """
