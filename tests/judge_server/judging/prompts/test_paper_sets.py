"""Sets of templates for papers and models: what each shows, how it is answered, and what a set declares."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.engines.scripted import ScriptedEngine, always, by_hash
from judge_server.errors import InvalidRequest
from judge_server.judging.calibration import builtin_calibrations
from judge_server.judging.prompts.library import (
    Declaration,
    InvalidTemplate,
    TemplateLibrary,
    builtin_sets,
    builtin_templates,
    load_set,
    read_declaration,
)
from judge_server.judging.questions import JudgingConfig
from judge_server.ports import Batch, Call, Reply, TokenChoice
from rubric_store import RubricStore
from tests.judge_server import support
from tests.judge_server.support import STEPPED

MATERIAL = {
    "grounding": "A prime has two divisors.",
    "reference_answer": "Its divisors are 1 and 7.",
    "ground_truth": "affirmative",
}
RUBRIC = {
    "criteria": [
        {"id": "fact", "kind": "factual", "description": "States that 7 is prime.", "weight": 3},
        {"id": "reason", "kind": "process", "description": "Names a reason, such as its divisors.", "weight": 1},
    ]
}
STEPS = {
    "criteria": [
        {"id": "s", "kind": "suggest", "description": "Divides by 2."},
        {"id": "b", "kind": "bonus", "description": "Uses the sieve."},
        {"id": "answer", "kind": "answer", "description": "The final answer is yes."},
    ]
}
REQUESTS: dict[str, dict[str, Any]] = {
    "rgr": {"reward": {"mode": "factual_override"}},
    "ruscarl": {"reward": {"mode": "points"}, "judging": {"rationale": True}},
    "dro": {"reward": {"mode": "gate"}, "judging": {"rationale": True, "criteria_per_call": "all"}},
    "srar": {"reward": {"mode": "stepwise"}, "judging": {"criteria_per_call": "all"}, "rubric": STEPS},
    "grounded": {"reward": {"mode": "partial_credit"}, "judging": {"rationale": True}},
    "likert-reference": {"reward": {"mode": "likert"}},
    "granite-guardian": {"reward": {"mode": "factual_override"}},
    "granite-requirements": {"reward": {"mode": "factual_override"}},
}
"""The request options that match each set's paper or model."""


class PromptRecorder:
    """A script that records its calls."""

    def __init__(self, script: Any = by_hash) -> None:
        self.calls: list[tuple[Batch, Call]] = []
        self.script = script

    def __call__(self, batch: Batch, call: Call) -> Any:
        self.calls.append((batch, call))
        return self.script(batch, call)

    @property
    def text(self) -> str:
        """All text that the judge was shown."""
        return "\n".join("\n".join((batch.system, batch.shared, call.question)) for batch, call in self.calls)


@asynccontextmanager
async def service(
    store: RubricStore, asked: PromptRecorder, folder: Path | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service whose engine follows the script."""
    judge = await support.judge(ScriptedEngine(asked), templates=TemplateLibrary(folder))
    app = create_app(Service(rubrics=store, judges={"default": judge}))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test") as http:
        yield http
    await judge.close()


def body(name: str, response: str = STEPPED, **group: Any) -> dict[str, Any]:
    """A request about one response with a set and its paper's options, with all material unless given."""
    asks = REQUESTS[name]
    given = {"id": "g", "prompt": "Is 7 prime?", "responses": [response], **(group or MATERIAL)}
    return {"rubric": RUBRIC, **asks, "judging": {**asks.get("judging", {}), "template": name}, "groups": [given]}


def test_there_is_a_request_for_every_set_of_the_package() -> None:
    assert set(REQUESTS) == set(builtin_sets())


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_papers_judge_sees_what_the_paper_shows_and_the_answer_lists_the_withheld_fields(
    store: RubricStore, name: str
) -> None:
    asked = PromptRecorder()
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body(name))
    assert answer.status_code == 200, answer.text
    withheld = answer.json()["judge"]["withheld"]
    assert withheld == list(load_set(builtin_sets()[name]).declaration.withholds)
    assert {field: text in asked.text for field, text in MATERIAL.items()} == {
        field: field not in withheld for field in MATERIAL
    }
    assert ("States that 7 is prime." in asked.text) == (name not in ("srar", "likert-reference"))
    assert "Is 7 prime?" in asked.text
    assert answer.json()["groups"][0]["responses"][0]["status"] == "scored"


async def test_without_a_set_nothing_is_withheld(store: RubricStore) -> None:
    asked = PromptRecorder()
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("rgr") | {"judging": {}})
    assert answer.json()["judge"]["withheld"] == []
    assert all(text in asked.text for text in MATERIAL.values())


@pytest.mark.parametrize("rationale", [False, True])
@pytest.mark.parametrize(("satisfied", "reward"), [(True, 1.0), (False, 0.0)])
async def test_the_rgr_judge_rates_each_criterion_with_1_or_0(
    store: RubricStore, satisfied: bool, reward: float, rationale: bool
) -> None:
    asked = PromptRecorder(always(satisfied))
    sent = body("rgr")
    sent["judging"]["rationale"] = rationale
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=sent)
    (response,) = answer.json()["groups"][0]["responses"]
    assert response["reward"] == reward
    assert len(asked.calls) == 2
    for _, call in asked.calls:
        assert isinstance(call.answer, TokenChoice)
        assert [option.label for option in call.answer.options] == ["1", "0"]


@pytest.mark.parametrize("said", ["1", '```json\n{"rating": 1}\n```', "Rating: 1"])
async def test_a_rating_in_text_is_read(store: RubricStore, said: str) -> None:
    asked = PromptRecorder(lambda batch, call: Reply(text=said))
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("rgr"))
    assert answer.json()["groups"][0]["responses"][0]["reward"] == 1.0


async def test_a_rating_that_was_not_offered_is_a_parse_failure(store: RubricStore) -> None:
    asked = PromptRecorder(lambda batch, call: Reply(text="7"))
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("rgr"))
    (response,) = answer.json()["groups"][0]["responses"]
    assert response["reward"] is None
    assert {verdict["failure"]["kind"] for verdict in response["verdicts"]} == {"parse"}


async def test_the_ruscarl_grader_gives_reasons_and_sees_the_points(store: RubricStore) -> None:
    asked = PromptRecorder(always(True))
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("ruscarl"))
    (response,) = answer.json()["groups"][0]["responses"]
    assert all(verdict["rationale"] for verdict in response["verdicts"])
    assert "(3 points): States that 7 is prime." in asked.text
    assert "a lone one suffices" in asked.text


async def test_the_dro_judge_justifies_every_verdict_in_one_call(store: RubricStore) -> None:
    items = [{"id": 1, "reason": "It says so.", "satisfied": True}, {"id": 2, "reason": "None.", "satisfied": False}]
    asked = PromptRecorder(lambda batch, call: Reply(text=json.dumps({"verdicts": items})))
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("dro"))
    verdicts = answer.json()["groups"][0]["responses"][0]["verdicts"]
    assert [(verdict["score"], verdict["rationale"]) for verdict in verdicts] == [(1.0, "It says so."), (0.0, "None.")]
    assert len(asked.calls) == 1


async def test_the_srar_judge_attributes_items_to_steps_and_a_program_checks_the_answer(store: RubricStore) -> None:
    items = [{"id": 1, "satisfied": True, "step": 1}, {"id": 2, "satisfied": False, "step": -1}]
    asked = PromptRecorder(lambda batch, call: Reply(text=json.dumps({"verdicts": items})))
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("srar", ground_truth="yes"))
    verdicts = answer.json()["groups"][0]["responses"][0]["verdicts"]
    assert [(v["score"], v["step"], v["method"]) for v in verdicts] == [
        (1.0, 1, "judge"),
        (0.0, -1, "judge"),
        (1.0, 0, "math"),
    ]
    assert "1. SUGGEST: Divides by 2." in asked.text
    assert "carries it out correctly" in asked.text
    assert "ANSWER: The final" not in asked.text


GUARDIAN = "<think>\n</think>\n<score> {} </score>"
CHECKER = '{{"score": "{}"}}'


@pytest.mark.parametrize(
    ("name", "shape", "end"),
    [
        ("granite-guardian", GUARDIAN, "if the response meets the criteria, return 'yes'; otherwise, return 'no'."),
        ("granite-guardian", "<score>{}</score>", "### Criteria: States that 7 is prime."),
        ("granite-requirements", CHECKER, '{"score": "no"} if the constraints are not satisfied.'),
        ("granite-requirements", '{{"score":"{}"}}', "<requirements>: States that 7 is prime."),
    ],
)
@pytest.mark.parametrize(("word", "reward"), [("yes", 1.0), ("no", 0.0)])
async def test_a_model_with_a_form_of_its_own_is_asked_and_read_in_it(
    store: RubricStore, name: str, shape: str, end: str, word: str, reward: float
) -> None:
    asked = PromptRecorder(lambda batch, call: Reply(text=shape.format(word)))
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body(name))
    assert answer.json()["groups"][0]["responses"][0]["reward"] == reward
    assert any(end.casefold() in call.question.casefold() for _, call in asked.calls)
    for _, call in asked.calls:
        assert isinstance(call.answer, TokenChoice)
        said = shape.format("yes")
        assert said[call.answer.lead_end(said) :].lstrip().startswith("yes")


async def test_two_verdicts_after_leads_are_a_parse_failure(store: RubricStore) -> None:
    asked = PromptRecorder(lambda batch, call: Reply(text="<score> yes </score> <score> no </score>"))
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("granite-guardian"))
    (response,) = answer.json()["groups"][0]["responses"]
    assert {verdict["failure"]["kind"] for verdict in response["verdicts"]} == {"parse"}
    assert response["reward"] is None


@pytest.mark.parametrize("judging", [{"rationale": True}, {"think_tokens": 8}, {"criteria_per_call": 2}], ids=str)
async def test_a_set_with_a_lead_asks_for_nothing_before_or_beside_its_verdict(
    store: RubricStore, judging: dict[str, Any]
) -> None:
    sent = body("granite-guardian")
    sent["judging"] |= judging
    async with service(store, PromptRecorder()) as http:
        answer = await http.post("/v1/rewards", json=sent)
    assert answer.status_code == 422
    assert "asks for one verdict at once" in answer.text


async def test_totals_that_the_grounded_judge_writes_are_ignored(store: RubricStore) -> None:
    items = [{"id": 1, "reason": "Half of it.", "awarded": 1.5}, {"id": 2, "reason": "Yes.", "awarded": 1}]
    said = {"verdicts": items, "total": 4, "max_total": 4, "reasoning": "Very good."}
    asked = PromptRecorder(lambda batch, call: Reply(text=json.dumps(said)))
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("grounded"))
    (response,) = answer.json()["groups"][0]["responses"]
    assert response["reward"] == pytest.approx(2.5 / 4)
    assert [verdict["rationale"] for verdict in response["verdicts"]] == ["Half of it.", "Yes."]


@pytest.mark.parametrize(("name", "lacks"), [("likert-reference", "reference_answer"), ("grounded", "grounding")])
async def test_a_group_without_a_field_that_the_set_requires_is_refused(
    store: RubricStore, name: str, lacks: str
) -> None:
    asked = PromptRecorder()
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body(name, ground_truth="yes"))
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [f"groups.0.{lacks}"]
    assert f"{name!r} needs a {lacks}, which the request lacks" in answer.json()["detail"]
    assert not asked.calls


async def test_a_set_is_refused_under_a_protocol_it_does_not_support(store: RubricStore) -> None:
    asked = PromptRecorder()
    async with service(store, asked) as http:
        answer = await http.post("/v1/rewards", json=body("rgr") | {"reward": {"mode": "likert"}})
    assert answer.status_code == 422
    assert "'rgr' is for binary, but this request uses likert" in answer.json()["detail"]
    assert not asked.calls


async def test_a_users_set_overrides_a_builtin_one_and_an_invalid_one_does_not_fall_back(
    store: RubricStore, tmp_path: Path
) -> None:
    (tmp_path / "rgr").mkdir()
    (tmp_path / "rgr/question.j2").write_text("Mine: {{ criterion.description }}")
    asked = PromptRecorder()
    async with service(store, asked, tmp_path) as http:
        answer = await http.post("/v1/rewards", json=body("rgr"))
        assert answer.json()["judge"]["withheld"] == []
        assert asked.text.count("Mine: ") == 2
    (tmp_path / "rgr/question.j2").write_text("{{ oops }}")
    with pytest.raises(InvalidRequest, match="'rgr' cannot be used"):
        TemplateLibrary(tmp_path).find("rgr")


async def test_a_comparison_withholds_what_its_set_declares(store: RubricStore, tmp_path: Path) -> None:
    (tmp_path / "blind").mkdir()
    (tmp_path / "blind/comparison.j2").write_text(builtin_templates()["comparison.j2"])
    (tmp_path / "blind/set.toml").write_text(
        'protocols = ["comparison"]\nwithholds = ["reference_answer", "criteria"]\nrequires = ["grounding"]'
    )
    pair = {
        "id": "p",
        "prompt": "Is 7 prime?",
        "a": "Yes.",
        "b": "No.",
        "reference_answer": "Its divisors are 1 and 7.",
    }
    sent = {"rubric": RUBRIC, "judging": {"template": "blind"}}
    asked = PromptRecorder()
    async with service(store, asked, tmp_path) as http:
        refused = await http.post("/v1/comparisons", json={**sent, "pairs": [pair]})
        assert [error["field"] for error in refused.json()["errors"]] == ["pairs.0.grounding"]
        grounded = {**pair, "grounding": "A prime has two divisors."}
        answer = await http.post("/v1/comparisons", json={**sent, "pairs": [grounded]})
    assert answer.json()["judge"]["withheld"] == ["reference_answer", "criteria"]
    assert "A prime has two divisors." in asked.text
    assert "Its divisors" not in asked.text
    assert "States that" not in asked.text


async def test_withheld_fields_and_verdict_words_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    declaration = {
        "words": "",
        "same": 'protocols = ["binary"]',
        "blind": 'withholds = ["ground_truth"]',
        "digits": 'verdicts = ["1", "0"]',
    }
    for name, text in declaration.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "question.j2").write_text(builtin_templates()["question.j2"])
        (tmp_path / name / "set.toml").write_text(text)
    judge = await support.judge(templates=TemplateLibrary(tmp_path), calibrations=builtin_calibrations())
    prints = {name: judge.prepared(JudgingConfig("binary", template=name)).fingerprint for name in declaration}
    assert prints["words"] == prints["same"]
    assert len(set(prints.values())) == 3
    await judge.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("protocols = ", "is not valid TOML: "),
        ("# \ud800".encode("utf-8", "surrogatepass"), "this is not UTF-8 text; save the file as UTF-8"),
        ("#" * 4001, "is larger than 4,000 bytes; shorten it"),
        ('hides = ["grounding"]', "declares 'hides'; it can declare protocols, requires, withholds, verdicts"),
        ('lead = "<score>"', 'only answers of yes or no have; set protocols = ["binary"]'),
        ('protocols = ["binary"]\nlead = " "', "lead is ' '; give the text before the verdict"),
        ('protocols = ["binary"]\nlead = ["<score>"]', "give the text before the verdict"),
        ('protocols = ["binary"]\nlead = "' + "x" * 201 + '"', "of at most 200 characters"),
        ('protocols = "binary"', "protocols is 'binary'; give a list of words"),
        ("protocols = []", "protocols is []; give a list of words"),
        ("verdicts = [1, 0]", "verdicts is [1, 0]; give a list of words"),
        ('protocols = ["outcome"]', "protocols names 'outcome'; it can name binary, "),
        ('withholds = ["response"]', "withholds names 'response'; it can name grounding, reference_answer, "),
        ('requires = ["grounding", "grounding"]', "requires has a duplicate"),
        ('requires = ["grounding"]\nwithholds = ["grounding"]', "both requires and withholds grounding; choose one"),
        ('withholds = ["criteria"]', "withholds criteria, which only ratings and comparisons can do without"),
        ('protocols = ["binary"]\nwithholds = ["criteria"]', "withholds criteria, which only"),
        ('verdicts = ["yes"]', "verdicts is ['yes']; give two words of letters or digits, the one for satisfied first"),
        ('verdicts = ["met", "not met"]', "give two words of letters or digits"),
        ('verdicts = ["Met", "metall"]', "verdicts 'Met' and 'metall' begin alike"),
    ],
)
def test_an_invalid_declaration_is_refused(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "set.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidTemplate) as refused:
        read_declaration(path)
    assert str(refused.value).startswith("mine/set.toml")
    assert says in str(refused.value)


def test_a_set_without_declarations_supports_all_protocols_and_shows_all_fields(tmp_path: Path) -> None:
    assert read_declaration(tmp_path) == Declaration()
    (tmp_path / "set.toml").write_text("")
    assert read_declaration(tmp_path) == Declaration()
    (tmp_path / "set.toml").unlink()
    (tmp_path / "set.toml").mkdir()
    with pytest.raises(InvalidTemplate, match="is not a file; put a text file there, or remove it"):
        read_declaration(tmp_path)
