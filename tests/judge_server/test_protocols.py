"""A reply is a distribution over a menu, and means a verdict or a failure: nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.protocols import make_call, read_reply
from judge_server.ports import CallFailed, Finding, Reply

BINARY = make_call("binary", "Is it?", [1, 2])
STEPWISE = make_call("stepwise", "Is it?", [1, 2])

masses = st.tuples(st.floats(1e-6, 0.5), st.floats(1e-6, 0.5))


def test_binary_offers_yes_and_no_and_asks_for_no_step() -> None:
    assert [option.label for option in BINARY.menu] == ["yes", "no"]
    assert BINARY.then is None


def test_stepwise_offers_the_steps_the_response_has_the_whole_and_none() -> None:
    assert STEPWISE.then is not None
    assert STEPWISE.then.labels == ("1", "2", "0", "-1")


def test_no_spelling_means_both_yes_and_no() -> None:
    yes, no = BINARY.menu
    assert not set(yes.spellings) & set(no.spellings)


@given(masses)
def test_the_probability_is_the_share_of_yes_in_the_mass_of_both(pair: tuple[float, float]) -> None:
    finding = read_reply(BINARY, Reply(pair))
    assert isinstance(finding, Finding)
    assert finding.probability == pytest.approx(pair[0] / sum(pair))
    assert finding.menu_mass == pytest.approx(sum(pair))
    assert finding.score == (1.0 if pair[0] >= pair[1] else 0.0)
    assert finding.step is None


def test_an_even_split_is_a_yes() -> None:
    assert read_reply(BINARY, Reply((0.25, 0.25))) == Finding(1.0, 0.5, 0.5, None)


def test_the_mass_reported_is_never_above_one() -> None:
    finding = read_reply(BINARY, Reply((0.6000000001, 0.4000000001)))
    assert isinstance(finding, Finding)
    assert finding.menu_mass == 1.0


@pytest.mark.parametrize("label", ["1", "2", "0", "-1"])
def test_a_step_on_offer_is_the_verdicts_step(label: str) -> None:
    assert read_reply(STEPWISE, Reply((0.1, 0.8), label)) == Finding(
        0.0, pytest.approx(1 / 9), pytest.approx(0.9), int(label)
    )


@pytest.mark.parametrize("chosen", [None, "", "3", "01", "1 ", "whole"])
def test_a_step_that_was_not_on_offer_is_a_parse_failure(chosen: str | None) -> None:
    outcome = read_reply(STEPWISE, Reply((0.9, 0.1), chosen))
    assert isinstance(outcome, CallFailed)
    assert outcome.kind == "parse"


@pytest.mark.parametrize("call", [BINARY, STEPWISE])
def test_a_reply_without_mass_on_the_menu_is_a_parse_failure_and_no_verdict(call: object) -> None:
    for nothing in ((0.0, 0.0), (float("nan"), 0.5)):
        outcome = read_reply(call, Reply(nothing, "1"))  # type: ignore[arg-type]
        assert isinstance(outcome, CallFailed)
        assert outcome.kind == "parse"
