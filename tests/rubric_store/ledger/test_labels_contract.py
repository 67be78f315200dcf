"""Labels of recorded verdicts, on each database."""

from collections.abc import AsyncIterator

import pytest

from judge_server.ports import LabelStore
from rubric_store import SQLLedger
from rubric_store.ledger.rows import LabelFilter, RecentFilter, VerdictKey
from tests.rubric_store.ledger_rows import AT, PROJECT, digest, request, request_key

RUN = LabelFilter(PROJECT, "run")
FIRST, SECOND = VerdictKey("run", request_key(1), 0, 0), VerdictKey("run", request_key(1), 0, 1)


@pytest.fixture
async def ledger(migrated_url: str) -> AsyncIterator[SQLLedger]:
    """A ledger with one response and two verdicts on it."""
    opened = SQLLedger(migrated_url)
    opened.write(request(1, [["a", "b"]]))
    yield opened
    await opened.close()


async def labelled(store: LabelStore, wanted: LabelFilter = RUN) -> list[tuple[str, str, bool]]:
    """The labels: criterion, labeller, and whether met."""
    return [(row.criterion, row.labeller, row.met) for row in await store.labels(wanted)]


async def test_a_person_has_one_label_per_verdict_and_may_change_it(ledger: SQLLedger) -> None:
    first = await ledger.set_label(PROJECT, FIRST, "ada", True)
    await ledger.set_label(PROJECT, FIRST, "bob", True)
    changed = await ledger.set_label(PROJECT, FIRST, "ada", False)
    assert first is not None
    assert changed is not None
    assert changed.at >= first.at
    assert await labelled(ledger) == [("c0", "ada", False), ("c0", "bob", True)]
    assert (await ledger.labels(RUN))[0] == changed


async def test_a_label_can_be_removed(ledger: SQLLedger) -> None:
    await ledger.set_label(PROJECT, FIRST, "ada", True)
    await ledger.set_label(PROJECT, SECOND, "ada", True)
    removed = [await ledger.set_label(PROJECT, FIRST, "ada", None) for _ in range(2)]
    assert [one and one.verdict for one in removed] == [FIRST, None]
    assert await labelled(ledger) == [("c1", "ada", True)]


@pytest.mark.parametrize(
    "unknown",
    [FIRST._replace(slot=2), FIRST._replace(place=1), FIRST._replace(run="other"), FIRST._replace(request=b"\0" * 16)],
)
async def test_only_a_recorded_verdict_can_be_labelled(ledger: SQLLedger, unknown: VerdictKey) -> None:
    with pytest.raises(LookupError, match="no such verdict"):
        await ledger.set_label(PROJECT, unknown, "ada", True)
    with pytest.raises(LookupError, match="no such verdict"):
        await ledger.set_label("p2", FIRST, "ada", True)
    assert await ledger.label_counts(PROJECT) == []


async def test_labels_are_counted_by_run_and_person_in_one_project(ledger: SQLLedger) -> None:
    ledger.write(request(2, [["c"]], run="second"))
    ledger.write(request(3, [["d"]], project="p2"))
    for verdict, person in ((FIRST, "ada"), (SECOND, "ada"), (FIRST, "bob")):
        await ledger.set_label(PROJECT, verdict, person, True)
    await ledger.set_label(PROJECT, VerdictKey("second", request_key(2), 0, 0), "bob", False)
    await ledger.set_label("p2", VerdictKey("run", request_key(3), 0, 0), "eve", True)
    counted = [(one.run, one.labeller, one.labels) for one in await ledger.label_counts(PROJECT)]
    assert counted == [("second", "bob", 1), ("run", "bob", 1), ("run", "ada", 2)]
    assert await labelled(ledger, LabelFilter(PROJECT, "run", labeller="bob")) == [("c0", "bob", True)]
    assert await labelled(ledger, LabelFilter("p2", "run")) == [("c0", "eve", True)]
    assert await labelled(ledger, LabelFilter(PROJECT, "run", requests=(request_key(3),))) == []


async def test_labelled_verdicts_come_with_all_their_votes_and_labels(ledger: SQLLedger) -> None:
    ledger.write(request(2, [["v1", "v2", "w1", "w2"]], votes=2, failed=["w2"]))
    key = VerdictKey("run", request_key(2), 0, 1)
    await ledger.set_label(PROJECT, key, "ada", True)
    await ledger.set_label(PROJECT, key, "bob", False)
    await ledger.set_label(PROJECT, FIRST, "bob", False)
    found = await ledger.labelled_uses(RUN)
    assert [[label.labeller for label in one.labels] for one in found] == [["bob"], ["ada", "bob"]]
    assert [use.digest for use, _ in found[1].use.votes] == [digest("w1"), digest("w2")]
    assert [verdict is None for _, verdict in found[1].use.votes] == [False, True]
    assert found[1].use.request.request_id == "req_2"
    (only,) = await ledger.labelled_uses(LabelFilter(PROJECT, "run", labeller="ada"))
    assert [label.labeller for label in only.labels] == ["ada"]


async def test_uses_of_the_latest_requests_are_offered_up_to_a_number(ledger: SQLLedger) -> None:
    for number in (2, 3, 4):
        ledger.write(request(number, [[f"{number}a", f"{number}b"]], step=number, failed=[f"{number}b"]))

    async def offered(**wanted: object) -> list[bytes]:
        found = await ledger.recent_uses(RecentFilter(PROJECT, "run", **wanted))  # type: ignore[arg-type]
        return [use.votes[0][0].digest for use in found]

    assert await offered() == [digest(name) for name in ("a", "b", "2a", "3a", "4a")]
    assert await offered(uses=3) == [digest("3a"), digest("4a")]
    assert await offered(last=2) == [digest("a"), digest("b"), digest("2a")]
    assert await offered(first=3, last=3) == [digest("3a")]
    assert await offered(criterion="c1") == [digest("b")]
    assert await offered(first=9) == []


async def test_verdicts_without_a_judge_are_not_offered(ledger: SQLLedger) -> None:
    rows = request(2, [["x", "y"]], run="mixed")
    rows.uses[0] = rows.uses[0]._replace(method="math")
    ledger.write(rows)
    (use,) = await ledger.recent_uses(RecentFilter(PROJECT, "mixed"))
    assert use.votes[0][0].criterion == "c1"


async def test_labels_are_purged_with_their_requests(ledger: SQLLedger) -> None:
    ledger.write(request(2, [["c"]], run="kept", at=AT))
    kept = VerdictKey("kept", request_key(2), 0, 0)
    for verdict in (FIRST, SECOND, kept):
        await ledger.set_label(PROJECT, verdict, "ada", True)
    assert ledger.purge(PROJECT, run="run").labels == 2
    assert [one.run for one in await ledger.label_counts(PROJECT)] == ["kept"]
    assert await labelled(ledger) == []


async def test_labels_are_set_all_or_none(ledger: SQLLedger) -> None:
    await ledger.set_labels(PROJECT, {SECOND: True, FIRST: False}, "ada")
    assert await labelled(ledger) == [("c0", "ada", False), ("c1", "ada", True)]
    with pytest.raises(LookupError, match="no such verdict"):
        await ledger.set_labels(PROJECT, {FIRST: True, FIRST._replace(slot=2): True}, "ada")
    assert await ledger.set_labels(PROJECT, {FIRST: True, SECOND: None}, "ada") == 1
    assert await labelled(ledger) == [("c0", "ada", True)]
    assert await ledger.set_labels(PROJECT, {FIRST: None, SECOND: None}, "ada") == 1, "only one label was there"
