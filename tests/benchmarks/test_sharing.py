"""Several criteria in one call with a scripted strong judge: what is lost, and what a bake-off recommends."""

from pathlib import Path

import pytest
from benchmarks.agreement.sharing import FLAWS, StrongJudge, measure


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize(("name", "per_call"), [("steady", 8), ("crowding", 1)])
def test_the_recommended_number_of_criteria_follows_how_the_judge_errs(name: str, per_call: int) -> None:
    measured = measure(name, 30, (1, 8))
    recommended = [one.contender.options["criteria_per_call"] for one in measured.found.results if one.recommended]
    assert recommended == [per_call]
    for row in measured.table:
        assert (row["verdicts"], row["failed"], row["misread"]) == (30 * 8, 0, 0)


def test_the_judge_errs_at_its_rate_and_writes_every_flaw() -> None:
    judge = StrongJudge("steady", 0.08, 0.0)
    response = "stone amber moss"
    for number in range(300):
        shown = f"Response:\n<material>\n{response} {number}\n</material>\n"
        judge.reply(shown + "1. The response contains the word amber.\n2. The response contains the word ember.\n")
    assert set(judge.flaws) == {*FLAWS, ""}
    wrong = [said != (word == "amber") for (_, word), said in judge.said.items() if said is not None]
    assert 0.04 < sum(wrong) / len(wrong) < 0.13
