from collections.abc import Mapping
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from adjudge_services.cli.groups import FromRequest, expand_groups
from adjudge_services.cli.options import Service
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
