"""Where a version of a rubric came from: a person, or a generator with all that went into it.

Knows nothing of how rubrics are generated or stored.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from trainer_client.wire.base import RequestModel
from trainer_client.wire.json_object import JsonObject

ShortText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class Lineage(RequestModel):
    """Who or what made a version. Every part may be unknown; what is given never changes.

    Attributes:
        author: the person or team that wrote it.
        generator: the kind of generator that wrote it, for example `contrastive`.
        model: the model the generator asked.
        template_digest: `sha256:…` of the generator's templates.
        parameters: what else the generator was told (numbers of samples, limits, seeds); at most 64 KiB.
        source_digest: `sha256:…` of the question or document it was made from.
        operation_id: the operation that made it.
    """

    author: ShortText | None = None
    generator: ShortText | None = None
    model: ShortText | None = None
    template_digest: ShortText | None = None
    parameters: JsonObject = Field(default_factory=dict)
    source_digest: ShortText | None = None
    operation_id: ShortText | None = None
