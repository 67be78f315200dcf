"""URLs, estimates and headers of the OpenAI engine, without a server."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines import engine_from_url
from judge_server.engines.openai.completions import ChatCompletion
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.openai.http import MAX_RETRY_AFTER_S, retry_after_s
from judge_server.engines.openai.probe import estimate, min_tokens

NOW = datetime(2022, 11, 6, 8, 49, 37, tzinfo=UTC)
KEY = "sk-only-for-tests"


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("openai+http://host:8000", "http://host:8000/v1"),
        ("openai+http://host:8000/", "http://host:8000/v1"),
        ("openai+https://host/v1/?concurrency=4&timeout_s=2.5&context=900&model=owner/name", "https://host/v1"),
        ("openai+https://host/some/where/v1", "https://host/some/where/v1"),
        ("openai+http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_the_base_url_is_read_from_the_engine_url(url: str, base: str) -> None:
    engine = engine_from_url(url, api_key=KEY)
    assert isinstance(engine, OpenAIEngine)
    assert engine._http.base_url == base


@pytest.mark.parametrize(
    "url",
    [
        f"openai+https://{KEY}@host/v1",
        f"openai+https://user:{KEY}@host/v1",
        f"openai+https://host/v1?api_key={KEY}",
        f"openai+https://host/v1?KEY={KEY}&context=zero",
    ],
)
def test_a_key_in_the_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValueError, match="ADJUDGE_ENGINE_API_KEY") as refused:
        engine_from_url(url)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("openai+http:///v1", "names no server"),
        ("openai+http://host:port/v1", "names no server"),
        ("openai+http://host?modl=x", "unknown option 'modl'; it takes context, model, concurrency, timeout_s"),
        ("openai+http://host?concurrency=0", "concurrency=0: Input should be greater than 0"),
        ("openai://host/v1", "openai+http://HOST:PORT/v1"),
        ("http://host/v1", "openai+https://HOST/v1"),
    ],
)
def test_an_invalid_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        engine_from_url(url)


@pytest.mark.parametrize("key", ["two words", "line\n", "clé", ""])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="ADJUDGE_ENGINE_API_KEY") as refused:
        OpenAIEngine("http://host/v1", api_key=key)
    assert not key or key not in str(refused.value)


@given(st.integers(0, 10**9))
def test_retry_after_is_read_as_seconds_or_as_a_date_and_is_bounded(seconds: int) -> None:
    expected = min(float(seconds), MAX_RETRY_AFTER_S)
    assert retry_after_s(httpx2.Headers({"Retry-After": str(seconds)}), NOW) == expected
    date = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert retry_after_s(httpx2.Headers({"Retry-After": date}), NOW) == expected
    server = {"Retry-After": date, "Date": format_datetime(NOW, usegmt=True)}
    assert retry_after_s(httpx2.Headers(server), NOW + timedelta(days=3)) == expected


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_retry_after_of_any_text_is_a_bounded_time_or_none(text: str) -> None:
    wait_s = retry_after_s(httpx2.Headers({"Retry-After": text}), NOW)
    assert wait_s is None or 0 <= wait_s <= MAX_RETRY_AFTER_S


def test_a_retry_after_date_in_the_past_means_no_wait() -> None:
    assert retry_after_s(httpx2.Headers({"Retry-After": format_datetime(NOW, usegmt=True)}), datetime.now(UTC)) == 0


@given(st.text(), st.text())
def test_an_estimate_lies_between_the_minimum_and_one_token_per_byte(text: str, more: str) -> None:
    size = len(text.encode("utf-8", "replace"))
    assert min_tokens([{"role": "user", "content": text}]) <= estimate(text) <= size
    assert estimate(text + more) >= estimate(text)


def completion(content: str, **message: str) -> ChatCompletion:
    """A completion with this content."""
    return ChatCompletion.model_validate({"choices": [{"message": {"content": content} | message}]})


@pytest.mark.parametrize(
    ("content", "thinking", "answer_text"),
    [
        ("<think>a</think> yes", False, "yes"),
        ("\n<think>a", True, ""),
        ("a</think>yes", True, "yes"),
        ("quotes </think> it", False, "quotes </think> it"),
        ("<think>a</think>no </think> b", True, "no </think> b"),
        (" yes ", True, "yes"),
    ],
)
def test_thinking_ends_with_its_block(content: str, thinking: bool, answer_text: str) -> None:
    assert completion(content).answer_text(thinking=thinking) == answer_text


def test_thinking_that_the_server_separated_is_not_searched_for_again() -> None:
    assert (
        completion("it says </think> here", reasoning_content="Hm.").answer_text(thinking=True)
        == "it says </think> here"
    )
