"""Each problem as its class, and answers that are no answers."""

import pytest

from tests.trainer_client.fake_service import ScriptedReply, problem
from trainer_client import (
    AdjudgeError,
    AliasMoved,
    APIConnectionError,
    APITimeoutError,
    AuthenticationError,
    BudgetExhausted,
    ConnectionFailed,
    Forbidden,
    InProgress,
    InvalidRequest,
    JudgingFailed,
    NotFound,
    NotReady,
    Overloaded,
    RateLimitError,
    RubricRefused,
    RubricRetired,
    ServerError,
    TimedOut,
    Unauthorized,
    UnknownRubric,
)

GROUP = {"id": "q17", "prompt": "x?", "responses": ["42", "43"]}


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        ("invalid-request", 422, InvalidRequest),
        ("unsuitable-rubric", 422, RubricRefused),
        ("retired-rubric", 422, RubricRetired),
        ("alias-moved", 412, AliasMoved),
        ("in-progress", 409, InProgress),
        ("unknown-rubric", 404, UnknownRubric),
        ("not-found", 404, NotFound),
        ("method-not-allowed", 405, InvalidRequest),
        ("too-large", 413, InvalidRequest),
        ("unauthorized", 401, Unauthorized),
        ("forbidden", 403, Forbidden),
        ("overloaded", 429, Overloaded),
        ("rate-limited", 429, Overloaded),
        ("budget-exhausted", 429, BudgetExhausted),
        ("judging-failed", 502, JudgingFailed),
        ("not-ready", 503, NotReady),
        ("internal", 500, ServerError),
        ("of-a-newer-service", 404, NotFound),
        ("of-a-newer-service", 409, InvalidRequest),
        ("of-a-newer-service", 401, Unauthorized),
        ("of-a-newer-service", 403, Forbidden),
        ("of-a-newer-service", 429, Overloaded),
        ("of-a-newer-service", 507, ServerError),
    ],
)
def test_each_problem_is_raised_as_its_class_with_its_request_id(service, connect, kind, status, error):
    service.script(problem(kind, status))
    with pytest.raises(AdjudgeError) as raised:
        connect(service.url).rubric("math/quadratics")
    assert type(raised.value) is error
    assert (raised.value.status, raised.value.request_id) == (status, "req-7")
    assert raised.value.problem.type == f"urn:adjudge:{kind}"
    assert "req-7" in str(raised.value)
    assert f"{kind} happened" in str(raised.value)


def test_invalid_fields_are_named(service, connect):
    service.script(problem("invalid-request", 422, errors=[{"field": "groups.0.id", "message": "too long"}]))
    with pytest.raises(InvalidRequest, match=r"groups\.0\.id: too long") as raised:
        connect(service.url).rewards([GROUP], "r")
    assert raised.value.errors[0].field == "groups.0.id"


def test_an_error_page_of_a_proxy_is_quoted_in_part(service, connect):
    service.script(ScriptedReply(500, "<html>" + "x" * 500, {"X-Request-Id": "proxy-1"}))
    with pytest.raises(ServerError) as raised:
        connect(service.url).rubric("math/quadratics")
    assert "500" in str(raised.value)
    assert "<html>" + "x" * 194 in str(raised.value)
    assert "x" * 195 not in str(raised.value)
    assert (raised.value.request_id, raised.value.problem) == ("proxy-1", None)


@pytest.mark.parametrize(
    "reply", [ScriptedReply(200, "<html>"), ScriptedReply(200, {"not": "it"}), ScriptedReply(302, "moved")]
)
def test_an_answer_that_violates_the_contract_is_a_server_error(service, connect, reply):
    service.script(reply)
    with pytest.raises(ServerError):
        connect(service.url).rubric("math/quadratics")


@pytest.mark.parametrize("url", ["judge:8000", "ftp://judge", "http://", "http://judge:x"])
def test_an_invalid_address_is_refused_at_once(connect, url):
    with pytest.raises(ValueError, match="base_url"):
        connect(url)


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"retries": -1}, {"retry_budget_s": -1}])
def test_settings_out_of_range_are_refused_at_once(connect, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        connect("http://judge", **options)


def test_the_names_of_other_sdks_catch_the_same_errors():
    assert (AuthenticationError, RateLimitError) == (Unauthorized, Overloaded)
    assert (APIConnectionError, APITimeoutError) == (ConnectionFailed, TimedOut)
