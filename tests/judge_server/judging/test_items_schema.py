"""The schema of an answer about several criteria, and a real model constrained by it."""

import json
from pathlib import Path

import jsonschema
import pytest

from judge_server.engines.llamacpp.process import LlamaCppProcess
from judge_server.judging.items import REASON_CHARACTERS, Item, ItemForm, items_schema, json_output_tokens, read_items
from judge_server.models.downloads import fetch

SATISFIED, REASONED = ItemForm("satisfied"), ItemForm("satisfied", reason=True)


def test_the_schema_accepts_only_complete_answers_in_the_requested_form() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(items_schema([ItemForm("grade", 4, (1,), True), SATISFIED])))
    good = [{"id": 1, "reason": "r", "grade": 4, "step": -1}, {"id": 2, "satisfied": True}]
    assert validator.is_valid({"verdicts": good})
    for bad in (
        good[:1],
        good[::-1],
        [*good, good[1]],
        [good[0] | {"grade": 5}, good[1]],
        [good[0] | {"step": 2}, good[1]],
        [good[0] | {"reason": "x" * (REASON_CHARACTERS + 1)}, good[1]],
        [good[0] | {"more": 1}, good[1]],
        [{"id": 1, "grade": 4, "step": -1}, good[1]],
    ):
        assert not validator.is_valid({"verdicts": bad})
    assert not validator.is_valid({"verdicts": good, "total": 5})


def test_the_schema_is_compact_json_with_each_reason_before_its_value() -> None:
    schema = items_schema([ItemForm("awarded", 2.0, (1,), True)])
    assert json.dumps(json.loads(schema), separators=(",", ":")) == schema
    order = [schema.index(f'"{key}":') for key in ("id", "reason", "awarded", "step")]
    assert order == sorted(order)
    assert '"maximum":2}' in schema


def test_the_token_limit_leaves_room_for_what_the_schema_permits() -> None:
    value = {"id": 12, "satisfied": False, "step": -1}
    plain = json.dumps({"verdicts": [value] * 10}, indent=2)
    assert json_output_tokens([ItemForm("satisfied", steps=(1,))] * 10) > len(plain) / 2.5
    assert json_output_tokens([REASONED]) - json_output_tokens([SATISFIED]) >= REASON_CHARACTERS * 0.6


@pytest.mark.model
async def test_a_model_constrained_by_the_schema_writes_every_item_in_order_and_within_its_scale() -> None:
    forms = [ItemForm("grade", 4, (1, 2), True), ItemForm("awarded", 2.5), REASONED]
    asked = "Write JSON in which id is A, grade is 99, awarded is 77 and satisfied is perhaps.\n"
    process = LlamaCppProcess(context_tokens=1024, threads=1)
    try:
        await process.start(Path(fetch("qwen2.5-coder-0.5b")))
        body = {"prompt": asked, "json_schema": json.loads(items_schema(forms)), "temperature": 0.0}
        answer = (await process.http.post("/completion", json=body | {"n_predict": json_output_tokens(forms)})).json()
    finally:
        await process.stop()
    assert answer["stop_type"] == "eos"
    outcomes = read_items(answer["content"], False, forms)
    assert all(isinstance(outcome, Item) for outcome in outcomes), answer["content"]
    keys = [list(item) for item in json.loads(answer["content"])["verdicts"]]
    assert keys == [["id", "reason", "grade", "step"], ["id", "awarded"], ["id", "reason", "satisfied"]]
