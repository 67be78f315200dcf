"""`/v1/compat/openrlhf` and `/v1/compat/slime` with the requests of OpenRLHF 0.11.0 and slime 0.3.1, from their code.

OpenRLHF: `SingleTurnAgentExecutor._fetch_rewards_via_http` in `openrlhf/utils/agent.py`. slime: `remote_rm` in
`slime/rollout/rm_hub/__init__.py`. `tests/services/api/test_compat.py` sends the same over a socket to a real service.
"""

import json
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from judge_server.api.compat.scoring import JudgeInputs, Label
from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.ports import Batch, Call, CallFailure, Reply
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.api.test_failures import failing
from tests.judge_server.conftest import Serve

PROMPT = "<|im_start|>user\nIs 7 prime?<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
CRITERIA = [
    {"id": "seven", "description": "Names the 7.", "verification": {"method": "contains", "all_of": ["7"]}},
    {"id": "short", "weight": 3, "description": "One word.", "verification": {"method": "regex", "pattern": r"^\w+$"}},
]
JUDGED = [{"id": "kind", "description": "Is kind."}]
LABEL = json.dumps({"prompt": "Is 7 prime?", "rubric": CRITERIA})
OPENRLHF = f"/v1/compat/openrlhf?end={quote(END)}"
SLIME = "/v1/compat/slime"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without a pause."""
    monkeypatch.setattr("judge_server.api.compat.scoring.FIRST_RETRY_AFTER_S", 0.001)


async def to_openrlhf(http: httpx2.AsyncClient, *responses: str, label: Any = LABEL, url: str = OPENRLHF) -> Any:
    """The answer to one request of OpenRLHF."""
    body = {
        "query": [f"{PROMPT}{response}{END}" for response in responses],
        "prompts": [PROMPT] * len(responses),
        "labels": [label] * len(responses),
    }
    return await http.post(url, json=body)


async def to_slime(http: httpx2.AsyncClient, response: str, label: Any = LABEL, query: str = "") -> Any:
    """The answer to one request of slime."""
    return await http.post(SLIME + query, json={"prompt": PROMPT, "response": response, "label": label})


def problem_with(status: int, answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return checked_problem(answer)


async def published(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/rubrics/math/short/versions", json={"criteria": CRITERIA})
    assert answer.status_code == 201, answer.text


async def test_openrlhf_gets_a_list_of_rewards_for_the_text_after_the_prompt(http: httpx2.AsyncClient) -> None:
    for response, reward in (("7", 1.0), ("It is 7.", 0.25), ("yes", 0.75)):
        answer = await to_openrlhf(http, response)
        assert answer.json() == {"rewards": [reward], "scores": [reward], "extra_logs": {"rubric": [reward]}}
    both = await to_openrlhf(http, "7", "It is 7.", "7")
    assert both.json()["rewards"] == [1.0, 0.25, 1.0]


async def test_component_rewards_are_answered_where_a_trainer_keeps_them(http: httpx2.AsyncClient) -> None:
    answer = await to_openrlhf(http, "It is 7.", url=f"{OPENRLHF}&components=criterion")
    logs = {"rubric": [0.25], "rubric/seven": [1.0], "rubric/short": [0.0]}
    assert answer.json() == {"rewards": [0.25], "scores": [0.25], "extra_logs": logs}
    answer = await to_slime(http, "It is 7.", query="?answer=object&components=kind")
    assert answer.json()["components"] == {"point": 0.25}
    answer = await to_slime(http, "7", query="?answer=object&components=criteria")
    assert problem_with(422, answer)["errors"][0]["field"] == "query.components"


async def test_scores_for_openrlhfs_filter_lie_between_0_and_1(http: httpx2.AsyncClient) -> None:
    label = {"rubric": [CRITERIA[0] | {"weight": 5}, {**CRITERIA[1], "weight": -2}]}
    answer = await to_openrlhf(http, "yes", label=label, url=f"{OPENRLHF}&mode=points")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["rewards"][0] < 0, answer.json()["scores"]) == (True, [0.0])


async def test_slime_gets_a_number_or_an_object_with_the_criteria(http: httpx2.AsyncClient) -> None:
    answer = await to_slime(http, "It is 7.")
    assert (answer.json(), answer.headers["content-type"]) == (0.25, "application/json")
    answer = await to_slime(http, "It is 7.", query="?answer=object")
    assert answer.json() == {"reward": 0.25, "status": "scored", "criteria": {"seven": 1.0, "short": 0.0}}
    messages = [{"role": "user", "content": "Is 7 prime?"}]
    answer = await http.post(SLIME, json={"prompt": messages, "response": "7", "label": json.loads(LABEL)})
    assert answer.json() == 1.0


@pytest.mark.parametrize("number", [10**400, -(10**400), 10**22 + 1], ids=("large", "small", "exact"))
async def test_a_ground_truth_beyond_every_float_is_read_exactly(http: httpx2.AsyncClient, number: int) -> None:
    response = f"\\boxed{{{number}}}"
    assert (await to_slime(http, response, label=number, query="?mode=outcome")).json() == 1.0
    label = {"ground_truth": number}
    assert (await to_slime(http, response, label=json.dumps(label), query="?mode=outcome")).json() == 1.0
    assert (await to_slime(http, "\\boxed{7}", label=label, query="?mode=outcome")).json() == 0.0


async def test_the_url_names_a_rubric_for_rows_without_one(http: httpx2.AsyncClient) -> None:
    await published(http)
    assert (await to_slime(http, "7", label=None, query="?rubric=math/short@1")).json() == 1.0
    assert (await to_slime(http, "\\boxed{7}", label="7", query="?mode=outcome")).json() == 1.0
    assert (await to_slime(http, "\\boxed{8}", label=7, query="?mode=outcome")).json() == 0.0
    (error,) = checked_problem(await to_slime(http, "7", label="7"))["errors"]
    assert "has no rubric" in error["message"]


async def test_a_query_that_does_not_begin_with_its_prompt_is_refused(http: httpx2.AsyncClient) -> None:
    for prompt in ("another prompt", ""):
        body = {"query": [f"{PROMPT}7{END}"], "prompts": [prompt], "labels": [LABEL]}
        (error,) = checked_problem(await http.post(OPENRLHF, json=body))["errors"]
        assert error["field"] == "query.0"
        assert "cannot be told from it" in error["message"]
    uneven = await http.post(OPENRLHF, json={"query": ["a", "b"], "prompts": ["a"], "labels": [None]})
    assert "2, 1 and 1" in checked_problem(uneven)["detail"]


async def test_a_mistake_in_the_setup_is_refused_with_its_field(http: httpx2.AsyncClient) -> None:
    for query, place in (
        ("?rubrik=a@1", "rubrik"),
        ("?on_failure=null", "on_failure"),
        ("?deadline_s=120", "deadline_s"),
    ):
        (error,) = checked_problem(await to_slime(http, "7", query=query))["errors"]
        assert error["field"].endswith(place), error
    (error,) = checked_problem(await to_slime(http, "7", label={"rubrik": CRITERIA}))["errors"]
    assert error["field"] == "label.rubrik"
    (error,) = checked_problem(await to_slime(http, "7", query="?mode=ranking"))["errors"]
    assert "one response at a time" in error["message"]
    assert problem_with(404, await to_slime(http, "7", label=None, query="?rubric=no/such@1"))


@pytest.mark.parametrize("policy", ["error", "zero", "skip"])
async def test_a_failure_is_an_error_unless_the_url_names_a_policy(serve: Serve, policy: str) -> None:
    http = await serve(failing("Is kind", kind="parse"))
    label = {"rubric": [CRITERIA[0], *JUDGED]}
    for answer in (
        await to_openrlhf(http, "7", label=label, url=f"{OPENRLHF}&on_failure={policy}"),
        await to_slime(http, "7", label=label, query=f"?on_failure={policy}"),
    ):
        if policy == "error":
            problem = problem_with(502, answer)
            assert "'kind' failed (parse): the script says so" in problem["detail"]
            assert problem["retryable"] is True
        else:
            assert answer.status_code == 200
            reward = answer.json() if isinstance(answer.json(), float) else answer.json()["rewards"][0]
            assert reward == {"zero": 0.0, "skip": 1.0}[policy]


async def test_a_transient_failure_is_retried_until_there_is_a_reward(serve: Serve) -> None:
    failures = 7

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        nonlocal failures
        failures -= 1
        return by_hash(batch, call) if failures < 0 else CallFailure("engine", "away for a moment")

    http = await serve(ScriptedEngine(script))
    answer = await to_slime(http, "7", label={"rubric": JUDGED})
    assert (answer.status_code, answer.json()) in ((200, 0.0), (200, 1.0))
    assert failures < 0


async def test_a_persistent_failure_is_an_error_at_the_deadline(serve: Serve) -> None:
    http = await serve(failing("Is kind"))
    started = await to_slime(http, "7", label={"rubric": JUDGED}, query="?deadline_s=0.2")
    assert "failed (" in problem_with(502, started)["detail"]


async def test_a_judge_that_is_loading_is_an_error_at_the_deadline(serve: Serve) -> None:
    http = await serve(loaded=False)
    assert (
        problem_with(503, await to_slime(http, "7", label={"rubric": JUDGED}, query="?deadline_s=0.1"))["retryable"]
        is True
    )


LABELS: TypeAdapter[JudgeInputs] = TypeAdapter(Label)
read_label = LABELS.validate_python


@given(st.text(max_size=40).filter(lambda text: text and not text.lstrip().startswith("{")))
def test_a_label_that_is_not_an_object_is_the_ground_truth(text: str) -> None:
    assert read_label(text) == JudgeInputs(ground_truth=text)


def test_a_label_is_the_ground_truth_or_the_judges_inputs() -> None:
    assert read_label(None) == read_label("") == JudgeInputs()
    assert read_label(7.0) == read_label("7") == JudgeInputs(ground_truth="7")
    assert read_label("{1, 2}") == JudgeInputs(ground_truth="{1, 2}")
    assert read_label('{"ground_truth": 7, "rubric": "a/b@1"}') == JudgeInputs(ground_truth="7", rubric="a/b@1")
    for label in (True, ["7"], {"answer": "7"}, '{"answer": "7"}'):
        with pytest.raises(ValidationError):
            read_label(label)


NOT_STRICT = ('{"ground_truth": NaN}', '{"ground_truth": 1e999}', '{"ground_truth": "7", "ground_truth": "8"}')


@pytest.mark.parametrize("label", NOT_STRICT)
@pytest.mark.parametrize("large", [False, True])
async def test_labels_are_strict_json(http: httpx2.AsyncClient, label: str, large: bool) -> None:
    padded = label + " " * (300_000 if large else 0)
    (error,) = checked_problem(await to_slime(http, "7", label=padded, query="?mode=outcome"))["errors"]
    assert error["field"] == "label"
    (error,) = checked_problem(await to_openrlhf(http, "7", label=padded))["errors"]
    assert error["field"] == "labels.0"


async def test_a_label_of_many_values_is_refused(http: httpx2.AsyncClient) -> None:
    many = '{"rubric": [' + "1," * 1_000_001 + "1]}"
    assert problem_with(413, await to_slime(http, "7", label=many))
