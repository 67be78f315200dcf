"""`/v1/labels`: the labels that people give to the verdicts of a run, read as a labelled data set, and written."""

import json
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Request, Response

from judge_server.api.auth import RequiredScope, identity_of, project_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import StrictRoute
from judge_server.api.service import service_of
from judge_server.errors import NotReady, ServiceError, invalid_request
from judge_server.evaluation.labelling import labelled_groups
from judge_server.ledger.reading import decode_cursor
from judge_server.ledger.rows import storable_text
from trainer_client.wire import FieldError
from trainer_client.wire.ledger import LabelReceipt, LabelRequest
from trainer_client.wire.ledger_rows import LabelFilter, VerdictKey

NDJSON = "application/x-ndjson"

router = APIRouter(
    prefix="/v1",
    tags=["ledger"],
    route_class=StrictRoute,
    dependencies=[Depends(RequiredScope("read", write_scope="labels:write"))],
)

_EXAMPLE = {"run": "llama-srar-3", "labels": [{"verdict": "AAYVmZmZmZmZAAAAAAAAAQAAAAAAAAAB", "met": False}]}


class UnknownVerdict(ServiceError):
    """The ledger has no such verdict in the run."""

    type = "urn:adjudge:not-found"
    title = "Unknown verdict"
    status = 404


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
    name="download_labels",
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


@router.put(
    "/labels",
    summary="Label verdicts of a run",
    response_model=LabelReceipt,
    responses=problem_responses(404, 413, 422, 503),
)
async def write_labels(
    request: Request,
    body: Annotated[LabelRequest, Body(openapi_examples={"one": {"summary": "One label", "value": _EXAMPLE}})],
) -> LabelReceipt:
    """Say of verdicts whether the criterion is met. `GET /v1/verdicts` has the `id` of each.

    Labels belong to the key that gives them: a later label of the same verdict replaces its earlier one. They are
    stored all or none.
    """
    identity, store, run = identity_of(request), service_of(request).label_store(), storable_text(body.run)
    given: dict[VerdictKey, bool | None] = {}
    for place, label in enumerate(body.labels):
        try:
            given[VerdictKey(run, *decode_cursor(label.verdict))] = label.met
        except ValueError:
            message = "this is not the id of a verdict; take the id of GET /v1/verdicts unchanged"
            raise invalid_request((FieldError(field=f"labels.{place}.verdict", message=message),)) from None
    try:
        await store.set_labels(identity.project_id, given, identity.actor)
    except LookupError as error:
        raise UnknownVerdict(f"No label was stored: {error.args[0]}.") from None
    except ConnectionError as error:
        raise NotReady(f"Labels cannot be written now: {error}", retry_after_s=5) from error
    removed = sum(met is None for met in given.values())
    return LabelReceipt(labeller=identity.actor, stored=len(given) - removed, removed=removed)
