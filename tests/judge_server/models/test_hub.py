"""Downloading from the hub, over real HTTP."""

import hashlib
import socket
from pathlib import Path

import pytest

from judge_server.models.catalogue import ModelUnavailable, SourceFailed, WrongHash
from judge_server.models.downloads import fetch, look_up
from judge_server.models.files import read_record
from tests.judge_server.models.fake_hub import CONTENT, DIGEST, HUB_PATH, RecordedProgress, Site, leftovers, tiny_model

MODEL = tiny_model(mirrored=False)
UNKNOWN = "hf://someone/tiny-GGUF/tiny.gguf"


def pull(cache: Path, reference: str = "tiny", watched: RecordedProgress | None = None) -> Path:
    catalogue = (MODEL,) if reference == "tiny" else ()
    return fetch(reference, cache_dir=cache, progress=watched or RecordedProgress(), catalogue=catalogue)


def test_a_model_is_downloaded_from_the_hub_with_its_progress_reported(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    watched = RecordedProgress()
    path = pull(cache, watched=watched)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert leftovers(cache) == []
    done = [step for step, _ in watched.steps]
    assert done == sorted(done)
    assert watched.steps[-1] == (len(CONTENT), len(CONTENT))


def test_a_cached_model_is_not_requested_again(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    pull(cache)
    site.asked.clear()
    assert pull(cache).is_file()
    assert site.asked == []


def test_a_dropped_connection_is_resumed_where_it_broke(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.cuts[HUB_PATH] = [120_000, 50_000]
    assert pull(cache).read_bytes() == CONTENT
    assert site.gets(HUB_PATH) == [None, "bytes=120000-", "bytes=170000-"]


def test_a_server_that_ignores_range_is_read_from_the_start(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.cuts[HUB_PATH] = [120_000]
    site.knows_range = False
    assert pull(cache).read_bytes() == CONTENT


def test_a_download_that_keeps_breaking_off_is_given_up_and_kept_for_the_next_pull(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.cuts[HUB_PATH] = [120_000, 0, 0, 0]
    with pytest.raises(ModelUnavailable, match="failed 3 times in a row") as caught:
        pull(cache)
    assert "are kept" in str(caught.value)
    assert leftovers(cache) == ["tiny.gguf.part"]
    site.asked.clear()
    assert pull(cache).read_bytes() == CONTENT
    assert site.gets(HUB_PATH) == ["bytes=120000-"]


def test_wrong_bytes_of_the_right_size_raise_a_clear_error_and_leave_no_file(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT[:-1] + b"!"
    with pytest.raises(WrongHash, match=f"not {DIGEST}"):
        pull(cache)
    assert [path.name for path in cache.rglob("*") if path.suffix != ".lock"] == []


def test_a_file_whose_hub_metadata_differs_is_not_downloaded(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.headers[HUB_PATH] = {"X-Linked-Etag": f'"{"0" * 64}"'}
    with pytest.raises(ModelUnavailable, match="its file is a different one"):
        pull(cache)
    site.headers.clear()
    site.files[HUB_PATH] = CONTENT + b"more"
    with pytest.raises(ModelUnavailable, match="300,004 bytes, not 300,000"):
        pull(cache)
    assert site.gets(HUB_PATH) == []


def test_an_unknown_file_is_verified_by_the_hash_in_the_redirect(site: Site, cache: Path) -> None:
    site.redirects[HUB_PATH] = f"{site.url}/cdn/blob"
    site.headers[HUB_PATH] = {"X-Linked-Etag": f'"{DIGEST}"', "X-Linked-Size": str(len(CONTENT))}
    site.files["/cdn/blob"] = CONTENT
    path = pull(cache, UNKNOWN)
    assert path == cache / "hf" / "someone" / "tiny-GGUF" / "tiny.gguf"
    record = read_record(path)
    assert record is not None
    assert (record.verified, record.sha256, record.size) == (True, DIGEST, len(CONTENT))
    assert leftovers(path.parent) == ["tiny.gguf.json"]


def test_an_unknown_file_that_does_not_match_its_etag_is_refused(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT[:-1] + b"!"
    site.headers[HUB_PATH] = {"ETag": f'"{DIGEST}"'}
    with pytest.raises(WrongHash, match="wrong bytes"):
        pull(cache, UNKNOWN)


def test_an_unknown_file_without_a_hash_is_accepted_recorded_and_reported_as_unverified(
    site: Site, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site.files[HUB_PATH] = CONTENT
    path = pull(cache, UNKNOWN)
    record = read_record(path)
    assert record is not None
    assert (record.verified, record.sha256) == (False, hashlib.sha256(CONTENT).hexdigest())
    assert "unverified" in caplog.text


def test_an_unchanged_unknown_file_is_resumed(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.headers[HUB_PATH] = {"ETag": '"v1"'}
    site.cuts[HUB_PATH] = [120_000, 0, 0, 0]
    with pytest.raises(ModelUnavailable):
        pull(cache, UNKNOWN)
    site.asked.clear()
    assert pull(cache, UNKNOWN).read_bytes() == CONTENT
    assert site.gets(HUB_PATH) == ["bytes=120000-"]


def test_an_unknown_file_that_changed_on_the_hub_is_restarted(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.headers[HUB_PATH] = {"ETag": '"v1"'}
    site.cuts[HUB_PATH] = [120_000, 0, 0, 0]
    with pytest.raises(ModelUnavailable):
        pull(cache, UNKNOWN)
    changed = b"GGUF" + CONTENT[:299_996]
    site.files[HUB_PATH] = changed
    site.headers[HUB_PATH] = {"ETag": '"v2"'}
    assert pull(cache, UNKNOWN).read_bytes() == changed


def test_a_file_that_is_not_gguf_is_refused_and_leaves_nothing(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = b"<html>please log in to this network</html>"
    with pytest.raises(WrongHash, match="not a GGUF model"):
        pull(cache, UNKNOWN)
    assert not list(cache.rglob("*.gguf"))


def test_a_hub_that_never_answers_times_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(SourceFailed, match=r"no answer within 0\.3 s"):
            look_up(MODEL, timeout_s=0.3)


def test_offline_mode_sends_no_request_to_the_hub(offline: Site, cache: Path) -> None:
    offline.files[HUB_PATH] = CONTENT
    with pytest.raises(ModelUnavailable, match="HF_HUB_OFFLINE is set"):
        pull(cache)
    assert offline.asked == []


def test_a_forbidden_file_names_the_token_variable(site: Site, cache: Path) -> None:
    site.refusals[HUB_PATH] = 401
    with pytest.raises(ModelUnavailable, match="HF_TOKEN"):
        pull(cache, UNKNOWN)


def test_a_file_missing_on_the_hub_is_reported_as_missing(site: Site, cache: Path) -> None:
    with pytest.raises(ModelUnavailable, match="has no such file"):
        pull(cache, UNKNOWN)
