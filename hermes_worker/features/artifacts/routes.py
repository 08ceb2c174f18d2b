"""The files that runs left: a list for the holder of a key, and each file for the holder of its signed address."""

from __future__ import annotations

import base64
import math
import time
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Response

from hermes_worker.api import schema
from hermes_worker.api.auth import READS
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors
from hermes_worker.api.owners import OwnRun
from hermes_worker.core.ranges import UnsatisfiableRange, parse_range
from hermes_worker.features.artifacts.rules import sanitize_name
from hermes_worker.features.artifacts.schema import ArtifactList, ArtifactObject, LeftOutObject
from hermes_worker.safety.redaction import redact
from hermes_worker.store.artifacts.listing import ArtifactNotFound, Artifacts, ArtifactView

router = APIRouter(
    tags=["artifacts"],
    route_class=answer_errors(
        {
            ArtifactNotFound: RouteRefusal(404, "artifact_not_found", "artifact_id", "There is no such artifact."),
        }
    ),
    responses=schema.declare_errors(503),
)
_URL_S = 900.0
"""Seconds for which the address of a file can be used, by all who have it."""
_EXPIRES_MAX = 10**11
_PROOF = r"^[0-9a-f]{8}\.[0-9a-f]{64}$"


@router.get(
    "/v1/runs/{run_id}/artifacts",
    response_model=ArtifactList,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404, 410),
    dependencies=[READS],
)
async def list_artifacts(context: Context, run_id: OwnRun) -> ArtifactList:
    """The files that a run left, with an address for each that can be used for a while and without a key."""
    found = await context.call_store(Artifacts(context.client.database).list_artifacts, run_id)
    expires_at = math.ceil(time.time() + _URL_S)
    return ArtifactList(
        run_id=run_id,
        state=found.state,
        reason=redact(found.reason) if found.reason else None,
        data=[_build_artifact_object(context, each, expires_at) for each in found.files],
        gathered=found.gathered,
        left_out_total=found.left_out,
        left_out=[LeftOutObject(path=each.path, reason=each.reason) for each in found.left_out_named],
    )


def _build_artifact_object(context: ApiContext, view: ArtifactView, expires_at: int) -> ArtifactObject:
    signature = context.proofs.sign(_build_signed_text(view, expires_at))
    return ArtifactObject.from_record(
        view,
        id=view.artifact_id,
        url=f"/v1/artifacts/{view.artifact_id}/content?expires={expires_at}&signature={signature}",
        url_expires_at=expires_at,
    )


def _build_signed_text(view: ArtifactView, expires_at: int) -> str:
    """Build the text that the signature of an address covers. No part of it can hold a line break."""
    return f"artifact\n{view.tenant}\n{view.artifact_id}\n{view.sha256}\n{expires_at}"


_TEXT = {"required": True, "schema": {"type": "string"}}
_OCTETS: dict[str, dict[str, object]] = {"application/octet-stream": {}}
_CONTENT: schema.Answers = {
    200: {
        "description": "The bytes of the file, to be saved and not shown.",
        "headers": {"Accept-Ranges": {"required": True, "schema": {"const": "bytes"}}, "ETag": _TEXT},
        "content": _OCTETS,
    },
    206: {
        "description": "The part of the file that was asked for.",
        "headers": {"Content-Range": _TEXT, "ETag": _TEXT},
        "content": _OCTETS,
    },
    416: {
        "model": schema.ErrorDocument,
        "description": "The file ends before the part that was asked for.",
        "headers": {"Content-Range": _TEXT},
    },
}


@router.get(
    "/v1/artifacts/{artifact_id}/content",
    response_class=Response,
    responses={**_CONTENT, **schema.declare_errors(404, 410)},
)
async def read_artifact(
    context: Context,
    artifact_id: str,
    expires: Annotated[int, Query(ge=0, le=_EXPIRES_MAX)],
    signature: Annotated[str, Query(pattern=_PROOF)],
    asked: Annotated[
        str | None, Header(alias="Range", description="One range of bytes; several are answered with the whole file.")
    ] = None,
    if_range: Annotated[str | None, Header(description="The ETag of the file of which there is a part.")] = None,
) -> Response:
    """A file, or a part of it, at the signed address that its list gave. A signature that does not fit is answered as
    if there were no file."""
    reading = Artifacts(context.client.database, context.client.contents)
    view = await context.call_store(reading.find, artifact_id)
    if not context.proofs.is_signed(_build_signed_text(view, expires), signature):
        raise ArtifactNotFound(artifact_id)
    if time.time() >= expires:
        message = "This address has expired. Get another one from the list of the run's artifacts."
        raise ApiError(410, message, code="artifact_url_expired")
    headers = build_headers(view)
    part = parse_range(asked, view.size, if_range=if_range, etag=headers["ETag"])
    if isinstance(part, UnsatisfiableRange):
        raise _behind_the_end(part)
    content = await context.call_store(reading.load_content, view)
    if part is None:
        return Response(content, media_type=view.media_type, headers=headers)
    headers["Content-Range"] = part.content_range
    return Response(part.slice(content), 206, media_type=view.media_type, headers=headers)


def _behind_the_end(part: UnsatisfiableRange) -> ApiError:
    return ApiError(
        416,
        f"The file has {part.size} bytes.",
        param="range",
        code="range_not_satisfiable",
        headers={"Content-Range": part.content_range},
    )


def build_headers(view: ArtifactView) -> dict[str, str]:
    """Build the headers of a file: a browser saves it and does not show it, and every answer tells it not to guess the
    type."""
    name = sanitize_name(view.path)
    plain = name.encode("ascii", "replace").decode().replace("?", "_")
    return {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(view.sha256)).decode()}:",
        "Cache-Control": "private, no-store",
        "Accept-Ranges": "bytes",
        "ETag": f'"{view.sha256}"',
    }
