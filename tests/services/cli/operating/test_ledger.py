"""`adjudge recompute` and `adjudge ledger` on the runs that a real service judged."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from judge_server.ledger.spool import Quarantine
from rubric_store.ledger.rows import RefusedRows
from tests.fixtures.waiting import wait_until
from tests.rubric_store.ledger_rows import request
from tests.services.command import outcome
from tests.services.faults.test_ledger import answered, score
from tests.services.processes import get, scoring
from trainer_client import InvalidRequest


@pytest.mark.processes
def test_commands_recompute_and_purge_a_run(data_dir: Path, tmp_path: Path) -> None:
    with scoring() as (service, client):
        answers = [score(client, f"number {n}") for n in range(3)]
        wait_until(lambda: get(service, "/v1/ledger").json()["written"] == 18)
        over_http = tmp_path / "http.jsonl"
        assert outcome("recompute", "r", "--mode", "points", "--output", str(over_http), "--url", service.url)[0] == 0
        with pytest.raises(InvalidRequest, match="cannot feed"):
            list(client.recompute(mode="likert"))
        service.stop()
    from_file = tmp_path / "file.jsonl"
    status, said = outcome("recompute", "r", "--mode", "points", "--output", str(from_file))
    assert status == 0, said
    assert "mean reward" in said
    assert from_file.read_text() == over_http.read_text()
    groups = [json.loads(line) for line in from_file.read_text().splitlines()]
    assert {g["request_id"]: [r["reward"] for r in g["responses"]] for g in groups} == answered(*answers)

    weights = tmp_path / "weights.json"
    weights.write_text('{"short": 0, "right": 1, "kind": 0}')
    status, said = outcome("recompute", "r", "--weights", str(weights), "--output", str(from_file))
    assert status == 0, said
    only = {r["reward"] for line in from_file.read_text().splitlines() for r in json.loads(line)["responses"]}
    assert only <= {0.0, 1.0}

    assert outcome("recompute", "r", "--mode", "likert")[0] == 1
    assert outcome("ledger", "purge")[0] == 2
    assert "deleted 0 requests" in outcome("ledger", "purge", "--run", "r", "--older-than", "1", "--yes")[1]
    assert "deleted 3 requests with 18 uses, and 18 verdicts" in outcome("ledger", "purge", "--run", "r", "--yes")[1]
    before = from_file.read_text()
    status, said = outcome("recompute", "r", "--output", str(from_file))
    assert (status, "has no record of run" in said) == (1, True)
    assert from_file.read_text() == before


@pytest.mark.usefixtures("migrated")
def test_commands_list_refused_rows_and_write_them_again(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert "0 files are kept aside" in outcome("ledger", "refused")[1]
    kept = Quarantine(data_dir / "ledger-spool" / "refused")
    good, bad = request(1, [["a", "b"]], run="good [run]"), request(2, [["c", "d"]], run="bad")
    kept.add(RefusedRows(good, "the column is too short"))
    kept.add(RefusedRows(request(3, [["e"]], run="good [run]"), "the column is too short"))
    uses = [bad.uses[0], bad.uses[1]._replace(slot=2**70)]
    file = kept.add(RefusedRows(bad._replace(uses=uses), "it is too large"))
    kept.add_unreadable(b"[[", "the file cannot be read")
    status, said = outcome("ledger", "refused")
    assert status == 0
    assert [word for word in ("good [run]", "req_1", "the column is too short", file.stem) if word not in said] == []
    assert "4 files are kept aside" in said
    assert outcome("ledger", "retry", "nothing")[0] == 1
    status, said = outcome("ledger", "retry")
    assert (status, "2 of 4 files were written; 2 are still refused" in said) == (1, True)
    with closing(sqlite3.connect(data_dir / "adjudge.db")) as connection:
        counted = connection.execute("SELECT run, count(*) FROM ledger_uses GROUP BY run ORDER BY run").fetchall()
    assert counted == [("bad", 1), ("good [run]", 3)]
    (left,) = [one for one in kept.quarantined() if one.rows is not None]
    assert left.rows is not None
    assert (left.path, left.rows.uses) == (file, uses[1:])
    assert outcome("ledger", "retry", file.stem)[0] == 1
