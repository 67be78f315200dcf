"""The reliability of stored verdicts before and after calibration."""

import random
from pathlib import Path

from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import Item
from benchmarks.agreement.reliability import bin_rows, bins_of, draw, error_rows


def test_a_calibration_that_is_right_shows_a_smaller_error(tmp_path: Path) -> None:
    """Probabilities of 0.2 and 0.8 that are right, from raw ones of 0.45 and 0.95 that are not."""
    chance = random.Random(5)
    judged = []
    for number in range(400):
        p, raw = (0.85, 0.95) if number % 2 else (0.25, 0.45)
        item = Item("t", f"row {number}", "p", f"r {number}", "c", chance.random() < p)
        judged.append((item, ItemVerdict(p >= 0.5, p, raw, raw, None, 1.0, 10, 0, 1.0)))
    before, after = error_rows("m", judged)
    assert float(after["ece"].split()[0]) < 0.06 < float(before["ece"].split()[0])
    bins = bins_of(judged)
    filled = {row["probability"]: row["n, after"] for row in bin_rows("m", bins) if row["n, after"]}
    assert filled == {"0.2 to 0.3": 200, "0.8 to 0.9": 200}
    draw({"m": bins, "n": bins}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
