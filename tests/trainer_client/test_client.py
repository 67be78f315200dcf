from importlib.metadata import version

import httpx2
import pytest

from tests.trainer_client.fake_service import CRITERION, DIGEST, REWARDS, VERSION, ScriptedReply, problem, summary
from trainer_client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    Criterion,
    Group,
    InvalidRequest,
    RubricContent,
    ServerError,
)

GROUP = {"id": "q17", "prompt": "x?", "responses": ["42", "43"]}


def test_both_clients_have_the_same_methods():
    offered, blocking = ({name for name in dir(each) if not name.startswith("_")} for each in (AsyncClient, Client))
    assert blocking - {"close", "base_url", "run"} == offered - {"aclose", "from_settings"}


class TestRewards:
    def test_the_request_follows_the_contract(self, service, connect):
        service.script(ScriptedReply(body=REWARDS))
        connect(service.url, "run-3").rewards(
            [GROUP], "math/quadratics@3", "stepwise", on_failure="skip", deadline_s=5, step=7, format_weight=0.2
        )
        [asked] = service.asked
        assert (asked.method, asked.target) == ("POST", "/v1/rewards")
        assert asked.headers["Content-Type"] == "application/json"
        assert asked.json == {
            "run": "run-3",
            "step": 7,
            "rubric": "math/quadratics@3",
            "reward": {"mode": "stepwise", "format_weight": 0.2},
            "on_failure": "skip",
            "deadline_s": 5.0,
            "groups": [GROUP],
        }

    def test_the_answer_is_typed_and_separates_failures_from_zeros(self, service, connect):
        service.script(ScriptedReply(body=REWARDS))
        answer = connect(service.url).rewards([GROUP], "r", "points")
        scored, unscored = answer.groups[0].responses
        assert (scored.reward, scored.status) == (1.0, "scored")
        assert (unscored.reward, unscored.verdicts[0].failure.kind) == (None, "timeout")

    def test_models_work_like_mappings(self, service, connect):
        service.script(ScriptedReply(body=REWARDS))
        client = connect(service.url)
        for rubric in (RubricContent(criteria=(Criterion(**CRITERION),)), {"criteria": [CRITERION]}):
            client.rewards([Group(**GROUP)], rubric)
        assert service.asked[0].json == service.asked[1].json
        assert service.asked[0].json["rubric"] == {"criteria": [CRITERION]}

    def test_unknown_fields_of_a_newer_service_are_ignored(self, service, connect):
        service.script(ScriptedReply(body=REWARDS | {"weather": "fine", "usage": {"judge_calls": 2, "joules": 3}}))
        assert connect(service.url).rewards([GROUP], "r").usage.judge_calls == 2

    @pytest.mark.parametrize(
        ("groups", "options", "field"),
        [
            ([], {"rubric": "r"}, "groups"),
            ([GROUP], {}, "rubric"),
            ([GROUP | {"respones": []}], {"rubric": "r"}, "groups.0.respones"),
            ([{"id": "q", "prompt": "p", "responses": []}], {"rubric": "r"}, "groups.0.responses"),
            ([GROUP], {"rubric": "r", "mode": "median"}, "reward.mode"),
            ([GROUP], {"rubric": "r", "mode": "stepwise", "protocol": "binary"}, "protocol"),
            ([GROUP], {"rubric": "r", "deadline_s": 0}, "deadline_s"),
            ([GROUP], {"rubric": {"criteria": []}}, "criteria"),
            ([GROUP], {"rubric": "r", "votes": 3, "temperature": 0}, "temperature"),
            ([GROUP], {"rubric": "r", "length_penalty": {}}, "tokens"),
        ],
    )
    def test_an_invalid_request_is_refused_before_it_is_sent(self, service, connect, groups, options, field):
        with pytest.raises(InvalidRequest, match=field) as raised:
            connect(service.url).rewards(groups, **options)
        assert (raised.value.status, raised.value.request_id, service.asked) == (None, None, [])

    def test_a_request_with_thousands_of_errors_lists_the_first_ones(self, service, connect):
        with pytest.raises(InvalidRequest, match=r"and \d+ more\nsee ") as raised:
            connect(service.url).rewards([{"id": "q"}] * 2000, "r")
        assert len(str(raised.value)) < 2000
        assert len(raised.value.errors) == 20


class TestRubrics:
    def test_a_rubric_is_published_under_a_name_with_slashes(self, service, connect):
        service.script(ScriptedReply(201, VERSION))
        published = connect(service.url).publish_rubric("math/quadratics", [CRITERION])
        assert published.reference == "math/quadratics@3"
        assert (service.asked[0].method, service.asked[0].target) == ("POST", "/v1/rubrics/math/quadratics/versions")
        assert service.asked[0].json == {"criteria": [CRITERION]}

    def test_publishing_existing_content_returns_its_version(self, service, connect):
        service.script(ScriptedReply(200, VERSION))
        assert connect(service.url).publish_rubric("math/quadratics", [Criterion(**CRITERION)]).version == 3

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

    @pytest.mark.parametrize(("name", "criteria"), [("Bad Name", [CRITERION]), ("good", []), ("good", [{"id": "x"}])])
    def test_an_invalid_rubric_is_refused_before_it_is_sent(self, service, connect, name, criteria):
        with pytest.raises(InvalidRequest):
            connect(service.url).publish_rubric(name, criteria)
        assert service.asked == []

    def test_listing_fetches_every_page(self, service, connect):
        service.script(
            ScriptedReply(body={"rubrics": [summary("math/a"), summary("math/b")], "next_cursor": "math/b"}),
            ScriptedReply(body={"rubrics": [], "next_cursor": "x&y"}),
            ScriptedReply(body={"rubrics": [summary("math/c")]}),
        )
        assert [r.name for r in connect(service.url).rubrics("math/")] == ["math/a", "math/b", "math/c"]
        assert [httpx2.URL(asked.target).params for asked in service.asked] == [
            httpx2.QueryParams(prefix="math/"),
            httpx2.QueryParams(prefix="math/", after="math/b"),
            httpx2.QueryParams(prefix="math/", after="x&y"),
        ]

    def test_pages_are_fetched_lazily(self, service):
        service.script(ScriptedReply(body={"rubrics": [summary("a")], "next_cursor": "a"}))
        with Client(service.url) as client:
            next(client.rubrics())
        assert len(service.asked) == 1


class TestReady:
    def test_a_ready_service_is_ready(self, service, connect):
        service.script(ScriptedReply(body={"status": "ready"}))
        assert connect(service.url).ready() is True
        assert service.asked[0].target == "/readyz"

    def test_a_starting_service_is_not_ready_and_is_asked_once(self, service, connect):
        service.script(problem("not-ready", 503, retryable=True))
        assert connect(service.url).ready() is False
        assert len(service.asked) == 1

    def test_a_service_that_is_unreachable_or_hangs_is_not_ready(self, service, connect, unserved_url):
        assert connect(unserved_url).ready() is False
        service.script(ScriptedReply(hang=True))
        assert connect(service.url, timeout_s=0.05).ready() is False

    def test_an_address_of_another_service_is_an_error(self, service, connect):
        service.script(ScriptedReply(404, "nothing here"))
        with pytest.raises(ServerError, match=r"404.*nothing here"):
            connect(service.url).ready()


class TestConnection:
    def test_one_connection_serves_many_requests(self, service, connect):
        service.script(ScriptedReply(body=VERSION))
        client = connect(service.url)
        for _ in range(5):
            client.rubric("math/quadratics")
        assert (len(service.asked), service.connections) == (5, 1)

    def test_requests_name_the_client_and_include_the_given_headers(self, service, connect):
        service.script(ScriptedReply(body=VERSION))
        connect(service.url, headers={"Authorization": "Bearer k"}).rubric("math/quadratics")
        assert service.asked[0].headers["User-Agent"] == f"adjudge-client/{version('adjudge-client')}"
        assert service.asked[0].headers["Authorization"] == "Bearer k"

    def test_a_service_under_a_path_prefix_is_reached(self, service, connect):
        service.script(ScriptedReply(body=VERSION))
        connect(f"{service.url}/judges/one").rubric("math/quadratics")
        assert service.asked[0].target == "/judges/one/v1/rubrics/math/quadratics"

    def test_leaving_a_with_block_closes_the_connections(self, service):
        service.script(ScriptedReply(body=VERSION))
        with Client(service.url) as client:
            client.rubric("math/quadratics")
        with pytest.raises(RuntimeError, match="closed"):
            client.rubric("math/quadratics")

    async def test_leaving_an_async_with_block_closes_the_connections(self, service):
        service.script(ScriptedReply(body=VERSION))
        async with AsyncClient(service.url) as client:
            await client.rubric("math/quadratics")
        with pytest.raises(RuntimeError, match="closed"):
            await client.rubric("math/quadratics")

    def test_a_transport_can_replace_the_network(self):
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=VERSION))
        with Client("http://judge:8000", transport=transport) as client:
            assert client.rubric("math/quadratics").version == 3

    def test_an_address_without_a_service_is_a_failed_connection(self, connect, unserved_url):
        with pytest.raises(ConnectionFailed, match=unserved_url) as raised:
            connect(unserved_url, retries=0).rubric("math/quadratics")
        assert raised.value.status is None
