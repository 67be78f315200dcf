"""The Hugging Face hub as a source: one file over HTTP, resumed with Range requests.

`HF_ENDPOINT`, `HF_HUB_OFFLINE` and `HF_TOKEN` work as in the hub's own tools. Before a download, the hub is asked for
the file's size and hash. One short deadline covers name lookup, connection and answer together, so that a host without
network access fails within seconds.
"""

import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urljoin

import httpx2

from judge_server.models.catalogue import SourceFailed
from judge_server.models.files import DownloadProgress, file_size

LOOKUP_TIMEOUT_S = 6.0
"""Timeout of the request for a file's size and hash."""

DOWNLOAD_RETRY_DELAY_S = 0.5
"""Pause after an attempt that fetched nothing, multiplied by the number of such attempts in a row."""

_TIMEOUT = httpx2.Timeout(30.0, connect=4.0)
_MAX_FRUITLESS_ATTEMPTS = 3
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class HubFileInfo:
    """The hub's metadata of a file: size in bytes, SHA-256 and entity tag; each None if missing."""

    size: int | None
    sha256: str | None
    etag: str | None


@dataclass(frozen=True, slots=True)
class HubSource:
    """One file of a repository, with its expected size and SHA-256 if known."""

    repository: str
    file: str
    size: int | None = None
    sha256: str | None = None

    @property
    def label(self) -> str:
        """The source's name for users."""
        return f"Hugging Face hub ({_endpoint()})"

    def download(self, part: Path, progress: DownloadProgress) -> str | None:
        """Append to `part` until it is complete; return the expected SHA-256, None if it is not known."""
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
            raise SourceFailed("skipped because HF_HUB_OFFLINE is set")
        url = f"{_endpoint()}/{quote(self.repository)}/resolve/main/{quote(self.file)}"
        info = _look_up_within(url, LOOKUP_TIMEOUT_S)
        if self.size is not None and info.size not in (None, self.size):
            raise SourceFailed(f"its file has {info.size:,} bytes, not {self.size:,}")
        if self.sha256 is not None and info.sha256 not in (None, self.sha256):
            raise SourceFailed(f"its file is a different one, with SHA-256 {info.sha256}")
        if self.sha256 is None:
            _drop_other_version(part, info)
        _download(url, part, self.size if self.size is not None else info.size, progress)
        return self.sha256 or info.sha256


def etag_path(part: Path) -> Path:
    """Return the path of the entity tag of an unfinished hub file."""
    return part.with_name(part.name + ".etag")


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _client() -> httpx2.Client:
    headers = {"Accept-Encoding": "identity", "User-Agent": "adjudge"}
    if token := os.environ.get("HF_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    return httpx2.Client(headers=headers, timeout=_TIMEOUT)


def _look_up_within(url: str, seconds: float) -> HubFileInfo:
    """Look the file up in a thread that is abandoned after a timeout: an HTTP client's timeout excludes DNS lookup."""
    answers: list[HubFileInfo | SourceFailed] = []

    def ask() -> None:
        try:
            answers.append(_look_up(url))
        except SourceFailed as failure:
            answers.append(failure)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            answers.append(SourceFailed(f"cannot be reached ({error})"))

    thread = threading.Thread(target=ask, daemon=True, name="ask-hub")
    thread.start()
    thread.join(seconds)
    if not answers:
        raise SourceFailed(f"cannot be reached (no answer within {seconds:g} s)")
    if isinstance(answers[0], SourceFailed):
        raise answers[0]
    return answers[0]


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


def _download(url: str, part: Path, size: int | None, progress: DownloadProgress) -> None:
    """Fetch the rest of the file, resuming after interruptions as long as attempts make progress."""
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
