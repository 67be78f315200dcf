"""Count the bytes that pip has downloaded while pip works in the same folder."""

import shutil
from pathlib import Path

import pytest

from judge_server.models import downloads


def test_folders_that_pip_removes_during_the_count_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"0123456789")
    unpacked = tmp_path / "pip-unpack-1"
    (unpacked / "inner").mkdir(parents=True)
    (unpacked / "inner" / "part").write_bytes(b"01234")
    (unpacked / "wheel").write_bytes(b"012")
    size = downloads.file_size

    def removes(path: Path) -> int | None:
        found = size(path)
        if path == unpacked / "wheel":
            shutil.rmtree(unpacked)
        return found

    monkeypatch.setattr(downloads, "file_size", removes)
    assert downloads._bytes_under(tmp_path) == 13
    assert downloads._bytes_under(tmp_path) == 10
