"""The papers' claims are all computed, the page matches what the command computes, and the command runs."""

import json
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.papers.claims import Claim, ClaimVerdict, read_claims
from benchmarks.papers.tables import HEADING, main, markdown, summary

PAGE = Path(__file__).parents[2] / "docs/papers.md"


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    """All claims."""
    return read_claims()


def found(claims: list[Claim], words: str) -> Claim:
    """The only claim that begins with these words."""
    (claim,) = [claim for claim in claims if claim.claim.startswith(words)]
    return claim


def test_every_paper_has_claims(claims: list[Claim]) -> None:
    assert set(Counter(claim.paper for claim in claims)) == {"RGR-GRPO", "Rubric-Grounded RL", "DRO", "SRaR", "RuscaRL"}


def test_every_claim_that_differs_or_cannot_be_told_has_a_reference(claims: list[Claim]) -> None:
    assert all(claim.where and claim.claim for claim in claims)
    assert all(
        claim.note for claim in claims if claim.verdict is ClaimVerdict.UNKNOWN and "step accuracy" not in claim.claim
    )


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("7B over Outcome-GRPO, mathematics", ClaimVerdict.AGREES),
        ("wrong steps in right answers", ClaimVerdict.AGREES),
        ("RaR: answers, FRR and MTR of 30", ClaimVerdict.DIFFERS),
        ("RaR: answers, FRR and MTR of 29", ClaimVerdict.AGREES),
        ("samples with 1 or 2 pitfalls", ClaimVerdict.DIFFERS),
        ("emphasis gains more on ParaRev", ClaimVerdict.DIFFERS),
        ("held-out reward", ClaimVerdict.UNKNOWN),
        ("hours of 350 steps", ClaimVerdict.AGREES),
    ],
)
def test_known_claims_have_known_verdicts(claims: list[Claim], words: str, verdict: ClaimVerdict) -> None:
    assert found(claims, words).verdict is verdict


def test_the_page_matches_what_the_command_computes(claims: list[Claim]) -> None:
    _, heading, section = PAGE.read_text(encoding="utf-8").partition(HEADING)
    command = ".venv/bin/python -m benchmarks.papers.tables --write docs/papers.md"
    assert heading + section == markdown(claims), f"docs/papers.md is out of date; run {command}"


def test_the_command_prints_a_table_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], claims: list[Claim]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nText.\n\n{HEADING}\n\nold", encoding="utf-8")
    main(["--write", str(page), "--differing"])
    assert summary(claims) in capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == "# Page\n\nText.\n\n" + markdown(claims)
    rows = json.loads((tmp_path / ".cache/bench/papers.json").read_text(encoding="utf-8"))["rows"]
    assert rows
    assert all(row["verdict"] != "agrees" for row in rows)
