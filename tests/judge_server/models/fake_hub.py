"""A fake hub and wheel index on loopback, a tiny model, and a progress recorder."""

import hashlib
import random
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

from judge_server.models.catalogue import MirrorPart, Model
from judge_server.models.files import DownloadProgress

CONTENT = b"GGUF" + random.Random(7).randbytes(299_996)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
HUB_PATH = "/someone/tiny-GGUF/resolve/main/tiny.gguf"
_PIECE = 100_000


def tiny_model(name: str = "tiny", content: bytes = CONTENT, mirrored: bool = True) -> Model:
    """A catalogue entry for `content`, mirrored in wheels of 100,000 bytes each."""
    sizes = [len(content[start : start + _PIECE]) for start in range(0, len(content), _PIECE)]
    parts = tuple(
        MirrorPart(f"{name}-part{number}", "1.0", f"{name}_part{number}/data/part.bin", size)
        for number, size in enumerate(sizes, start=1)
    )
    return Model(
        name=name,
        file=f"{name}.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        repository="someone/tiny-GGUF",
        mirror=parts if mirrored else (),
        licence="MIT",
        note="for tests",
    )


def wheels(model: Model, content: bytes = CONTENT) -> dict[str, bytes]:
    """The wheels of a model's mirror, by file name. Importing one raises an error."""
    built: dict[str, bytes] = {}
    start = 0
    for part in model.mirror:
        distribution = part.package.replace("-", "_")
        file = f"{distribution}-{part.version}-py3-none-any.whl"
        built[file] = _wheel(
            {
                part.member: content[start : start + part.size],
                f"{distribution}/__init__.py": b"raise SystemExit('a mirror wheel was imported')",
                f"{distribution}-{part.version}.dist-info/METADATA": (
                    f"Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\n".encode()
                ),
                f"{distribution}-{part.version}.dist-info/WHEEL": (
                    b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
                ),
                f"{distribution}-{part.version}.dist-info/RECORD": b"",
            }
        )
        start += part.size
    return built


def _wheel(members: Mapping[str, bytes]) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@dataclass
class Site:
    """The server's files, its scripted faults, and the requests it received.

    `cuts` maps a path to the byte counts after which its next answers break off; `holds` to the byte count after
    which an answer waits for `released`; `redirects` to another address; `refusals` to a status.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    holds: dict[str, int] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)
    knows_range: bool = True
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def gets(self, path: str) -> list[str | None]:
        """The Range headers of the GET requests for a path, in order."""
        return [range_ for method, asked, range_ in self.asked if method == "GET" and asked == path]

    def offer_wheels(self, built: Mapping[str, bytes]) -> None:
        """Serve wheels, and the index page that links to them."""
        for file, content in built.items():
            self.files[f"/wheels/{file}"] = content
        links = "".join(f'<a href="{file}">{file}</a>' for file in built)
        self.files["/wheels/"] = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        site, path = self.site, self.path
        asked_range = self.headers.get("Range")
        site.asked.append((self.command, path, asked_range))
        if path in site.redirects:
            self._head(302, path, {"Location": site.redirects[path], "Content-Length": "0"})
            return
        content = site.files.get(path)
        if content is None or path in site.refusals:
            self._head(site.refusals.get(path, 404), path, {"Content-Length": "0"})
            return
        start = int(asked_range.removeprefix("bytes=").removesuffix("-")) if asked_range else 0
        if start and site.knows_range:
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._head(206, path, {"Content-Range": span, "Content-Length": str(len(content) - start)})
        else:
            start = 0
            self._head(200, path, {"Content-Length": str(len(content)), "Content-Type": _kind(path)})
        if self.command == "GET":
            self._body(path, content[start:])

    def _head(self, status: int, path: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, **self.site.headers.get(path, {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def _body(self, path: str, content: bytes) -> None:
        cuts, hold = self.site.cuts.get(path), self.site.holds.get(path)
        if hold is not None:
            self.wfile.write(content[:hold])
            self.site.released.wait(30)
            content = content[hold:]
        try:
            self.wfile.write(content[: cuts.pop(0)] if cuts else content)
        except OSError:
            return

    def log_message(self, format: str, *args: object) -> None:
        return


def _kind(path: str) -> str:
    return "text/html" if path.endswith("/") else "application/octet-stream"


@contextmanager
def serving() -> Iterator[Site]:
    """A site on a free loopback port."""
    site = Site()
    handler = type("Handler", (_Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class RecordedProgress(DownloadProgress):
    """Progress that records every call."""

    stages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: list[tuple[int, int | None]] = field(default_factory=list)

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, done: int, total: int | None) -> None:
        self.steps.append((done, total))


def leftovers(folder: Path) -> list[str]:
    """The names in a cache folder except finished models and locks."""
    return sorted(path.name for path in folder.rglob("*") if path.suffix not in (".gguf", ".lock"))
