"""Patterns are compiled in processes that can be killed, and slow checks delay only slow checks."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from judge_server.ports import CallFailure, JudgeResult
from judge_server.scheduling.checker import Checker, CheckOwner
from tests.judge_server.api.problems import checked_problem, fields
from tests.judge_server.conftest import Serve
from tests.judge_server.support import request
from tests.judge_server.verifiers.checks import answered, check

pytestmark = pytest.mark.processes

SLOW = "(?i)" + "[ -\U0010fffe]" * 300
"""Compiling this iterates three hundred times over a million characters."""


@pytest.fixture
async def checker() -> AsyncIterator[Checker]:
    made = Checker(seconds=30.0)
    yield made
    await made.close()


def soon() -> float:
    return asyncio.get_running_loop().time() + 120


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "not a regular expression: missing )"),
        ("a{99999999999}", "not a regular expression"),
        ("(" * 2000, "not a regular expression"),
        (SLOW, "takes longer than 0.5 s to compile"),
    ],
    ids=range(4),
)
async def test_an_unusable_pattern_is_reported_with_its_index(checker: Checker, pattern: str, why: str) -> None:
    found = await checker.first_unusable(["a+", "b", "a+", pattern, "c"], soon())
    assert found is not None
    assert found[0] == 3
    assert why in found[1]
    assert await checker.first_unusable(["a+", "b"], soon()) is None


async def test_a_known_pattern_starts_no_process() -> None:
    checker = Checker()
    assert await checker.first_unusable(["a+"], soon()) is None
    await checker.close()
    assert await checker.first_unusable(["a+", "a+"], soon()) is None


def test_the_patterns_of_a_request_are_bounded_by_their_total_length() -> None:
    many = ["a" * 1000 + str(n) for n in range(2000)]
    found = asyncio.run(asked(many))
    assert found is not None
    assert "more than 1,000,000 characters" in found[1]


async def asked(patterns: list[str]) -> tuple[int, str] | None:
    return await Checker().first_unusable(patterns, soon())


@pytest.mark.parametrize("path", ["/v1/rewards", "/v1/verdicts", "/v1/rubrics/team/a/versions"])
async def test_no_pattern_of_a_request_is_compiled_in_the_service(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    http = await serve(checker=Checker(seconds=60.0))
    compiled: list[str] = []
    compile_ = re.compile

    def compiles(pattern: str, *flags: int) -> re.Pattern[str]:
        compiled.append(pattern)
        return compile_(pattern, *flags)

    monkeypatch.setattr(re, "compile", compiles)
    verification = {"method": "regex", "pattern": SLOW}
    rubric = {
        "criteria": [
            {"id": "a", "description": "d"},
            {"id": "b", "description": "d", "verification": verification},
        ]
    }
    answer = await http.post(path, json=rubric if "rubrics" in path else request(rubric=rubric))
    assert answer.status_code == 422
    where = "" if "rubrics" in path else "rubric."
    problem = fields(checked_problem(answer))
    assert "takes longer than 0.5 s to compile" in problem[f"{where}criteria.1.verification.pattern"]
    assert SLOW not in compiled


@pytest.mark.faults
async def test_slow_checks_do_not_time_out_other_checks_of_their_group() -> None:
    checker = Checker(seconds=600.0)
    towers = [check("regex", "b" * 60 + "!", pattern=f"(b+)+${n}") for n in range(3)]
    patterns = [check("regex", "a" * 60 + "!", pattern=f"(a+)+${n}") for n in range(3)]
    try:
        hanging = [
            asyncio.create_task(checker.run(each, soon(), CheckOwner("p\0r", "0"))) for each in (*towers, *patterns)
        ]
        await asyncio.sleep(0)
        right = [answered("math", f"{n}/2", expected=str(n / 2)) for n in range(4)]
        found = await asyncio.gather(*(checker.run(each, soon(), CheckOwner("p\0r", "0")) for each in right))
        other = await checker.run(answered("math", "0.5", expected="1/2"), soon(), CheckOwner("q\0r", "0"))
        assert [*found, other] == [JudgeResult(score=1.0)] * 5
        assert not any(each.done() for each in hanging)
        hindered = await checker.run(towers[0], asyncio.get_running_loop().time() + 0.2, CheckOwner("p\0r", "1"))
        assert isinstance(hindered, CallFailure)
        assert "deadline" in hindered.detail
    finally:
        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await checker.close()
