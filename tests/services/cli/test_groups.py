"""Options of a command that are made from the fields of a request, and one that a single file declares."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from adjudge_services.cli.groups import FromRequest, expand_groups
from adjudge_services.cli.options import Service
from tests.docs.pages import ROOT
from tests.services.command_tree import commands, parameters
from trainer_client.wire import RewardRequest
from trainer_client.wire.options import request_options


@pytest.fixture
def taken() -> dict[str, Any]:
    """What the last command got."""
    return {}


@pytest.fixture
def app(taken: dict[str, Any]) -> typer.Typer:
    """A command that takes options of a request, the same ones repeated, and a group of options."""

    def command(
        *,
        options: Annotated[Mapping[str, Any], FromRequest(RewardRequest, without=("judge", "deadline_s"))],
        service: Service,
    ) -> None:
        taken.update(options=options, service=service)

    def repeating(
        *, axes: Annotated[Mapping[str, Any], FromRequest(RewardRequest, only=("votes", "rationale"), repeated=True)]
    ) -> None:
        taken.update(axes=axes)

    made = typer.Typer()
    made.command("once")(expand_groups(command))
    made.command("repeating")(expand_groups(repeating))
    return made


def test_score_offers_every_option_of_a_reward_request() -> None:
    offered = {one.name for one in parameters(commands()["score",])}
    assert request_options(RewardRequest).keys() - offered == set()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("", {}),
        ("--votes 1 --mode weighted_mean --defences normalise --defences no_content", {}),
        ("--votes 3 --rationale", {"votes": 3, "rationale": True}),
        ("--no-contextual-calibration", {"contextual_calibration": False}),
        ("--criteria-per-call 4", {"criteria_per_call": 4}),
        ("--criteria-per-call all", {"criteria_per_call": "all"}),
        ("--uncertain-band 0.2 0.6 --kinds point", {"uncertain_band": (0.2, 0.6), "kinds": ["point"]}),
        ('--dropout {"keep":0.5}', {"dropout": {"keep": 0.5}}),
        ("--prompt-opens <think> --on-failure zero", {"prompt_opens": "<think>", "on_failure": "zero"}),
    ],
)  # fmt: skip
def test_a_command_gets_the_options_that_differ_from_their_defaults(
    app: typer.Typer, taken: dict[str, Any], words: str, options: dict[str, Any]
) -> None:
    assert CliRunner().invoke(app, ["once", *words.split()]).exit_code == 0
    assert taken["options"] == options


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--votes 33", "less than or equal to 32"),
        ("--mode best", "weighted_mean"),
        ("--kinds none", "'none' is not one of point, factual"),
        ("--dropout half", "this is not JSON"),
    ],
)
def test_a_value_that_the_request_would_refuse_is_refused_with_the_option(
    app: typer.Typer, words: str, reason: str
) -> None:
    refused = CliRunner().invoke(app, ["once", *words.split()], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert reason in refused.output
    assert words.split()[0] in refused.output


def test_repeated_options_are_lists_without_defaults(app: typer.Typer, taken: dict[str, Any]) -> None:
    assert CliRunner().invoke(app, ["repeating", "--votes", "1", "--votes", "5", "--no-rationale"]).exit_code == 0
    assert taken["axes"] == {"votes": [1, 5], "rationale": [False]}


def test_a_group_of_options_is_passed_as_one_value(app: typer.Typer, taken: dict[str, Any]) -> None:
    assert CliRunner().invoke(app, ["once", "--judge", "tiny", "--concurrency", "2"]).exit_code == 0
    assert taken["service"] == Service(judge="tiny", concurrency=2)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., str]:
    """A copy of the sources with an invented option, added as CONTRIBUTING.md says; runs Python in it."""
    for name in ("tests/__init__.py", "tests/request_options.py", "tests/written_files.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs/reference").mkdir(parents=True)
    shutil.copy(ROOT / "docs/reference/request-options.md", tmp_path / "docs/reference")
    sources = tmp_path / "trainer_client/src"
    shutil.copytree(ROOT / "trainer_client/src", sources, ignore=shutil.ignore_patterns("__pycache__"))

    def run(*arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": f"{sources}{os.pathsep}{tmp_path}", "COLUMNS": "300"}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, check=True)
        return done.stdout

    model = sources / "trainer_client/wire/judging.py"
    text = model.read_text(encoding="utf-8")
    described = "        truncate: judge a response"
    field = "    truncate: Flag = False\n"
    assert described in text
    assert field in text
    text = text.replace(
        described, f"        patience: how patient the judge is: a number of sighs. It may run out.\n{described}"
    )
    text = text.replace(field, f"{field}    patience: SafeInt = Field(default=3, ge=1, le=9)\n")
    model.write_text(text, encoding="utf-8")
    run("-m", "tests.request_options")
    return run


@pytest.mark.processes
def test_an_option_that_one_file_declares_reaches_api_command_line_client_and_documentation(
    copy: Callable[..., str], tmp_path: Path
) -> None:
    code = """
import json
from adjudge_services.cli.main import app
from judge_server.api.app import create_app
from judge_server.api.service import Service
from trainer_client import Client
from trainer_client.client.keywords import VerdictKeywords
app(["score", "--help"], standalone_mode=False)
help(Client.rewards)
print(json.dumps([create_app(Service(rubrics=None)).openapi(), str(VerdictKeywords.__annotations__)]))
"""
    *described, last = copy("-c", code).splitlines()
    [shown] = [line for line in described if "--patience" in line]
    assert "INTEGER [1<=x<=9]" in shown
    assert "How patient the judge is. [default: 3]" in shown
    document, keywords = json.loads(last)
    assert "'patience': <class 'int'>" in keywords
    assert document["components"]["schemas"]["JudgingOptions"]["properties"]["patience"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "default": 3,
        "title": "Patience",
        "description": "How patient the judge is: a number of sighs. It may run out.",
    }
    table = (tmp_path / "docs/reference/request-options.md").read_text(encoding="utf-8")
    meaning = "How patient the judge is: a number of sighs. It may run out."
    assert f"\n| `judging.patience` | integer from 1 to 9, 3 | {meaning} |\n" in table
    assert any("patience: how patient the judge is: a number of sighs. Default: 3." in line for line in described)
