"""The table of rewards in a terminal: how a verdict is shown."""

import pytest

from adjudge_services.cli.output import out
from adjudge_services.cli.scoring.score import rewards_table
from trainer_client.wire import GroupRewards, ResponseReward, StepReward, Verdict


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
