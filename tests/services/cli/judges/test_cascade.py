"""`adjudge cascade` and `adjudge panel`: fit verdicts, store a version, and apply it in a service by name."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adjudge_services.settings import Settings
from adjudge_services.store import StartError
from adjudge_services.wiring import build_app
from tests.services.command import adjudge
from tests.services.judges.test_combined_judges import members_of, serving, verdicts_of

pytestmark = pytest.mark.usefixtures("migrated")

CRITERIA = [{"id": f"c{n}", "description": f"Has property {n}."} for n in range(6)]
GROUP = {"id": "g", "prompt": "p", "responses": [f"unseen {n}" for n in range(4)]}
ROWS = 120
THREE = [part for name in ("hash", "yes", "no") for part in ("--judge", f"scripted://{name}")]
JUDGES: dict[str, Any] = {
    "small": "scripted://hash",
    "large": "scripted://yes",
    "both": {"cascade": ["small", "large"], "band": "team@live"},
}


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    """Responses with six criteria each, of which two thirds are met."""
    file = tmp_path / "labelled.jsonl"
    rows = [
        {"id": f"g{n}", "prompt": "?", "responses": [f"response {n}"], "rubric": {"criteria": CRITERIA}}
        | {"labels": [{one["id"]: (n + k) % 3 != 0 for k, one in enumerate(CRITERIA)}]}
        for n in range(ROWS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


run = partial(adjudge, exit_code=0)


def fitted(labelled: str, *more: str, code: int = 0) -> Any:
    """Fit a band, and return the report."""
    judges = ("scripted://hash", "scripted://yes")
    result = adjudge("cascade", *judges, labelled, "--error", "0.1", "--json", *more, exit_code=code)
    return json.loads(result.stdout.splitlines()[0])


async def ask(engines: Any, judge: str = "both", **judging: Any) -> Any:
    """Return the answer of a service with these judges, or its refusal."""
    async with serving(engine_url="scripted://no", engines=engines) as http:
        body = {"rubric": {"criteria": CRITERIA}, "judge": judge, "judging": judging, "groups": [GROUP]}
        return (await http.post("/v1/verdicts", json=body)).json()


def test_a_service_applies_the_stored_band_until_a_judge_changes(labelled: str, tmp_path: Path) -> None:
    page = tmp_path / "curve.html"
    report = fitted(labelled, "--name", "team", "--html", str(page))
    (chosen,) = report["fitted"]
    low, high = chosen["band"]
    assert low < 0.1  # the large judge always says yes, so the small one's no is rarely final
    assert high == 0.5  # and its yes always is
    assert chosen["agreement"]["value"] > 0.9
    assert [one["escalated"]["value"] for one in report["points"]][:: len(report["points"]) - 1] == [0.0, 1.0]
    assert "<svg" in page.read_text()
    run("calibrations", "alias", "team", "live", "1")
    assert "band" in run("calibrations").stdout
    assert json.loads(run("calibrations", "show", "team").stdout)["low"] == low
    small = verdicts_of(asyncio.run(ask(JUDGES, "small")))
    inside = sum(low <= one["probability"] <= high for one in small)
    assert members_of(asyncio.run(ask(JUDGES)))["large"]["verdicts"] == inside
    refused = asyncio.run(ask(JUDGES, protocol="stepwise"))
    assert "team@1 was fitted for other judging options" in refused["detail"]
    refused = asyncio.run(ask(JUDGES | {"large": "scripted://no"}))
    assert refused["status"] == 422
    assert "team@1 was fitted for other judges: large has changed since" in refused["detail"]


def test_starting_requires_a_stored_version_of_the_right_kind(labelled: str) -> None:
    run("panel", labelled, *THREE, "--name", "p")
    for band, why in (("none@live", "there is no calibration none@live"), ("p@1", "p@1 is not a band of a cascade")):
        with pytest.raises(StartError, match=why):
            asyncio.run(ask(JUDGES | {"both": JUDGES["both"] | {"band": band}}))


def test_a_fitted_panel_is_applied_by_name(labelled: str) -> None:
    report = json.loads(run("panel", labelled, *THREE, "--json", "--name", "jury").stdout.splitlines()[0])
    assert report["judges"]["scripted://yes"]["sensitivity"] > 0.98
    assert report["judges"]["scripted://no"]["specificity"] > 0.98
    assert set(report["measured"]) == {*THREE[1::2], "equal weights", "Dawid-Skene"}
    panel = {"panel": ["small", "large", "default"], "dawid_skene": "jury"}
    answer = asyncio.run(ask(JUDGES | {"both": panel}))
    assert all(0 < one["probability"] < 1 for one in verdicts_of(answer))
    assert answer["usage"]["compared"] == answer["usage"]["disagreed"] == len(verdicts_of(answer))


def test_too_few_verdicts_show_the_curve_and_store_nothing(labelled: str) -> None:
    result = run(
        "cascade", "scripted://hash", "scripted://yes", labelled, "--limit", "10", "--name", "team", exit_code=1
    )
    assert "no band was fitted" in result.stderr
    assert "146 are needed at least" in " ".join(result.stderr.split())
    assert "agreement" in result.stdout
    assert "No calibration is stored yet" in run("calibrations").stdout


def test_evaluate_and_bakeoff_take_a_cascade_of_engine_urls(labelled: str) -> None:
    both = json.dumps({"cascade": ["scripted://hash", "scripted://yes"], "band": [0.3, 0.7]})
    measured = json.loads(run("evaluate", both, labelled, "--limit", "20", "--json").stdout)
    assert measured["judge"] == "cascade(scripted, scripted)"
    judges = [part for one in ("scripted://hash", "scripted://yes", both) for part in ("--judge", one)]
    found = json.loads(run("bakeoff", labelled, *judges, "--limit", "20", "--cost", "calls", "--json").stdout)
    calls = {one["name"]: one["cost"]["calls"]["value"] for one in found["contenders"]}
    label = "cascade(scripted://hash, scripted://yes; 0.3 to 0.7)"
    assert calls["scripted://hash"] == calls["scripted://yes"] == 1
    assert 1.2 < calls[label] < 1.6
    wrong = run("evaluate", '{"cascade": ["scripted://hash", "large"], "band": [0, 1]}', labelled, exit_code=1)
    assert "'large' is not an engine URL" in " ".join(wrong.stderr.split())


def test_a_cascade_cannot_be_calibrated(labelled: str) -> None:
    both = json.dumps({"cascade": ["scripted://hash", "scripted://yes"], "band": [0.3, 0.7]})
    refused = run("calibrate", both, labelled, "--name", "x", exit_code=1)
    assert "a cascade or panel has no calibration of its own" in " ".join(refused.stderr.split())
    judges = JUDGES | {"both": {"cascade": ["small", "large"], "band": [0, 1]}}
    with pytest.raises(ValueError, match="'both', which is a cascade or panel"):
        build_app(Settings(engines=judges, calibrations='{"both": "x"}'))
