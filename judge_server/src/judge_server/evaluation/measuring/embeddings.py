"""Semantic distance of responses, from the embeddings of an OpenAI-compatible endpoint (RuscaRL, appendix D.4).

The distance itself is defined in `trainer_client.measures`.
"""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from pydantic import BaseModel, NonNegativeFloat, ValidationError

from judge_server.engines.openai.completions import shape_error
from judge_server.engines.openai.http import EndpointError, OpenAIHttp, base_url_of
from judge_server.ports.urls import UrlOptions
from trainer_client.measures import semantic_distance

TEXTS_PER_REQUEST = 16
"""Servers limit the size of a request; the paper has 16 responses per prompt."""


class _Embedding(BaseModel):
    index: int
    embedding: list[float]


class _Embeddings(BaseModel):
    data: list[_Embedding]


class _Options(UrlOptions):
    model: str | None = None
    timeout_s: NonNegativeFloat = 120.0


class EmbeddingEndpoint:
    """A client of `POST /v1/embeddings`, which vLLM, llama.cpp's server and hosted services offer.

    `base_url` ends before `/embeddings`. `model` may be omitted for servers with a single model.
    """

    def __init__(
        self, base_url: str, *, model: str | None = None, api_key: str | None = None, timeout_s: float = 120.0
    ):
        self._http = OpenAIHttp(base_url, api_key, timeout_s=timeout_s)
        self._model = model

    @classmethod
    def from_url(cls, url: str, *, api_key: str | None = None) -> "EmbeddingEndpoint":
        """Read `openai+http://HOST:PORT/v1` or `openai+https://…`. Options: `?model=`, `?timeout_s=120`.

        Raises:
            ValueError: the URL has another form; the message says what to write.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("openai+http", "openai+https"):
            raise ValueError(
                f"the URL of the embeddings has the scheme {parts.scheme!r}; write "
                "openai+http://HOST:PORT/v1?model=NAME or openai+https://…"
            )
        base_url = base_url_of(parts)  # before the options, whose error messages show the whole URL
        options = _Options.of(parts)
        return cls(base_url, model=options.model, api_key=api_key, timeout_s=options.timeout_s)

    async def embeddings(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed N non-empty texts and return N vectors, in order.

        Raises:
            EndpointError: the endpoint cannot be reached, refuses a text, or gives an invalid answer.
        """
        vectors: list[list[float]] = []
        for first in range(0, len(texts), TEXTS_PER_REQUEST):
            vectors += await self._embed_batch(texts[first : first + TEXTS_PER_REQUEST])
        return vectors

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    async def _embed_batch(self, texts: Sequence[str]) -> list[list[float]]:
        body = {"input": list(texts), "encoding_format": "float"} | ({"model": self._model} if self._model else {})
        answer = await self._http.post_for_object(f"{self._http.base_url}/embeddings", body)
        try:
            data = sorted(_Embeddings.model_validate(answer).data, key=lambda each: each.index)
        except ValidationError as error:
            raise self._http.make_error(f"the answer contains no embeddings ({shape_error(error)})") from error
        if [each.index for each in data] != list(range(len(texts))):
            raise self._http.make_error(f"the endpoint returned {len(data)} embeddings for {len(texts)} texts")
        return [each.embedding for each in data]


async def semantic_distances(
    endpoint: EmbeddingEndpoint, problems: Sequence[Sequence[str]], *, concurrency: int
) -> list[float | str | None]:
    """Compute the semantic distance of the responses to each problem, of which blank ones are left out.

    Returns:
        For each problem, the mean cosine distance over its pairs, in [0, 2]; None with fewer than two texts; the
        reason, as text, if the endpoint failed.
    """
    slots = asyncio.Semaphore(concurrency)

    async def one(texts: Sequence[str]) -> float | str | None:
        non_empty = [text for text in texts if text.strip()]
        if len(non_empty) < 2:
            return None
        async with slots:
            try:
                return semantic_distance(await endpoint.embeddings(non_empty))
            except (EndpointError, ValueError) as error:
                return f"no embeddings: {error}"

    return list(await asyncio.gather(*(one(texts) for texts in problems)))
