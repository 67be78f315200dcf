"""Passes: what a worker shows is believed for some minutes, where it was signed with the deployment's secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.operations.passes import VALID_S, Passes


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@given(st.text(min_size=1, max_size=200).filter(str.isprintable))
def test_a_pass_is_for_the_project_that_it_was_signed_for(project: str) -> None:
    passes = Passes(b"secret", Clock())
    assert passes.project_of(passes.sign(project)) == project


def test_a_pass_runs_out() -> None:
    clock = Clock()
    passes = Passes(b"secret", clock)
    shown = passes.sign("b")
    clock.now += VALID_S
    assert passes.project_of(shown) == "b"
    clock.now += 1
    assert passes.project_of(shown) is None


@pytest.mark.parametrize(
    "alter",
    [
        lambda shown: shown.replace("_b", "_c"),
        lambda shown: shown.replace("1000600", "9000600"),
        lambda shown: shown[:-4] + "0_b" if shown[-4] != "0" else shown[:-4] + "1_b",
        lambda shown: shown.removeprefix("adjwork_"),
        lambda shown: "",
        lambda shown: "adj_0123456789abcdef_secret",
    ],
)
def test_what_was_altered_is_no_pass(alter: object) -> None:
    passes = Passes(b"secret", Clock())
    assert callable(alter)
    altered = alter(passes.sign("b"))
    assert altered != passes.sign("b")
    assert passes.project_of(altered) is None


def test_another_deployments_pass_is_none() -> None:
    assert Passes(b"secret", Clock()).project_of(Passes(b"other", Clock()).sign("b")) is None
