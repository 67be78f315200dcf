"""The table of rewards in a terminal: how a verdict is shown."""

from adjudge_services.cli.scoring.score import rewards_table
from trainer_client.wire import GroupRewards, ResponseReward, Verdict


def test_a_grade_is_shown_with_one_decimal_after_its_score() -> None:
    graded = Verdict(criterion="s1", status="ok", score=0.675, choice_mass=0.9, grade=2.7000000000000006)
    picked = Verdict(criterion="s2", status="ok", score=0.75, grade=3.0)
    response = ResponseReward(reward=0.7, status="scored", verdicts=(graded, picked))
    table = rewards_table([GroupRewards(id="g", responses=(response,))])
    (shown,) = table.columns[3].cells
    assert str(shown).split("  ") == ["s1 0.68 (2.7)", "s2 0.75 (3.0)"]
