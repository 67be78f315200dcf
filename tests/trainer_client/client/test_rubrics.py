"""The client's rubric methods: what they send, return and raise."""

from typing import Any

import pytest

from tests.trainer_client.fake_service import CRITERION, DIGEST, VERSION, ScriptedReply, problem, summary
from trainer_client import AliasMoved, Client, InvalidRequest, RubricRetired
from trainer_client.wire import Lineage

AT = "2025-01-01T00:00:00Z"

NAME = "math/quadratics"


def calls(client: Any) -> dict[str, tuple[Any, Any, tuple[str, str], Any]]:
    """Each method by name: its call, its answer, the expected request, and the request's body."""
    alias = {"name": NAME, "alias": "production", "version": 3}
    aliases = {"name": NAME, "aliases": {"production": 3}}
    side = {"version": 2, "digest": DIGEST}
    diff = {"name": NAME, "before": side, "after": side, "unchanged": 1}
    path = f"/v1/rubrics/{NAME}"
    put = "PUT"
    return {
        "publish": (
            lambda: client.publish_rubric(
                NAME, [CRITERION], metadata={"by": "Ada"}, tags=["math"], lineage={"author": "team"}, parent=2
            ),
            VERSION,
            ("POST", f"{path}/versions"),
            {
                "criteria": [CRITERION],
                "metadata": {"by": "Ada"},
                "tags": ["math"],
                "lineage": {"author": "team"},
                "parent": 2,
            },
        ),
        "read": (lambda: client.rubric(f"{NAME}@production"), VERSION, ("GET", f"{path}@production"), None),
        "diff": (
            lambda: client.rubric_diff(NAME, 2, "production"),
            diff,
            ("GET", f"{path}/diff?from=2&to=production"),
            None,
        ),
        "newest": (lambda: client.rubric_diff(NAME, 2), diff, ("GET", f"{path}/diff?from=2&to=latest"), None),
        "aliases": (lambda: client.rubric_aliases(NAME), aliases, ("GET", f"{path}/aliases"), None),
        "move": (
            lambda: client.move_alias(NAME, "production", 3, expected=2),
            alias,
            (put, f"{path}/aliases/production"),
            {"version": 3},
        ),
        "remove": (
            lambda: client.remove_alias(NAME, "production", expected=3),
            aliases,
            ("DELETE", f"{path}/aliases/production"),
            None,
        ),
        "tag": (
            lambda: client.tag_rubric(NAME, ["a"]),
            {"name": NAME, "tags": ["a"]},
            (put, f"{path}/tags"),
            {"tags": ["a"]},
        ),
        "retire": (
            lambda: client.retire_rubric(f"{NAME}@3", "Wrong."),
            VERSION,
            (put, f"{path}@3/retirement"),
            {"reason": "Wrong."},
        ),
        "restore": (lambda: client.restore_rubric(f"{NAME}@3"), VERSION, ("DELETE", f"{path}@3/retirement"), None),
    }


CALLS = list(calls(None))


@pytest.mark.parametrize("name", CALLS)
def test_each_method_sends_its_request_and_returns_its_answer(service, connect, name):
    call, answer, target, body = calls(connect(service.url))[name]
    service.script(ScriptedReply(body=answer))
    given = call()
    [asked] = service.asked
    assert (asked.method, asked.target) == target
    assert (asked.json if asked.body else None) == body
    assert given.name == NAME


def test_omitted_fields_of_a_publication_are_not_sent(service, connect):
    service.script(ScriptedReply(body=VERSION))
    connect(service.url).publish_rubric(NAME, [CRITERION])
    assert service.asked[0].json == {"criteria": [CRITERION]}


def test_a_move_sends_its_expectation_in_the_headers(service, connect):
    alias = {"name": NAME, "alias": "production", "version": 3}
    service.script(
        ScriptedReply(body=alias), ScriptedReply(body=alias), ScriptedReply(body={"name": NAME, "aliases": {}})
    )
    client = connect(service.url)
    client.move_alias(NAME, "production", 3, expected=2)
    client.move_alias(NAME, "production", 3, expected=None)
    client.remove_alias(NAME, "production", expected=3)
    sent = [(asked.headers["If-Match"], asked.headers["If-None-Match"]) for asked in service.asked]
    assert sent == [('"2"', None), (None, "*"), ('"3"', None)]


def test_an_alias_moved_concurrently_is_named_with_its_version(service, connect):
    service.script(problem("alias-moved", 412, current_version=4))
    with pytest.raises(AliasMoved) as moved:
        connect(service.url).move_alias(NAME, "production", 3, expected=2)
    assert moved.value.problem.current_version == 4


def test_a_retired_rubric_may_be_allowed(service, connect):
    service.script(problem("retired-rubric", 422))
    with pytest.raises(RubricRetired):
        connect(service.url).verdicts([{"id": "g", "prompt": "p", "responses": ["r"]}], NAME, allow_retired=True)
    assert service.asked[0].json["allow_retired"] is True


def test_lists_are_fetched_page_by_page_with_their_filters(service, connect):
    service.script(
        ScriptedReply(body={"rubrics": [summary("a")], "next_cursor": "x&y"}),
        ScriptedReply(body={"rubrics": [summary("b")]}),
    )
    found = list(connect(service.url).rubrics("math/", tag="safe", text="final answer"))
    assert [rubric.name for rubric in found] == ["a", "b"]
    assert (found[0].tags, found[0].aliases, found[0].retired) == ((), {}, False)
    first, second = (asked.target for asked in service.asked)
    assert first == "/v1/rubrics?prefix=math%2F&tag=safe&text=final+answer"
    assert second == f"{first}&after=x%26y"


def test_a_history_is_fetched_page_by_page(service, connect):
    version = {"version": 2, "digest": DIGEST, "criteria_count": 1, "created_at": AT}
    service.script(
        ScriptedReply(body={"name": NAME, "versions": [version], "next_cursor": "Mg"}),
        ScriptedReply(body={"name": NAME, "versions": [version | {"version": 1}]}),
    )
    assert [v.version for v in connect(service.url).rubric_history(NAME)] == [2, 1]
    assert [asked.target for asked in service.asked] == [
        f"/v1/rubrics/{NAME}/versions",
        f"/v1/rubrics/{NAME}/versions?after=Mg",
    ]


def test_lineage_may_be_a_model(service, connect):
    service.script(ScriptedReply(body=VERSION | {"lineage": {"author": "team"}, "parent": 2}))
    version = connect(service.url).publish_rubric(NAME, [CRITERION], lineage=Lineage(author="team"))
    assert (version.lineage, version.parent) == (Lineage(author="team"), 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.publish_rubric("a/diff", [CRITERION]), "'diff'"),
        (lambda c: c.publish_rubric("a" * 10_000, [CRITERION]), "200"),
        (lambda c: c.publish_rubric("a", [CRITERION], tags=["No Tag"]), "tags"),
        (lambda c: c.publish_rubric("a", [CRITERION], metadata={"a": "x" * 70_000}), "65536"),
        (lambda c: c.move_alias("a", "latest", 1, expected=None), "newest"),
        (lambda c: c.move_alias("a", "production", 0, expected=None), "version"),
        (lambda c: c.move_alias("Bad", "production", 1, expected=None), "such as math/algebra"),
        (lambda c: c.retire_rubric("a@1", "  "), "reason"),
        (lambda c: c.retire_rubric("No", "Wrong."), "name@3"),
        (lambda c: c.tag_rubric("a", ["x"] * 65), "tags"),
        (lambda c: c.rubric("a" * 201), "name@3"),
    ],
)
def test_a_request_that_violates_the_contract_is_not_sent(service, connect, call, said):
    with pytest.raises(InvalidRequest, match=said) as refused:
        call(connect(service.url))
    assert refused.value.status is None
    assert service.asked == []


class TestRubrics:
    @pytest.mark.parametrize("reference", ["math/quadratics", "math/quadratics@3", DIGEST])
    def test_a_rubric_is_fetched_by_each_form_of_reference(self, service, connect, reference):
        service.script(ScriptedReply(body=VERSION))
        assert connect(service.url).rubric(reference).criteria[0].id == "c1"
        assert service.asked[0].target == f"/v1/rubrics/{reference}"

    @pytest.mark.parametrize("reference", ["", "Bad Name", "a@0", "../../readyz", "a/../../runs", "a//b", "a?b=c"])
    def test_an_invalid_reference_is_refused_before_it_is_sent(self, service, connect, reference):
        with pytest.raises(InvalidRequest):
            connect(service.url).rubric(reference)
        assert service.asked == []

    def test_pages_are_fetched_lazily(self, service):
        service.script(ScriptedReply(body={"rubrics": [summary("a")], "next_cursor": "a"}))
        with Client(service.url) as client:
            next(client.rubrics())
        assert len(service.asked) == 1
