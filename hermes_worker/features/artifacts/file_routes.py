"""``/v1/files``: OpenAI's files, which are artifacts that a client uploaded."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors, invalid
from hermes_worker.api.limits import MULTIPART
from hermes_worker.core.media_kinds import OCTETS, PICTURES
from hermes_worker.features.artifacts.file_schema import (
    EXPIRES_S_MAX,
    EXPIRES_S_MIN,
    LIST_MAX,
    PURPOSES,
    UPLOAD_SCHEMA,
    FileDeleted,
    FileList,
    FileObject,
)
from hermes_worker.features.artifacts.routes import build_headers
from hermes_worker.features.artifacts.rules import find_media_type, sanitize_name
from hermes_worker.safety.redaction import redact
from hermes_worker.store.artifacts.gatherings import ContentGone
from hermes_worker.store.artifacts.listing import ArtifactNotFound, Artifacts, ArtifactView
from hermes_worker.store.artifacts.uploads import NewUpload, UploadHeld, Uploads, UploadsFull

router = APIRouter(
    prefix="/v1/files",
    tags=["openai"],
    route_class=answer_errors(
        {
            ArtifactNotFound: RouteRefusal(404, "file_not_found", "file_id", "No such File object: {file_id:.80}"),
            UploadHeld: RouteRefusal(409, "file_held"),
        }
    ),
    responses=schema.declare_errors(503),
)

_NAME_CHARS_MAX = 200
_OCTETS_ANSWER: dict[str, Any] = {"description": "The bytes of the file.", "content": {OCTETS: {}}}


@dataclass(frozen=True, slots=True)
class _Upload:
    name: str
    media_type: str
    content: bytes
    purpose: str
    expires_in_s: int | None


async def _read_upload(request: Request) -> _Upload:
    """Read the form of an upload. Raises ``ApiError``."""
    try:
        async with request.form() as form:
            return await _read_form(form)
    except ClientDisconnect:
        raise ApiError(400, "The connection was closed before the body was complete.", code="incomplete_body") from None
    except ApiError:
        raise
    except HTTPException as error:  # of the parser
        raise invalid("body", f"Invalid {MULTIPART}: {error.detail}", "invalid_form") from None


async def _read_form(form: FormData) -> _Upload:
    purpose = form.get("purpose")
    if purpose not in PURPOSES:
        words = ", ".join(PURPOSES)
        raise invalid("purpose", f"Invalid 'purpose': it must be one of {words}. Other purposes are not served here.")
    file = form.get("file")
    if file is None:
        raise invalid("file", "Missing required parameter: 'file'.", "missing_required_parameter")
    if isinstance(file, str):  # it came as a field like others
        file = UploadFile(io.BytesIO(file.encode()), filename="file")
    name = sanitize_name(file.filename or "file")[-_NAME_CHARS_MAX:]
    told, by_name = file.content_type, find_media_type(name)
    return _Upload(
        name=name,
        media_type=told if told in PICTURES and by_name == OCTETS else by_name,
        content=await file.read(),
        purpose=str(purpose),
        expires_in_s=_read_expiry(form),
    )


def _read_expiry(form: FormData) -> int | None:
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    is_number = isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) < 10
    if anchor != "created_at" or not is_number or not EXPIRES_S_MIN <= int(str(seconds)) <= EXPIRES_S_MAX:
        message = f"its anchor is 'created_at', its seconds are {EXPIRES_S_MIN} to {EXPIRES_S_MAX}."
        raise invalid("expires_after", f"Invalid 'expires_after': {message}")
    return int(str(seconds))


def _build_file(view: ArtifactView) -> FileObject:
    return FileObject(
        id=view.artifact_id,
        bytes=view.size,
        created_at=int(view.created_at),
        expires_at=None if view.expires_at is None else int(view.expires_at),
        filename=redact(view.path),
        purpose=view.purpose or "",
    )


@router.post(
    "",
    response_model=FileObject,
    response_model_exclude_none=True,
    openapi_extra={"requestBody": {"required": True, "content": {MULTIPART: {"schema": UPLOAD_SCHEMA}}}},
    responses=schema.declare_errors(408),
    dependencies=[WRITES],
)
async def create_file(
    context: Context, caller: Caller, upload: Annotated[_Upload, Depends(_read_upload)]
) -> FileObject:
    """Upload a file, which later requests name by its id. It is kept like the artifacts of runs, and no agent sees it
    before a message names it."""
    client = context.client
    limits = client.settings.artifacts
    if len(upload.content) > limits.file_mb_max * 1024**2:
        message = f"A file has at most {limits.file_mb_max} MB here (artifacts.file_mb_max)."
        raise ApiError(413, message, code="file_too_large", param="file")
    new = NewUpload(
        tenant=caller.tenant,
        principal=caller.display_name,
        name=upload.name,
        purpose=upload.purpose,
        media_type=upload.media_type,
        content=upload.content,
        expires_in_s=upload.expires_in_s,
    )
    uploads = Uploads(client.database, caller.tenant, client.contents)
    try:
        view = await context.call_store(uploads.create, new, bytes_max=limits.run_mb_max * 1024**2)
    except UploadsFull:
        message = (
            f"The uploaded files together may have {limits.run_mb_max} MB (artifacts.run_mb_max). Delete some, or let "
            "them end with 'expires_after'."
        )
        raise ApiError(413, message, code="files_quota_exceeded", param="file") from None
    except ContentGone as error:
        raise ApiError(503, f"{error}; upload it again.", code="content_gone", headers={"Retry-After": "1"}) from None
    return _build_file(view)


@router.get("", response_model=FileList, response_model_exclude_none=True, dependencies=[READS])
async def list_files(
    context: Context,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = LIST_MAX,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=64, description="The id of the last file seen.")] = None,
    purpose: Annotated[str | None, Query(max_length=40, description="Only files that were uploaded for it.")] = None,
) -> FileList:
    """The files that were uploaded, by when they were."""
    uploads = Uploads(context.client.database, caller.tenant)
    try:
        page = await context.call_store(uploads.list_page, limit=limit, order=order, after=after, purpose=purpose)
    except ArtifactNotFound:
        raise invalid("after", f"Invalid 'after': there is no file {after!r}.", "file_not_found") from None
    ids = [view.artifact_id for view in page.files]
    return FileList(
        data=[_build_file(view) for view in page.files],
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=page.has_more,
    )


async def _find_own_file(context: Context, caller: Caller, file_id: str) -> ArtifactView:
    return await context.call_store(Uploads(context.client.database, caller.tenant).find, file_id)


_OwnFile = Annotated[ArtifactView, Depends(_find_own_file)]


@router.get(
    "/{file_id}",
    response_model=FileObject,
    response_model_exclude_none=True,
    responses=schema.declare_errors(404),
    dependencies=[READS],
)
async def get_file(kept: _OwnFile) -> FileObject:
    """A file that was uploaded."""
    return _build_file(kept)


@router.get(
    "/{file_id}/content",
    response_class=Response,
    responses={200: _OCTETS_ANSWER, **schema.declare_errors(404)},
    dependencies=[READS],
)
async def get_file_content(context: Context, kept: _OwnFile) -> Response:
    """The bytes of a file, to be saved and not shown."""
    reading = Artifacts(context.client.database, context.client.contents)
    content = await context.call_store(reading.load_content, kept)
    return Response(content, media_type=OCTETS, headers=build_headers(kept))


@router.delete(
    "/{file_id}", response_model=FileDeleted, responses=schema.declare_errors(404, 409), dependencies=[WRITES]
)
async def delete_file(context: Context, caller: Caller, kept: _OwnFile) -> FileDeleted:
    """Delete a file. What messages said with it stays in their conversations."""
    uploads = Uploads(context.client.database, caller.tenant)
    await context.call_store(uploads.delete, kept.artifact_id)
    return FileDeleted(id=kept.artifact_id)
