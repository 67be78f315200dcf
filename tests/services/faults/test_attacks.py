"""Attackers beside two honest runs, for some seconds: no reward changes, and no ledger row is lost."""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import httpx2
import psycopg
import pytest
from benchmarks.attacks.__main__ import windows
from benchmarks.attacks.attacker import ATTACKS, MOST_AT_A_TIME, order
from benchmarks.attacks.console import CONSOLE
from benchmarks.attacks.formats import FORMATS
from benchmarks.attacks.fuzzing import LARGEST, drawn
from benchmarks.attacks.results import promises, routes_not_attacked, rows_by_attack, rows_of_times
from benchmarks.attacks.routes import Route, routes
from benchmarks.attacks.scenario import Attacked, Plan, attack
from benchmarks.attacks.target import Target
from benchmarks.soak.expected_answers import ExpectedAnswer
from benchmarks.soak.workload import RESPONSES

from tests.judge_server.golden_files import openapi

PLAN = Plan(windows=[(1.0, 3.0)], slot_s=1.0, settle_s=0.5, senders=2, period_s=0.5)


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.faults
@pytest.mark.slow
def test_attackers_change_no_honest_reward_and_lose_no_ledger_row() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="adjudge-attacks-") as folder,
        attack(PLAN, Path(folder), print) as found,
    ):
        assert_promises_are_kept(found)


def assert_promises_are_kept(found: Attacked) -> None:
    held = promises(found)
    assert held.wrong == []
    assert held.honest > 0
    assert {line["attack"] for line in found.attacks} <= ATTACKS.keys()
    assert any(line["answers"] for line in found.attacks)
    assert [row["windows"] for row in rows_of_times(found)] == [
        "calm",
        "calm, beside burners",
        "attacked",
        "times calm",
        "times calm, beside burners",
    ]
    assert rows_by_attack(found)
    assert_what_is_missing_is_found(found)


def assert_what_is_missing_is_found(found: Attacked) -> None:
    told = [line for line in found.lines if "error" not in line]
    right = {line["subject"]: ExpectedAnswer(line["rewards"], line["verdicts"]) for line in told}
    with psycopg.connect(found.database) as connection:
        connection.execute("DELETE FROM ledger_requests WHERE request_id = %s", (told[0]["request_id"],))
    assert promises(replace(found, known=lambda _: right)).wrong
    changed = right | {told[-1]["subject"]: ExpectedAnswer([0.5] * RESPONSES, told[-1]["verdicts"])}
    assert any("response 0" in line for line in promises(replace(found, known=lambda _: changed)).wrong)


def test_the_seed_determines_the_order_of_attacks_and_each_kind_comes_before_any_repeats() -> None:
    together = list(islice(order(3, list(ATTACKS)), 100))
    assert together == list(islice(order(3, list(ATTACKS)), 100))
    assert {len(some) for some in together} == set(range(1, MOST_AT_A_TIME + 1))
    first = [kind for some in together for kind in some][: len(ATTACKS)]
    assert Counter(first) == Counter(list(ATTACKS))


def test_a_fifth_of_every_five_minutes_is_calm() -> None:
    assert windows(30) == [(60.0, 240.0)] * 6
    assert windows(2) == [(24.0, 96.0)]


def test_random_requests_follow_the_seed_and_cover_every_method_and_size() -> None:
    document = openapi()
    draw, again = random.Random(5), random.Random(5)
    requests = [drawn(document, draw, most=2**16) for _ in range(300)]
    assert requests == [drawn(document, again, most=2**16) for _ in range(300)]
    sizes = [len(body) for _, _, body in requests if body is not None]
    assert min(sizes) < 2**10 < 2**15 < max(sizes) < LARGEST
    assert {method for method, _, _ in requests} == {"GET", "POST", "PUT", "DELETE"}
    assert any(is_json(body) for _, _, body in requests if body is not None)


def is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


ROUNDS = 8  # a name in a path may have a slash, and then asks for another route


async def answered(request: httpx2.Request) -> httpx2.Response:
    """Answer as a page with a form, or as a task that was taken."""
    if request.url.path.endswith("submit_task"):
        return httpx2.Response(200, json={"reward_request_id": "roll-1"})
    return httpx2.Response(200, text='"X-Form-Token":"' + "0" * 64 + '"')


async def asked_routes(kinds: Iterable[str]) -> set[Route]:
    asked: set[Route] = set()
    for kind in kinds:
        on = Target(
            "http://attacked.test", "adj_a", random.Random(1), openapi(), transport=httpx2.MockTransport(answered)
        )
        for _ in range(ROUNDS):
            await ATTACKS[kind](on)
        await on.http.aclose()
        asked |= on.routes
    return asked


async def test_every_route_of_the_application_is_attacked() -> None:
    assert len(routes()) >= 100
    attacked = await asked_routes([*CONSOLE, *FORMATS, "every operation, to 16 KB", "openapi.json, 200 at once"])
    assert set(routes()) - attacked == set()


async def test_the_routes_of_console_trainers_and_decisions_have_attacks_of_their_own() -> None:
    attacked = await asked_routes([*CONSOLE, *FORMATS])
    own = ("/console/", "/v1/compat/", "/v1/systemone", "/v1/score", "/v1/rerank")
    assert {route for route in routes() if route.path.startswith(own)} <= attacked


def test_routes_that_no_attack_asked_for_are_named() -> None:
    lines = [{"routes": [" ".join(route) for route in routes()[1:]]}]
    assert routes_not_attacked(lines) == [" ".join(routes()[0])]
