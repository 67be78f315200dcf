"""Wordings of the judge's question: averages, cross-fitted maps, and one question per item and wording."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.agreement import store as stores
from benchmarks.agreement.contenders import AdjudgeContender
from benchmarks.agreement.store import ReplyStore, StoredEngine
from benchmarks.agreement.wordings import (
    AVERAGES,
    STEPS,
    VARIANTS,
    ask_wordings,
    averaged,
    cross_calibrated,
    table_rows,
)

from judge_server.engines.scripted import ScriptedEngine, always
from tests.benchmarks.test_agreement import item, verdict


def test_wordings_are_averaged_in_log_odds_and_their_costs_add_up() -> None:
    a, b = {"x": verdict(0.9), "y": verdict(0.2)}, {"x": verdict(0.5)}
    (average,) = averaged([a, b]).values()
    assert average.raw_probability == pytest.approx(1 / (1 + math.exp(-math.log(9) / 2)))
    assert average.tokens_computed == a["x"].tokens_computed + b["x"].tokens_computed


def test_a_cross_fitted_map_moves_the_threshold_of_a_judge_biased_to_yes() -> None:
    items = [item(n, label=n % 2 == 0) for n in range(80)]
    generous = {one.key: verdict(0.9 if one.label else 0.6) for one in items}
    calibrated = cross_calibrated(items, generous)
    assert all(calibrated[one.key].satisfied == one.label for one in items)
    silent = {one.key: verdict(0.6) for one in items}
    assert [v.satisfied for v in cross_calibrated(items, silent).values()].count(True) in (0, 80)


async def test_every_wording_asks_about_every_item_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "FOLDER", tmp_path)
    monkeypatch.setattr(stores, "engine_of", lambda _: ScriptedEngine(script=always(True)))
    items = [item(n, label=n % 2 == 0, kind="pitfall" if n % 3 else "point") for n in range(6)]
    verdicts = await ask_wordings("m", items, {**STEPS, **VARIANTS})
    assert {len(own) for own in verdicts.values()} == {6}
    rows = table_rows(items, verdicts | {name: averaged([verdicts[p] for p in ps]) for name, ps in AVERAGES.items()})
    assert [row["wording"] for row in rows] == [*STEPS, *VARIANTS, *AVERAGES]


async def test_the_last_step_asks_the_services_question(tmp_path: Path) -> None:
    shipped = AdjudgeContender(StoredEngine(ReplyStore(tmp_path / "m.jsonl"), ScriptedEngine()), contextual=False)
    await shipped.start()
    last = list(STEPS.values())[-1]
    for kind in ("point", "pitfall"):
        one = replace(item(1, label=True, kind=kind), reference_answer="Reference 1.")
        (asked,), worded = shipped.batches(one), last.batch(one)
        assert (asked.system, asked.shared) == (worded.system, worded.shared)
        assert asked.calls[0].question.rstrip() == worded.calls[0].question
    await shipped.close()
