"""The table of rewards in a terminal: how a verdict is shown."""

import pytest

from adjudge_services.cli.output import out
from adjudge_services.cli.scoring.score import legend, rewards_table
from trainer_client.wire import Criterion, Failure, GroupRewards, ResponseReward, StepReward, Verdict


def test_a_grade_is_shown_with_one_decimal_after_its_score() -> None:
    graded = Verdict(criterion="s1", status="ok", score=0.675, choice_mass=0.9, grade=2.7000000000000006)
    picked = Verdict(criterion="s2", status="ok", score=0.75, grade=3.0)
    response = ResponseReward(reward=0.7, status="scored", verdicts=(graded, picked))
    table = rewards_table([GroupRewards(id="g", responses=(response,))])
    (shown,) = table.columns[3].cells
    assert str(shown).split("  ") == ["s1 0.68 (2.7)", "s2 0.75 (3.0)"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_fits_the_terminal_and_keeps_every_column(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", width)
    verdicts = tuple(
        [Verdict(criterion=f"criterion-{n}", status="ok", score=1.0, probability=0.9, method="judge") for n in range(6)]
    )
    steps = tuple([StepReward(number=n, start=100 * n, end=100 * n + 99, delta=0.1) for n in range(3)])
    response = ResponseReward(reward=0.7, status="scored", verdicts=verdicts, steps=steps)
    with out.capture() as printed:
        out.print(rewards_table([GroupRewards(id="team/maths/a-rather-long-name", responses=(response,))]))
    shown = printed.get()
    assert max(map(len, shown.splitlines())) <= width
    for part in ("team/maths", "reward", "0.700", "criterion-5 ✓ 0.90", "2 [200:299] +0.10"):
        assert part in shown


def test_the_legend_says_what_each_criterion_asks_and_explains_only_the_marks_that_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(out, "width", 80)
    criteria = [Criterion(id="s1", kind="pitfall", description="Forgets the stop " + "of half an hour " * 5)]

    def shown(verdict: Verdict) -> str:
        response = ResponseReward(reward=0.7, status="scored", verdicts=(verdict,))
        with out.capture() as printed:
            out.print(legend(criteria, [GroupRewards(id="g", responses=(response,))]))
        lines = printed.get().splitlines()
        assert max(map(len, lines)) <= 80
        return " ".join(" ".join(lines).split())

    plain = shown(Verdict(criterion="s1", status="ok", score=1.0))
    assert plain.startswith("s1 pitfall: Forgets the stop of half an hour")
    assert plain.endswith("✓ met, ✗ not met")
    failed = Verdict(criterion="s1", status="failed", failure=Failure(kind="parse", detail="x"))
    assert shown(failed).endswith("✗ not met, ! failed")
    empty = Verdict(criterion="s1", status="ok", score=0.0, method="no_content")
    assert shown(empty).endswith("✗ not met; no_content: the response is empty")
    full = shown(Verdict(criterion="s1", status="ok", score=None, probability=0.6, step=2))
    assert full.endswith(
        "? uncertain; 0.97: the judge's probability of yes; @2: step 2 decides, @0: the whole response"
    )
