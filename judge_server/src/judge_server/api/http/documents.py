"""Large documents that anyone may read: the OpenAPI document, and the scripts of the pages that show it.

Each is read or built once, in a thread, and kept in memory uncompressed and compressed, so that many requests at once
cost little.
"""

import asyncio
import gzip
import json
import mimetypes
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from judge_server.api.http.responses import STATIC_FOLDER


class Document(NamedTuple):
    """The content of a document, its gzip encoding, and an entity tag that changes with it."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> "Document":
        """Compress a document; megabytes take tenths of a second."""
        return cls(content, gzip.compress(content, mtime=0), media_type, f'"{sha256(content).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        """Answer with the encoding that the caller accepts; 304 if the caller has the document."""
        headers = {"ETag": self.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        accepted = {part.strip().partition(";") for part in request.headers.get("accept-encoding", "").split(",")}
        if any(name == "gzip" and quality.strip() not in {"q=0", "q=0.0"} for name, _, quality in accepted):
            headers["Content-Encoding"] = "gzip"
            return Response(self.compressed, media_type=self.media_type, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


class DocumentCache:
    """Documents by name, each made at most once, in a thread."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}
        self._making = asyncio.Lock()

    async def get(self, name: str, make: Callable[[], Document]) -> Document:
        """Return a document, which `make` creates the first time."""
        if name not in self._documents:
            async with self._making:
                if name not in self._documents:
                    self._documents[name] = await asyncio.to_thread(make)
        return self._documents[name]


def serve_documents(app: FastAPI) -> None:
    """Serve the OpenAPI document and the scripts of `/docs` and `/redoc` from memory, in place of FastAPI's routes."""
    routes = app.router.routes
    (built_per_request,) = [route for route in routes if isinstance(route, Route) and route.path == app.openapi_url]
    ((mount, static),) = [
        (route, route.app) for route in routes if isinstance(route, Mount) and isinstance(route.app, StaticFiles)
    ]
    routes.remove(built_per_request)
    routes.remove(mount)
    files = {path.name: path for path in Path(str(static.directory)).iterdir() if path.is_file()}
    cache = DocumentCache()

    def openapi() -> Document:
        text = json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":"))
        return Document.of(text.encode(), "application/json")

    async def openapi_document(request: Request) -> Response:
        return (await cache.get("", openapi)).response(request)

    async def static_file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        return (await cache.get(name, partial(_file, files[name]))).response(request)

    app.add_route(str(app.openapi_url), openapi_document, include_in_schema=False)
    app.add_route(STATIC_FOLDER + "{name}", static_file, include_in_schema=False)


def _file(path: Path) -> Document:
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Document.of(path.read_bytes(), media_type)
