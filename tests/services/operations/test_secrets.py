"""Workers with the wrong secret: they use up no attempt, report the error, and leave the work to others."""

import time

import pytest

from tests.services.operations.cluster import score
from tests.services.operations.conftest import MakeCluster
from tests.services.operations.test_killed import GROUPS, assert_whole, end_of

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.faults, pytest.mark.slow]


def test_a_worker_with_another_secret_leaves_its_chunks_to_an_authorized_one(
    cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    running = cluster(0.0)
    client = running.start_api()
    with monkeypatch.context() as patched:
        patched.setenv("ADJUDGE_SIGNING_SECRET", "the secret of the release before")
        old = running.start_worker()
    id_ = client.submit(score(GROUPS)).id
    while client.operation(id_).problem is None:
        time.sleep(0.1)
    waiting = client.operation(id_)
    assert (waiting.state, waiting.progress.done) == ("running", 0)
    assert "ADJUDGE_SIGNING_SECRET" in (waiting.problem or "")
    running.start_worker()
    old.kill()
    assert_whole(client, end_of(client, id_))
    assert capfd.readouterr().err.count("set the same ADJUDGE_SIGNING_SECRET for both") == 1
