"""Adjudge beside its peers: the judged material, the scripted server's replies and counts, and failed judgements."""

import asyncio
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace

import httpx2
import pytest
from benchmarks.peers.driving import DriverConfig, Pass, Score, SingleCallDriver, run_pass
from benchmarks.peers.processes import PeerUnavailable, driver
from benchmarks.peers.replies import FORMS, GARBAGE, Form, verdict_text
from benchmarks.peers.scripted_server import BATCHED, BLOCK, PrefixCache, Script, control
from benchmarks.peers.worksheets import criteria, fault, pair, question, response, truth
from benchmarks.server import running_module
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.openai.engine import OpenAIEngine

SETTING = DriverConfig(url="http://127.0.0.1:9/v1", model="yes-no", criteria=3, in_flight=2, timeout_s=1.0)


def body(number: int = 0, criterion: int = 0, form: str = "yes-no", **options: object) -> bytes:
    """A contender's request."""
    content = f"{question(1)}\n{response(1, number)}\n{criteria(12)[criterion]}"
    messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": content}]
    return json.dumps({"model": form, "messages": messages, **options}).encode()


def said(reply: bytes | None) -> str:
    """The text of a completion."""
    assert reply is not None
    text: str = json.loads(reply)["choices"][0]["message"]["content"]
    return text


def test_faults_hit_every_contender_alike_and_a_retry_may_succeed() -> None:
    drawn = [fault(pair(f"1-{n}", c), 0) for n in range(64) for c in range(12)]
    assert drawn == [fault(pair(f"77-{n}", c), 0) for n in range(64) for c in range(12)]
    assert drawn != [fault(pair(f"1-{n}", c), 1) for n in range(64) for c in range(12)]
    assert 0.005 < sum(one < 0.02 for one in drawn) / len(drawn) < 0.05


@pytest.mark.parametrize("form", FORMS)
def test_the_server_gives_the_true_verdict_on_the_pair_in_the_prompt(form: Form) -> None:
    script = Script()
    for number, criterion in ((0, 0), (3, 7), (9, 11)):
        reply, judged = script.answer(body(number, criterion, form))
        assert judged == [pair(f"1-{number}", criterion)]
        assert said(reply) == verdict_text(form, criterion, truth(judged[0]))


def test_log_probabilities_are_sent_where_requested() -> None:
    script = Script()
    with_them, judged = script.answer(body(logprobs=True, top_logprobs=20))
    without, _ = script.answer(body())
    assert with_them is not None
    assert without is not None
    tops = json.loads(with_them)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert [top["token"] for top in tops] == (["yes", "no"] if truth(judged[0]) else ["no", "yes"])
    assert "logprobs" not in json.loads(without)["choices"][0]


def test_garbage_and_hangs_are_not_verdicts_and_every_call_is_counted() -> None:
    script = Script()
    script.begin(replace(script.faults, garbage=1.0))
    reply, judged = script.answer(body())
    assert (said(reply), judged) == (GARBAGE, [])
    script.faults = replace(script.faults, garbage=0.0, hang=1.0)
    assert script.answer(body()) == (None, [])
    told = script.counts()
    assert (told["calls"], told["again"], told["answered"]) == (2, 1, [])


def test_several_conversations_in_one_request_have_the_answers_that_each_has_alone() -> None:
    bodies = [json.loads(body(number, criterion)) for number, criterion in ((0, 0), (3, 7), (9, 11))]
    together = json.dumps(bodies[0] | {"messages": [one["messages"] for one in bodies], "logprobs": True}).encode()
    alone = Script()
    single = [json.loads(alone.answer(json.dumps(one | {"logprobs": True}).encode())[0] or b"") for one in bodies]
    script = Script()
    reply, judged = script.answer_together(together)
    assert reply is not None
    answer = json.loads(reply)
    assert judged == [pair("1-0", 0), pair("1-3", 7), pair("1-9", 11)]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice | {"index": 0} for choice in answer["choices"]] == [one["choices"][0] for one in single]
    assert answer["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in single)
    assert script.counts() | {"cpu_s": 0} == alone.counts() | {"cpu_s": 0}


def test_several_conversations_never_arrive_if_one_of_them_does_not() -> None:
    script = Script()
    script.begin(replace(script.faults, hang=1.0))
    one = json.loads(body())
    assert script.answer_together(json.dumps(one | {"messages": [one["messages"]] * 2}).encode()) == (None, [])
    assert script.counts()["calls"] == 2


def test_an_unknown_control_of_the_server_is_refused() -> None:
    with pytest.raises(AssertionError, match="unknown"):
        control(slow=1.0)


def test_a_prompt_is_computed_except_for_its_cached_blocks() -> None:
    cache, shared = PrefixCache(), "a" * (3 * BLOCK)
    assert cache.read(shared + "b" * BLOCK) == (4 * BLOCK // 4, 0)
    assert cache.read(shared + "c" * BLOCK) == (4 * BLOCK // 4, 3 * BLOCK // 4)
    assert cache.read("z" + shared) == ((3 * BLOCK + 1) // 4, 0)
    cache.forget()
    assert cache.read(shared) == (3 * BLOCK // 4, 0)


BLOCKS = st.lists(st.sampled_from(["a" * BLOCK, "b" * BLOCK]), max_size=5).map("".join)


@given(st.lists(st.builds(str.__add__, BLOCKS, st.text("c", max_size=BLOCK - 1)), max_size=6))
def test_the_cache_reuses_the_longest_known_prefix_in_whole_blocks(prompts: list[str]) -> None:
    def common(one: str, other: str) -> int:
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

    cache = PrefixCache()
    for place, prompt in enumerate(prompts):
        longest = max((common(prompt, other) for other in prompts[:place]), default=0)
        assert cache.read(prompt) == (len(prompt) // 4, longest // BLOCK * BLOCK // 4)


async def test_every_criterion_of_every_response_is_asked_within_the_concurrency_limit() -> None:
    asked: list[tuple[str, str]] = []
    under_way = most = 0

    async def ask(problems: str, text: str, criterion: str) -> Score:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        asked.append((text, criterion))
        return float(criterion[:3] == "K01")

    for timed in (False, True):
        asked.clear()
        took = await run_pass(SingleCallDriver(SETTING, ask), Pass(5, 3, timed=timed), [])
        assert took.scores == [[0.0, 1.0, 0.0]] * 3
        assert sorted(asked) == sorted((response(5, n), c) for n in range(3) for c in criteria(3))
        assert len(took.latencies) == (3 if timed else 0)
    assert most == SETTING.in_flight


async def test_a_pass_that_fails_reports_the_error_and_leaves_no_open_call() -> None:
    under_way: set[str] = set()

    async def ask(problems: str, text: str, criterion: str) -> Score:
        under_way.add(criterion)
        try:
            await asyncio.sleep(0 if criterion.startswith("K00") else 3600)
            raise RuntimeError("the server is gone")
        finally:
            under_way.remove(criterion)

    took = await run_pass(SingleCallDriver(SETTING, ask), Pass(5, 1), [])
    assert took.error == "RuntimeError: the server is gone"
    await asyncio.sleep(0)
    assert not under_way


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_module("benchmarks.peers.scripted_server") as (root, _):
        yield root


async def test_the_server_stops_at_the_configured_call_and_restarts_with_its_counts(server: str) -> None:
    async with httpx2.AsyncClient(base_url=server) as http:
        await http.post("/control", content=control(restart_at=2, down_s=0.2))
        url = "/v1/chat/completions"
        assert (await http.post(url, content=body(1))).status_code == 200
        with pytest.raises(httpx2.TransportError):
            await http.post(url, content=body(2))
        with pytest.raises(httpx2.ConnectError):
            await http.post(url, content=body(2))
        for _ in range(100):
            try:
                answer = await http.post(url, content=body(2))
                break
            except httpx2.TransportError:
                await asyncio.sleep(0.05)
        assert json.loads(answer.content)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        told = (await http.get("/counts")).json()
    assert (told["calls"], told["again"], len(told["answered"])) == (3, 1, 2)


async def test_only_the_batched_api_takes_several_conversations(server: str) -> None:
    one = json.loads(body())
    together = json.dumps(one | {"messages": [one["messages"]] * 2}).encode()
    async with httpx2.AsyncClient(base_url=server) as http:
        await http.post("/control", content=control())
        answers = [await http.post(f"{path}/v1/chat/completions/batch", content=together) for path in (BATCHED, "")]
    assert [answer.status_code for answer in answers] == [200, 404]
    assert len(answers[0].json()["choices"]) == 2


@pytest.mark.parametrize("path", [BATCHED, ""])
async def test_adjudge_uses_the_batch_route_where_it_is(server: str, path: str) -> None:
    async with httpx2.AsyncClient(base_url=server) as http:
        await http.post("/control", content=control())
    engine = OpenAIEngine(f"{server}{path}/v1")
    await engine.start()
    assert engine.endpoint is not None
    assert engine.endpoint.batches == bool(path)
    await engine.close()


async def test_a_contender_that_is_not_installed_is_unavailable_with_the_way_to_install_it() -> None:
    with pytest.raises(PeerUnavailable, match="make bench-peers"):
        async with driver("/nowhere/bin/python", "gather", SETTING):
            pass


async def test_a_contender_that_cannot_start_is_unavailable_with_its_last_output() -> None:
    with pytest.raises(PeerUnavailable, match="No module named"):
        async with driver(sys.executable, "nobody", SETTING):
            pass
