"""`GET /v1/labels`: the labels that people gave to the verdicts of a run, as a labelled data set."""

import json
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from judge_server.api.auth import RequiredScope, project_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.service import service_of
from judge_server.errors import NotReady
from judge_server.evaluation.labelling import labelled_groups
from judge_server.ledger.rows import storable_text
from trainer_client.wire.ledger_rows import LabelFilter

NDJSON = "application/x-ndjson"

router = APIRouter(prefix="/v1", tags=["ledger"], dependencies=[Depends(RequiredScope("read"))])

_LABELLED_GROUP = {
    "type": "object",
    "required": ["id", "prompt", "responses", "rubric", "labels"],
    "properties": {
        "id": {"type": "string", "description": "The request's id and the group's id."},
        "prompt": {"description": "A text, or messages."},
        "responses": {"type": "array", "items": {"type": "string"}},
        "rubric": {"type": "object", "description": "The labelled criteria."},
        "labels": {
            "type": "array",
            "description": "For each response, by criterion id, whether it is met.",
            "items": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
        "grounding": {"type": "string"},
    },
}


@router.get(
    "/labels",
    summary="Download the labels of a run as a labelled data set",
    response_class=Response,
    responses={
        200: {"description": "Labelled groups, one a line.", "content": {NDJSON: {"schema": _LABELLED_GROUP}}},
        **problem_responses(422, 503),
    },
)
async def labels(
    request: Request,
    run: Annotated[str, Query(description="The run; empty for requests without a run.", max_length=256)],
    labeller: Annotated[
        str | None,
        Query(description="Only labels of this person.", examples=["key 2c7rnm4dqvyxkz5e"], max_length=200),
    ] = None,
) -> Response:
    """Each line is a labelled group, as `adjudge evaluate` and `adjudge calibrate` read it: docs/evaluation.md.

    Where several people labelled a verdict, most decide, and it is left out if they are split. Labels of responses that
    are conversations, or whose texts the ledger does not keep, are left out too.
    """
    wanted = LabelFilter(project_of(request), storable_text(run), labeller=labeller)
    try:
        found = await labelled_groups(service_of(request).label_store(), wanted)
    except ConnectionError as error:
        raise NotReady(f"Labels cannot be read now: {error}", retry_after_s=5) from error
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows)
    return Response(body.encode("utf-8", "replace"), media_type=NDJSON)
