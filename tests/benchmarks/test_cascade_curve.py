"""The curve of a cascade from stored replies: pairs, costs and the table."""

import random
from dataclasses import replace

from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import Item
from benchmarks.cascade_curve import cost_of, curve_rows, pair_items, panel_figures

from judge_server.fitting.cascades import cascade_curve

ITEMS = [Item("t", f"row {n}", "p", f"r {n}", "c", n % 2 == 0) for n in range(60)]


def verdict(met: bool, probability: float, tokens: int) -> ItemVerdict:
    """A verdict with this probability and cost."""
    return ItemVerdict(met, probability, probability, probability, None, 1.0, tokens, 0, 2.0)


def test_a_wider_band_agrees_more_and_costs_more() -> None:
    """The large model is always right, the small one by chance; the band goes from "small alone" to "both always"."""
    chance = random.Random(1)
    draws = [chance.random() for _ in ITEMS]
    small = {item.key: verdict(p >= 0.5, p, 100) for item, p in zip(ITEMS, draws, strict=True)}
    large = {item.key: verdict(item.label, 0.9 if item.label else 0.1, 200) for item in ITEMS}
    pairs = pair_items(ITEMS, small, large)
    points = cascade_curve(pairs, cost_of(pairs, small, 0.5), cost_of(pairs, large))
    agreement = [one.agreement.value for one in points]
    assert agreement == sorted(agreement)
    assert agreement[-1] == 1
    assert points[0].tokens_computed == 50
    assert points[-1].tokens_computed == 250
    rows = curve_rows(points, None)
    assert [row["of the large model's cost"] for row in (rows[0], rows[-1])] == ["0.25", "1.25"]
    figures = panel_figures(pairs, pairs)
    assert figures["large"].value == 1
    assert figures["Dawid-Skene"].value == 1  # the labels show which model to trust


def test_items_that_one_model_did_not_judge_are_left_out() -> None:
    """A pair needs replies of both models."""
    one, other, both = ITEMS[:3]
    said = verdict(True, 0.8, 1)
    small = {item.key: said for item in (one, both)}
    large = {item.key: replace(said, satisfied=False) for item in (other, both)}
    (pair,) = pair_items(ITEMS, small, large)
    assert pair.small.row == both.row
    assert not pair.agree
