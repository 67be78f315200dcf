"""`python -m benchmarks.papers.tables`: check every claim of the five papers that their own tables allow to compute.

It prints a row with the verdict for each claim; `--write docs/papers.md` writes the rows as the last section of that
page.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from benchmarks.papers.claims import Claim, ClaimVerdict, read_claims
from benchmarks.papers.numbers import RoundedNumber
from benchmarks.report import publish

HEADING = "## Every claim"

_SPOKEN = ("about", "at least", "more than", "less than")


def row(claim: Claim) -> dict[str, str]:
    """Format a claim as a row of text."""
    says, computed = _numbers(claim.says), _numbers(claim.computed)
    decimals = [number.decimals for number in says] or [1] * len(computed)
    claimed = " ".join(map(as_printed, says))
    recomputed = " ".join(as_computed(number, places) for number, places in zip(computed, decimals, strict=False))
    return {
        "paper": claim.paper,
        "where": claim.where,
        "claim": claim.claim,
        "says": f"{claim.relation} {claimed}" if claim.relation in _SPOKEN else claimed or "lost",
        "computed": "the same" if len(says) > 2 and recomputed == claimed else recomputed or "–",
        "verdict": verdict(claim),
        "note": claim.note,
    }


def verdict(claim: Claim) -> str:
    """Format the verdict, with the difference from the claim and, for lists, how many numbers differ."""
    if claim.verdict is not ClaimVerdict.DIFFERS:
        return claim.verdict.value
    differing = [judged for judged in claim.judged if judged.verdict is ClaimVerdict.DIFFERS]
    places = max(number.decimals for number in _numbers(claim.says))
    by = ", ".join(f"{_decimal(judged.by, places, more=1, sign='+')}" for judged in differing if judged.by is not None)
    return f"differs by {by}" + (f" ({len(differing)} of {len(claim.judged)})" if len(claim.judged) > 1 else "")


def as_printed(number: RoundedNumber) -> str:
    """Format a claimed number as in the paper."""
    return _decimal(number.value, number.decimals)


def as_computed(number: RoundedNumber, decimals: int) -> str:
    """Format a computed number, with one decimal more than its claim unless it is exact without."""
    return _decimal(number.value, decimals, more=1)


def _decimal(value: Fraction, decimals: int, *, more: int = 0, sign: str = "") -> str:
    places = decimals if value == round(value, decimals) else decimals + more
    return f"{float(value):{sign},.{places}f}"


def _numbers(value: RoundedNumber | list[RoundedNumber] | None) -> list[RoundedNumber]:
    return [] if value is None else value if isinstance(value, list) else [value]


def summary(claims: Sequence[Claim]) -> str:
    """Count the claims by verdict."""
    counts = Counter(claim.verdict for claim in claims)
    return f"{len(claims)} claims: " + ", ".join(f"{counts[kind]} {kind}" for kind in ClaimVerdict)


def markdown(claims: Sequence[Claim]) -> str:
    """Format the claims as Markdown tables, one per paper, under `HEADING`."""
    parts = [f"{HEADING}\n\n{summary(claims)}.\n"]
    for paper in dict.fromkeys(claim.paper for claim in claims):
        rows = [row(claim) for claim in claims if claim.paper == paper]
        head = [column for column in rows[0] if column != "paper"]
        lines = [head, ["---:" if column in ("says", "computed") else "---" for column in head]]
        lines += [[cells[column] for column in head] for cells in rows]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        parts.append(f"### {paper}\n\n{summary([claim for claim in claims if claim.paper == paper])}.\n\n{table}\n")
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the check from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help=f"Markdown page whose last section {HEADING!r} to replace"
    )
    parser.add_argument("--differing", action="store_true", help="print only claims that do not agree")
    given = parser.parse_args(arguments)
    claims = read_claims()
    shown = [claim for claim in claims if not given.differing or claim.verdict is not ClaimVerdict.AGREES]
    publish("papers", "Numbers of the papers, computed again", [row(claim) for claim in shown], [summary(claims)])
    if given.write:
        before, _, _ = given.write.read_text(encoding="utf-8").partition(HEADING)
        given.write.write_text(before + markdown(claims), encoding="utf-8")


if __name__ == "__main__":
    main()
