"""What all commands share: help, version, standard input, JSON, errors in one line, unchanged text, imports."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adjudge_services.cli.scoring.score_file import GroupLine, score_groups
from adjudge_services.settings import misspelt_variables
from tests.fixtures.ports import unused_port
from tests.services.command import adjudge, failure_of
from tests.services.command_tree import commands, parameters
from trainer_client.errors import ConnectionFailed
from trainer_client.wire import Group
from trainer_client.wire.problems import setting_url

pytestmark = pytest.mark.usefixtures("migrated")

COMMANDS = commands()
HEAVY = {
    "aiohttp", "alembic", "celery", "fastapi", "httpx2", "jinja2", "judge_server", "kombu", "numpy", "opentelemetry",
    "prometheus_client", "psycopg", "pydantic_settings", "redis", "rubric_store", "scipy", "sklearn",
    "sqlalchemy", "starlette", "torch", "trainer_client", "transformers", "uvicorn", "vllm", "xllamacpp",
}  # fmt: skip


@pytest.mark.parametrize("path", [(), ("score",), ("rubrics",), ("rubrics", "lint")], ids=" ".join)
def test_h_shows_the_help(path: Sequence[str]) -> None:
    short, long = (adjudge(*path, name, env={"COLUMNS": "100"}) for name in ("-h", "--help"))
    assert short.exit_code == 0
    assert "Usage: " in short.stdout
    assert short.stdout == long.stdout


def test_version_names_adjudge_and_its_version() -> None:
    result = adjudge("--version", exit_code=0)
    assert result.stdout.split()[0] == "adjudge"
    assert result.stdout.split()[1][0].isdigit()


def test_an_option_for_the_output_file_always_has_the_same_spelling() -> None:
    options = [one for command in COMMANDS.values() for one in parameters(command)]
    spelt = {tuple(one.opts) for one in options if one.name in ("output", "to") or {"--out", "-o"} & set(one.opts)}
    assert spelt == {("--output", "-o")}


def test_boolean_options_are_flags() -> None:
    helps = {path: adjudge(*path, "--help", env={"COLUMNS": "200"}).stdout for path in COMMANDS}
    assert [path for path, text in helps.items() if "<bool>" in text or "--help" not in text] == []


def test_every_list_is_available_as_json() -> None:
    listing = [path for path in COMMANDS if path[-1] in ("list", "search", "history", "refused", "audit", "doctor")]
    listing += [("runs",), ("calibrations",)]
    assert len(listing) >= 12
    assert [path for path in listing if not any("--json" in one.opts for one in parameters(COMMANDS[path]))] == []


@pytest.mark.parametrize(
    "command",
    ["rubrics list", "rubrics search x", "keys list", "projects list", "audit", "templates list", "models list",
     "ledger refused", "runs", "calibrations"],
)  # fmt: skip
def test_lists_as_json_are_arrays(command: str) -> None:
    result = adjudge(*command.split(), "--json", exit_code=0)
    assert isinstance(json.loads(result.stdout), list)


def test_a_rubric_can_come_from_standard_input() -> None:
    text = "<SUGGEST> Says why.\n<ANSWER> The answer is 4."
    published = adjudge("rubrics", "publish", "team/a", "-", input=text)
    assert "published team/a@1" in published.stdout, published.output
    assert adjudge("rubrics", "lint", "-", "--json", input=text).exit_code in (0, 1)


def test_groups_can_come_from_standard_input_and_errors_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_ENGINE_URL", "scripted://yes")
    rubric = {"criteria": [{"id": "a", "description": "Says why."}]}
    line = json.dumps({"prompt": "2 + 2?", "responses": ["4"], "rubric": rubric})
    result = adjudge("score", "-", input=f"{line}\nno JSON\n")
    assert json.loads(result.stdout)["responses"][0]["reward"] == 1.0
    assert result.exit_code == 1
    assert "standard input:2:" in result.stderr


def test_an_error_shared_by_several_lines_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_ENGINE_URL", "scripted://yes")
    file = tmp_path / "groups.jsonl"
    file.write_text(
        json.dumps({"prompt": "2 + 2?", "responses": ["4"]}) * 1 + "\n" + '{"prompt": "?", "responses": ["4"]}\n' * 20
    )
    result = adjudge("score", file)
    assert result.stderr.count("has no rubric") == 1
    assert "the same on 20 more lines: 2, 3, " in result.stderr


def test_text_that_looks_like_an_emoji_code_is_unchanged() -> None:
    rubric = json.dumps({"criteria": [{"id": "a", "description": "Ends with :thumbs_up: or :smile:"}]})
    adjudge("rubrics", "publish", "team/a", "-", input=rubric)
    assert "Ends with :thumbs_up: or :smile:" in adjudge("rubrics", "show", "team/a").stdout


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PORT", "abc", "ADJUDGE_PORT is not valid: write a whole number"),
        ("PORT", "70000", "ADJUDGE_PORT is not valid: write a number of at most 65535"),
        ("RUN_WEIGHTS", '{"a": 0}', "ADJUDGE_RUN_WEIGHTS, at a, is not valid: write a number above 0"),
        ("ENGINE_BATCHES", "0", "ADJUDGE_ENGINE_BATCHES is not valid: set a number of at least 1, or auto"),
        ("LEDGER", "some", "ADJUDGE_LEDGER is not valid: write 'all', 'verdicts' or 'off'"),
        ("ENGINES", "{", "ADJUDGE_ENGINES is not JSON"),
        ("ENGINES", '{"a": {"cascade": ["x"]}}', "ADJUDGE_ENGINES, at a.cascade.1, is not valid: Field required"),
        ("JUDGE_TOKEN", "hunter2", "ADJUDGE_JUDGE_TOKEN is not valid: "),
    ],
)
def test_an_invalid_setting_is_reported_with_its_name_and_where_it_is_documented(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ADJUDGE_{name}", value)
    for command in (["rubrics", "list"], ["serve"], ["doctor"]):
        result = adjudge(*command, exit_code=1)
        assert isinstance(result.exception, SystemExit), result.exception
        error, see = result.stderr.splitlines()
        assert says in error
        assert see == f"see {setting_url(f'ADJUDGE_{name}')}"
        assert "hunter2" not in result.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("measure", "give either a file of responses or --run NAME"),
        ("measure FILE --k some", "--k is 'some'"),
        ("measure FILE --against absent.jsonl", "--against: the file absent.jsonl does not exist"),
        ("score FILE --rubric absent.json", "--rubric: the file absent.json does not exist"),
        ("score FILE --column promt=question", "did you mean 'prompt'?"),
        ("score FILE --output absent/rewards.jsonl", "cannot be written"),
        ("recompute r --output rewards.parquet", "name a file that ends in .jsonl"),
        ("evaluate FILE", "give one data set and the judge"),
        ("evaluate FILE --judge scripted://yes --labels absent.jsonl", "does not exist"),
        ("bakeoff FILE --judge scripted://yes", "a bake-off needs two"),
        ("attack --judge scripted://yes --data FILE --rubric FILE", "leave out --rubric"),
        ("calibrate FILE --judge scripted://yes --name Two", "'Two' cannot name a calibration; use lower-case"),
        ("panel FILE --judge scripted://yes", "a panel has at least two judges"),
        ("judges compare run:a b", "neither run:NAME nor an engine URL"),
        ("templates show absent.j2", "there is no template 'absent.j2'"),
        ("rubrics export", "give either the rubrics to export or --prefix"),
        ("rubrics lint FILE --format toml", "'toml' is unknown; use one of native, yaml"),
        ("rubrics import FILE --format toml", "'toml' is unknown; use one of native, yaml"),
        ("rubrics tag a b --clear", "--clear takes no tags"),
        ("rubrics diff a", "name two versions of a rubric"),
        ("rubrics validate", "give either the rubrics to judge or --prefix"),
        ("operations submit evaluate --options [", "--options is not JSON"),
        ("plan FILE --rollout-s 1", "give both --rollout-s and --update-s"),
        ("ledger purge", "say what to delete"),
        ("keys create --scope write", "there is no scope 'write'"),
        ("projects create b --weight heavy", "--weight"),
    ],
)
def test_misuse_of_options_shows_the_usage_and_exits_with_2(command: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.write_text("{}\n")
    result = adjudge(*command.replace("FILE", str(file)).split(), exit_code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("Usage: ")
    assert says in failure_of(result)


def test_an_invalid_port_is_reported_by_its_option() -> None:
    result = adjudge("serve", "--port", "99999", exit_code=2)
    assert "--port" in result.stderr
    assert "65535" in result.stderr


def test_a_misspelt_variable_is_reported_with_the_correct_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_DATABSE_URL", "sqlite+aiosqlite:///x")
    result = adjudge("rubrics", "list", exit_code=0)
    assert "ADJUDGE_DATABSE_URL is not a setting and has no effect; did you mean ADJUDGE_DATABASE_URL?" in result.stderr


def test_a_renamed_variable_is_reported_with_its_name_of_now() -> None:
    (warning,) = misspelt_variables({"ADJUDGE_FENCE_SECRET": "of a release before"})
    assert warning == "ADJUDGE_FENCE_SECRET has no effect; it is called ADJUDGE_SIGNING_SECRET now"


def test_variables_of_other_programs_are_not_reported_as_misspelt() -> None:
    others = {"ADJUDGE_API_KEY": "x", "ADJUDGE_API_PORT": "tcp://10.0.0.1:8000", "ADJUDGE_PORT": "8000", "PORT": "1"}
    others |= {"ADJUDGE_TEST_REDIS_URL": "x", "ADJUDGE_API_SERVICE_HOST": "10.0.0.1"}
    assert list(misspelt_variables(others)) == []


def test_no_more_requests_are_sent_once_the_service_is_unreachable() -> None:
    class UnreachableClient:
        asked = 0

        async def rewards(self, **_: Any) -> None:
            self.asked += 1
            raise ConnectionFailed("http://127.0.0.1:9 cannot be reached")

    client: Any = UnreachableClient()
    group = Group.model_validate({"id": "g", "prompt": "?", "responses": ["a", "b"]})
    lines = [GroupLine(number, group) for number in range(1, 21)]
    with pytest.raises(ConnectionFailed):
        asyncio.run(score_groups(client, lines, {}, concurrency=1, advance=lambda: None))
    assert client.asked == 1


def test_a_missing_rubric_file_is_not_taken_for_a_reference(tmp_path: Path) -> None:
    file = tmp_path / "groups.jsonl"
    file.write_text('{"prompt": "?", "responses": ["4"]}\n')
    assert "--rubric: the file nowhere/rubric.json does not exist" in failure_of(
        adjudge("score", file, "--rubric", "nowhere/rubric.json")
    )


@pytest.fixture
def nowhere() -> str:
    """The URL of an unreachable database."""
    return f"postgresql+psycopg://u:hunter2@127.0.0.1:{unused_port()}/x?connect_timeout=2"


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
