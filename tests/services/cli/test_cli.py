"""`adjudge rubrics`, `doctor` and `migrate` on the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rubric_store import migrations
from tests.fixtures.ports import unused_port
from tests.services.command import adjudge, failure_of
from tests.services.command_tree import commands, parameters

HEAVY = {
    "aiohttp", "alembic", "celery", "fastapi", "httpx2", "jinja2", "judge_server", "kombu", "numpy", "opentelemetry",
    "prometheus_client", "psycopg", "pydantic_settings", "redis", "rubric_store", "scipy", "sklearn",
    "sqlalchemy", "starlette", "torch", "trainer_client", "transformers", "uvicorn", "vllm", "xllamacpp",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A rubric file whose text looks like markup."""
    path = tmp_path / "rubric.json"
    path.write_text(json.dumps({"criteria": [{"id": "a", "description": "Lies in [0, 1] or [/b] [red]x."}]}))
    return path


@pytest.fixture
def nowhere() -> str:
    """The URL of an unreachable database."""
    return f"postgresql+psycopg://u:hunter2@127.0.0.1:{unused_port()}/x?connect_timeout=2"


def test_publishing_the_same_file_again_changes_nothing(file: Path) -> None:
    first = adjudge("rubrics", "publish", "team/a", file)
    again = adjudge("rubrics", "publish", "team/a", file)
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "published team/a@1" in first.stdout
    assert "unchanged: team/a@1" in again.stdout
    file.write_text("<SUGGEST> Says so.\n<ANSWER> The answer is yes.")
    assert "published team/a@2" in adjudge("rubrics", "publish", "team/a", file).stdout


def test_show_prints_a_criterion_as_written(file: Path) -> None:
    adjudge("rubrics", "publish", "team/a", file)
    shown = adjudge("rubrics", "show", "team/a@1", exit_code=0)
    assert "Lies in [0, 1] or [/b] [red]x." in shown.stdout


def test_list_shows_the_rubrics_with_a_prefix(file: Path) -> None:
    for name in ("team/a", "team/b", "other"):
        adjudge("rubrics", "publish", name, file)
    listed = adjudge("rubrics", "list", "team/").stdout
    assert "team/a" in listed
    assert "team/b" in listed
    assert "other" not in listed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rubrics", "show", "team/x"], "Did you mean 'team/a'"),
        (["rubrics", "show", "[/red]"], "name@3"),
        (["rubrics", "publish", "Bad Name", "FILE"], "lower-case"),
        (["rubrics", "publish", "x", "EMPTY"], "unknown format"),
    ],
)
def test_an_invalid_command_gives_one_message_and_status_1(
    file: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    adjudge("rubrics", "publish", "team/a", file)
    (tmp_path / "empty.json").write_text("{}")
    paths = {"FILE": str(file), "EMPTY": str(tmp_path / "empty.json")}
    assert says in failure_of(adjudge(*[paths.get(argument, argument) for argument in arguments]))


def test_doctor_accepts_a_sound_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_ENGINE_URL", "scripted://yes")
    result = adjudge("doctor", exit_code=0)
    assert result.stdout.count(" ok ") == 8
    assert "wrong" not in result.stdout


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("DATABASE_URL", "mysql://u:hunter2@db/x", "rubric store"),
        ("DATABASE_URL", "NOWHERE", "rubric store"),
        ("CACHE_URL", "memcached://x", "verdict cache"),
        ("ENGINE_URL", "scripted://maybe", "judge"),
        ("ENGINE_URL", "llamacpp:///no/such/model.gguf", "judge"),
    ],
)
def test_doctor_names_the_broken_part_and_hides_passwords(
    name: str, value: str, check: str, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_ENGINE_URL", "scripted://yes")
    monkeypatch.setenv(f"ADJUDGE_{name}", nowhere if value == "NOWHERE" else value)
    result = adjudge("doctor", exit_code=1)
    wrong = [line for line in result.stdout.splitlines() if " wrong " in line]
    assert len(wrong) == 1
    assert check in wrong[0]
    assert "hunter2" not in result.output


@pytest.mark.parametrize(
    "command", [["rubrics", "list"], ["migrate"], ["serve", "--engine", "scripted://yes", "--port", "0"]]
)
def test_an_unreachable_database_gives_one_message(
    command: list[str], nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", nowhere)
    result = adjudge(*command, exit_code=1)
    assert isinstance(result.exception, SystemExit), result.exception
    assert "ADJUDGE_DATABASE_URL" in result.stderr
    assert "hunter2" not in result.output


def test_migrate_brings_a_new_database_to_the_newest_schema_and_can_be_repeated(data_dir: Path) -> None:
    for _ in range(2):
        result = adjudge("migrate", exit_code=0)
        assert migrations.head() in result.stdout
    assert migrations.read_status(f"sqlite+aiosqlite:///{data_dir}/adjudge.db").state == "current"


@pytest.mark.postgres
def test_postgres_is_migrated_by_hand_and_no_command_runs_before_that(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", postgres_url)
    assert "adjudge migrate" in failure_of(adjudge("rubrics", "list"))
    adjudge("migrate", exit_code=0)
    adjudge("rubrics", "list", exit_code=0)


COMMANDS = commands()


def test_every_command_and_every_option_has_complete_help_text() -> None:
    for path, command in COMMANDS.items():
        assert command.help, path
        assert "\n" not in command.help.replace("\n\n", ""), path
        assert [one.name for one in parameters(command) if not getattr(one, "help", "")] == [], path


def _imported_by_help_of(*commands: str) -> set[str]:
    """Return the libraries that the help of these commands imports."""
    code = """
import sys
from adjudge_services.cli import lazy
from adjudge_services.cli.main import app
lazy.OPTIONS_ONLY = True
for path in sys.argv[1:]:
    app([*path.split(), "--help"], standalone_mode=False)
print("modules:", *{name.partition(".")[0] for name in sys.modules})
"""
    output = subprocess.check_output([sys.executable, "-c", code, *commands], text=True)
    return set(output.rpartition("modules: ")[2].split())


@pytest.mark.processes
def test_lists_of_commands_import_none_of_them() -> None:
    assert _imported_by_help_of("", "rubrics", "judges", "operations") & HEAVY == set()


@pytest.mark.processes
def test_the_help_of_a_command_imports_nothing_that_only_running_it_needs() -> None:
    with_choices_and_defaults = {"judge_server", "rubric_store", "trainer_client"}
    assert _imported_by_help_of(*map(" ".join, COMMANDS)) & HEAVY <= with_choices_and_defaults


@pytest.mark.processes
def test_a_process_runs_a_command_whose_options_it_has_read_before_it_imported_the_rest() -> None:
    command = [sys.executable, "-m", "adjudge_services.cli", "projects", "limits", "default", "--weight", "2"]
    assert "default: weight 2.0" in subprocess.check_output(command, text=True)


@pytest.mark.processes
def test_a_service_starts_without_the_libraries_that_only_some_requests_need() -> None:
    modules = ", ".join(f"adjudge_services.{name}" for name in ("http_server", "judges", "worker"))
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert {"mpmath", "sympy", "jsonschema", "numpy", "alembic"} & set(loaded) == set()


def test_commands_and_options_have_shell_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    for typed, completed in (("ru", ["rubrics", "runs"]), ("rubrics lint --sim", ["--similarity-threshold"])):
        environment = {"_ADJUDGE_COMPLETE": "complete_bash", "COMP_WORDS": f"adjudge {typed}"}
        environment["COMP_CWORD"] = str(len(typed.split()))
        assert adjudge(env=environment, prog_name="adjudge").stdout.split() == completed
