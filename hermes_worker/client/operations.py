"""The operations of the API, one function each: it builds the request as a value. Pure; the clients have a method of
the same name for each, which sends the request and returns what the answer says.

Each method raises ``RefusedError`` when the API refuses, and ``UnavailableError`` when no answer comes in time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

from hermes_worker.client.exchange import KEY_HEADER, AnswerMismatch, ApiAnswer, ApiRequest
from hermes_worker.core.errors import UnavailableError

if TYPE_CHECKING:
    from hermes_worker.features.alerts.schema import AlertObject
    from hermes_worker.features.artifacts.schema import ArtifactList, ArtifactObject
    from hermes_worker.features.audit.schema import DeedObject
    from hermes_worker.features.checkpoints.schema import CheckpointDiffObject, CheckpointList, RestoreObject
    from hermes_worker.features.configurations.schema import ConfigurationObject
    from hermes_worker.features.deliveries.schema import DeadTargetObject, DeliveryObject
    from hermes_worker.features.encryption.schema import TextKeyObject
    from hermes_worker.features.mcp_servers.schema import McpServerObject
    from hermes_worker.features.memory.schema import MemoryChangedObject, MemoryObject, MemoryVersionObject
    from hermes_worker.features.provider_keys.schema import ProviderKeyObject
    from hermes_worker.features.retention.erasure_schema import ErasureObject, ErasureWork, ForetoldErasure
    from hermes_worker.features.retention.schema import HoldView, PrunedPlace, PruneObject
    from hermes_worker.features.skills.schema import RemovedSkill, SkillSheetObject
    from hermes_worker.features.spend.schema import SpendObject
    from hermes_worker.features.tenants.key_schema import (
        DisabledTenant,
        KeyView,
        NewKeyObject,
        PlacesBody,
        TenantObject,
        TenantView,
    )
    from hermes_worker.features.tenants.schema import LimitsObject, TenantLimitsObject
    from hermes_worker.features.webhooks.schema import EventSignature, RouteObject
    from hermes_worker.schemas.approvals import AnsweredQuestion, DecisionObject, WaitObject
    from hermes_worker.schemas.capabilities import CapabilitiesObject, Health, SkillObject, ToolsetObject
    from hermes_worker.schemas.fleet import BacklogObject, KeyStateObject, WorkerObject
    from hermes_worker.schemas.gateway import GatewayAccountObject
    from hermes_worker.schemas.jobs import (
        FiringObject,
        FullJobSheet,
        JobInFull,
        JobObject,
        JobSheet,
        NewJobObject,
        SlotObject,
    )
    from hermes_worker.schemas.page import PageLoginObject, SavedFilterObject
    from hermes_worker.schemas.runs import (
        BatchResult,
        CallDetailObject,
        Controlled,
        ExplanationObject,
        JoinedRuns,
        LedgerEntryObject,
        PromptObject,
        RunObject,
        StartedRun,
        Stopping,
        TrajectoryObject,
        TreeObject,
        TurnResult,
    )
    from hermes_worker.schemas.search import FoundMessages
    from hermes_worker.schemas.sessions import MessageObject, SessionObject
    from hermes_worker.schemas.settings import SettingList, SettingObject

T = TypeVar("T")

PAGE = 100
WAIT_S = 30.0
"""Seconds of one request that waits; the server allows at most a minute."""


# ------------------------------------------------------------------------------------------------------------- reading


@cache
def _adapter(kind: Any) -> Any:
    from hermes_worker.resource import build_answer_reader  # not for those who only import the client

    return build_answer_reader(kind)


def _require_document(kind: type[T], document: Any) -> T:
    """Return ``document`` as a ``kind``. Raises ``AnswerMismatch`` when it has not the fields of one."""
    from pydantic import ValidationError

    try:
        found: T = _adapter(cast("Any", kind)).validate_python(document, extra="allow")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise AnswerMismatch(
            f"the server's answer cannot be read ({where[:80]}: {first['msg']}): use the same version on both sides"
        ) from None
    # A resource is a model; what is a dictionary is returned as it came, with its own numbers.
    checked: T = found if _is_resource(found) else document
    return checked


def _is_resource(found: object) -> bool:
    from hermes_worker.resource import Resource

    return isinstance(found[0] if isinstance(found, list) and found else found, Resource)


def _make_reader(kind: type[T], *path: str) -> Callable[[ApiAnswer], T]:
    """Make a reader of the value at ``path`` of the answer."""

    def read(answer: ApiAnswer) -> T:
        document = answer.parse_document()
        for name in path:
            document = document.get(name) if isinstance(document, dict) else None
        return _require_document(kind, document)

    return read


def _read_nothing(_answer: ApiAnswer) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion(Generic[T]):
    """One page of a list, and the request for the next."""

    items: Sequence[T]
    following: ApiRequest[Portion[T]] | None


def _build_list_request(
    request: ApiRequest[Any], kind: type[T], name: str, after: Callable[[dict[str, Any]], Mapping[str, Any] | None]
) -> ApiRequest[Portion[T]]:
    """Make the request for a list, page after page. ``name`` is the field of the list; ``after`` gives the parameters
    of the page behind one, ``None`` behind the last."""

    def read(answer: ApiAnswer) -> Portion[T]:
        document = answer.parse_document()
        items = _require_document(list[kind], document.get(name) if isinstance(document, dict) else None)  # type: ignore[valid-type]
        more = after(document)
        next_request = None if more is None else replace(request, params={**request.params, **more})
        return Portion(
            items=items,
            following=None if next_request is None else _build_list_request(next_request, kind, name, after),
        )

    return replace(request, read=read)


def _find_cursor(document: dict[str, Any]) -> Mapping[str, Any] | None:
    return {"cursor": document["next_cursor"]} if document.get("has_more") and document.get("next_cursor") else None


def _make_pager(parameter: str, field: str) -> Callable[[dict[str, Any]], Mapping[str, Any] | None]:
    """Make the function that begins the next page behind the last entry's ``field``."""

    def after(document: dict[str, Any]) -> Mapping[str, Any] | None:
        return {parameter: document["data"][-1][field]} if document.get("has_more") and document["data"] else None

    return after


def _get(
    template: str, read: Callable[[ApiAnswer], T], names: Mapping[str, str] | None = None, **params: Any
) -> ApiRequest[T]:
    return ApiRequest(method="GET", template=template, read=read, names=names or {}, params=params)


def _post(
    template: str,
    read: Callable[[ApiAnswer], T],
    names: Mapping[str, str] | None = None,
    *,
    body: Any = None,
    key: str | None = None,
    **params: Any,
) -> ApiRequest[T]:
    headers = {KEY_HEADER: key} if key else {}
    return ApiRequest(
        method="POST", template=template, read=read, names=names or {}, params=params, body=body, headers=headers
    )


def _run(run_id: str) -> Mapping[str, str]:
    return {"run_id": run_id}


# ---------------------------------------------------------------------------------------------------------------- runs


def start(text: str, *, idempotency_key: str | None = None, **options: Any) -> ApiRequest[StartedRun]:
    """Start a run; ``options`` are the other fields of ``POST /v1/runs``. The same key gives the same run; without one
    the client makes one, so that a lost answer starts no second run."""
    from hermes_worker.schemas.runs import StartedRun

    body = {"input": text, **options}
    return _post("/v1/runs", _make_reader(StartedRun), body=body, key=idempotency_key)


def submit(text: str, *, idempotency_key: str | None = None, **options: Any) -> ApiRequest[str]:
    """Start a run as ``start`` does; returns its id."""
    body = {"input": text, **options}
    return _post("/v1/runs", _make_reader(str, "run_id"), body=body, key=idempotency_key)


def submit_all(submissions: Sequence[Mapping[str, Any]], *, dry_run: bool = False) -> ApiRequest[list[BatchResult]]:
    """Start up to a thousand runs in one request: the fields of ``POST /v1/runs``, and ``idempotency_key``. Returns the
    result of each, in their order; with ``dry_run`` only what is wrong with the form of each."""
    from hermes_worker.schemas.runs import BatchResults

    body: dict[str, Any] = {"runs": [dict(each) for each in submissions], **({"dry_run": True} if dry_run else {})}

    def read(answer: ApiAnswer) -> list[BatchResult]:
        return _make_reader(BatchResults)(answer).data

    return _post("/v1/batch/runs", read, body=body)


def runs(**filters: Any) -> ApiRequest[Portion[RunObject]]:
    """Runs, newest first, page after page; ``filters`` are those of ``GET /v1/runs``, lists where several are meant.
    ``limit`` is the size of a page."""
    from hermes_worker.schemas.runs import RunObject

    request = _get("/v1/runs", _read_nothing, **{"limit": PAGE, **filters})
    return _build_list_request(request, RunObject, "data", _find_cursor)


def run(run_id: str) -> ApiRequest[RunObject]:
    """A run, with its budget and its tool calls."""
    from hermes_worker.schemas.runs import RunObject

    return _get("/v1/runs/{run_id}", _make_reader(RunObject), _run(run_id))


def sheets(**filters: Any) -> ApiRequest[Portion[dict[str, Any]]]:
    """Runs as ``runs`` lists them, with all that their rows say, as the command line needs it."""
    request = _get("/v1/sheets", _read_nothing, **{"limit": PAGE, **filters})
    return _build_list_request(request, dict[str, Any], "data", _find_cursor)


def sheet(run_id: str) -> ApiRequest[dict[str, Any]]:
    """Everything about one run, as the command line shows it."""
    return _get("/v1/sheets/{run_id}", _make_reader(dict[str, Any]), _run(run_id))


def run_news(run_id: str) -> ApiRequest[dict[str, Any]]:
    """What a follower of a run learns beside its events: why it is where it is, its children, and what was refused to
    runs below it."""
    return _get("/v1/sheets/{run_id}/news", _make_reader(dict[str, Any]), _run(run_id))


def whole_id(begins: str, kind: Literal["run", "delivery"] = "run") -> ApiRequest[str]:
    """The id of the one run, or delivery, whose id begins so, with its prefix or without."""
    return _get("/v1/ids", _make_reader(str, "id"), kind=kind, begins=begins)


def hook_calls(run_id: str, *, limit: int | None = None) -> ApiRequest[list[dict[str, Any]]]:
    """The calls of hooks for a run and their results, the newest first."""
    return _get("/v1/sheets/{run_id}/hooks", _make_reader(list[dict[str, Any]], "data"), _run(run_id), limit=limit)


def trajectory(run_id: str) -> ApiRequest[TrajectoryObject]:
    """A run as a training sample (ShareGPT)."""
    from hermes_worker.schemas.runs import TrajectoryObject

    return _get("/v1/sheets/{run_id}/trajectory", _make_reader(TrajectoryObject), _run(run_id))


def result(run_id: str) -> ApiRequest[TurnResult]:
    """The result of the run, under Hermes Agent's names."""
    from hermes_worker.schemas.runs import TurnResult

    return _get("/v1/runs/{run_id}/result", _make_reader(TurnResult), _run(run_id))


def explain(run_id: str) -> ApiRequest[ExplanationObject]:
    """Why the run is where it is: ``because``, ``text`` and ``facts``."""
    from hermes_worker.schemas.runs import ExplanationObject

    return _get("/v1/runs/{run_id}/explain", _make_reader(ExplanationObject), _run(run_id))


def calls(run_id: str) -> ApiRequest[Portion[LedgerEntryObject]]:
    """The tool calls of a run, in order: their effect class, attempts, takeovers, and who holds them."""
    from hermes_worker.schemas.runs import LedgerEntryObject

    request = _get("/v1/runs/{run_id}/calls", _read_nothing, _run(run_id), limit=PAGE)
    return _build_list_request(request, LedgerEntryObject, "data", _make_pager("after", "call"))


def call(run_id: str, place: str) -> ApiRequest[CallDetailObject]:
    """One tool call with its arguments and its result; ``place`` is its ``call``, such as ``3.0``."""
    from hermes_worker.schemas.runs import CallDetailObject

    return _get("/v1/runs/{run_id}/calls/{call}", _make_reader(CallDetailObject), {"run_id": run_id, "call": place})


def prompt(run_id: str, reply: int | None = None) -> ApiRequest[PromptObject]:
    """The prompt for one ``reply`` of a run, counted from 1; ``None`` is the newest."""
    from hermes_worker.schemas.runs import PromptObject

    return _get("/v1/runs/{run_id}/prompt", _make_reader(PromptObject), _run(run_id), reply=reply)


def tree(run_id: str) -> ApiRequest[TreeObject]:
    """The runs of the tree that a run is in, each with the run it stands below."""
    from hermes_worker.schemas.runs import TreeObject

    return _get("/v1/runs/{run_id}/tree", _make_reader(TreeObject), _run(run_id))


def spend(**filters: Any) -> ApiRequest[list[SpendObject]]:
    """What runs cost, ``by`` day, model, tenant, job or session; ``filters`` are those of ``GET /v1/spend``."""
    from hermes_worker.features.spend.schema import SpendObject

    return _get("/v1/spend", _make_reader(list[SpendObject], "data"), **filters)


def settings(prefix: str | None = None, **about: Any) -> ApiRequest[list[SettingObject]]:
    """Every setting whose key begins with ``prefix``, with the layer that set it; for operators. ``about`` names a
    ``tenant``, a ``session_id`` or a ``run_id``."""
    from hermes_worker.schemas.settings import SettingObject

    return _get("/v1/settings", _make_reader(list[SettingObject], "data"), prefix=prefix, **about)


def told_settings(**about: Any) -> ApiRequest[SettingList]:
    """All settings, with the versions of the configurations that count and what is wrong with others. ``about`` as for
    ``settings``."""
    from hermes_worker.schemas.settings import SettingList

    return _get("/v1/settings", _make_reader(SettingList), **about)


def session_settings(session_id: str) -> ApiRequest[dict[str, str]]:
    """The overrides of a session, by key."""
    place = {"session_id": session_id}
    return _get("/v1/sessions/{session_id}/settings", _make_reader(dict[str, str], "settings"), place)


def set_session_settings(session_id: str, settings: Mapping[str, str | None]) -> ApiRequest[dict[str, str]]:
    """Override settings for the next runs of a session; ``None`` removes an override."""
    place = {"session_id": session_id}
    return _put(
        "/v1/sessions/{session_id}/settings", _make_reader(dict[str, str], "settings"), place, settings=settings
    )


def configuration() -> ApiRequest[ConfigurationObject]:
    """The configuration of the fleet: ``text`` and ``version``."""
    from hermes_worker.features.configurations.schema import ConfigurationObject

    return _get("/v1/configuration", _make_reader(ConfigurationObject))


def write_configuration(text: str, version: int) -> ApiRequest[ConfigurationObject]:
    """Write the configuration behind ``version``, the one that was read. Status 409: there is a newer one."""
    from hermes_worker.features.configurations.schema import ConfigurationObject

    return _put("/v1/configuration", _make_reader(ConfigurationObject), text=text, version=version)


def configuration_versions(limit: int | None = None) -> ApiRequest[list[ConfigurationObject]]:
    """The versions that are kept, the newest first."""
    from hermes_worker.features.configurations.schema import ConfigurationObject

    return _get("/v1/configuration/versions", _make_reader(list[ConfigurationObject], "data"), limit=limit)


def tenant_configuration(tenant: str) -> ApiRequest[ConfigurationObject]:
    """What is overridden for a tenant: ``text`` and ``version``."""
    from hermes_worker.features.configurations.schema import ConfigurationObject

    return _get("/v1/tenants/{tenant}/configuration", _make_reader(ConfigurationObject), {"tenant": tenant})


def write_tenant_configuration(tenant: str, text: str, version: int) -> ApiRequest[ConfigurationObject]:
    """Override settings for a tenant, as ``write_configuration`` does for the fleet."""
    from hermes_worker.features.configurations.schema import ConfigurationObject

    place = {"tenant": tenant}
    return _put(
        "/v1/tenants/{tenant}/configuration", _make_reader(ConfigurationObject), place, text=text, version=version
    )


def tenant_configuration_versions(tenant: str, limit: int | None = None) -> ApiRequest[list[ConfigurationObject]]:
    """The versions of what was overridden for a tenant, the newest first."""
    from hermes_worker.features.configurations.schema import ConfigurationObject

    template = "/v1/tenants/{tenant}/configuration/versions"
    return _get(template, _make_reader(list[ConfigurationObject], "data"), {"tenant": tenant}, limit=limit)


def _put(
    template: str, read: Callable[[ApiAnswer], T], names: Mapping[str, str] | None = None, **body: Any
) -> ApiRequest[T]:
    return ApiRequest(method="PUT", template=template, read=read, names=names or {}, body=body)


def artifacts(run_id: str) -> ApiRequest[ArtifactList]:
    """The files that the run left, each with an address."""
    from hermes_worker.features.artifacts.schema import ArtifactList

    return _get("/v1/runs/{run_id}/artifacts", _make_reader(ArtifactList), _run(run_id))


def artifact(found: ArtifactObject | Mapping[str, Any]) -> ApiRequest[bytes]:
    """The bytes of a file that ``artifacts`` listed. An answer with other bytes than were stored raises."""
    proof = dict(parse_qsl(urlsplit(found["url"]).query))

    def read(answer: ApiAnswer) -> bytes:
        if hashlib.sha256(answer.body).hexdigest() != found["sha256"]:
            raise UnavailableError(f"the server's answer is not the artifact {found['id']}: its hash differs")
        return answer.body

    asked = {name: proof.get(name) for name in ("expires", "signature")}
    return _get("/v1/artifacts/{artifact_id}/content", read, {"artifact_id": found["id"]}, **asked)


def checkpoints(run_id: str) -> ApiRequest[CheckpointList]:
    """The checkpoints of the run's workspace, the newest first."""
    from hermes_worker.features.checkpoints.schema import CheckpointList

    return _get("/v1/runs/{run_id}/checkpoints", _make_reader(CheckpointList), _run(run_id))


def diff(run_id: str, checkpoint_id: str | None = None) -> ApiRequest[CheckpointDiffObject]:
    """How the files differ from a checkpoint; without one, from what they were before the run changed any."""
    from hermes_worker.features.checkpoints.schema import CheckpointDiffObject

    read = _make_reader(CheckpointDiffObject)
    return _get("/v1/runs/{run_id}/diff", read, _run(run_id), checkpoint_id=checkpoint_id)


def restore(run_id: str, checkpoint_id: str, *, files: Sequence[str] = ()) -> ApiRequest[RestoreObject]:
    """Restore a checkpoint, or only the ``files`` named. A checkpoint of the current files is made first."""
    from hermes_worker.features.checkpoints.schema import RestoreObject

    body = {"checkpoint_id": checkpoint_id, **({"files": list(files)} if files else {})}
    return _post("/v1/runs/{run_id}/restore", _make_reader(RestoreObject), _run(run_id), body=body)


def stop(run_id: str) -> ApiRequest[Stopping]:
    """Ask a run, and all that it caused, to stop. Idempotent."""
    from hermes_worker.schemas.runs import Stopping

    return _post("/v1/runs/{run_id}/stop", _make_reader(Stopping), _run(run_id))


def stop_all(*, dry_run: bool = False, **filters: Any) -> ApiRequest[list[str]]:
    """Stop the open runs that match, at most ``limit`` of them. Returns which they are, or with ``dry_run`` would be.
    One request looks at the newest 200,000 open runs at most, and at fewer where texts are read. Idempotent."""
    from hermes_worker.schemas.runs import StoppedRuns

    body = {"dry_run": dry_run, **filters}

    def read(answer: ApiAnswer) -> list[str]:
        return _make_reader(StoppedRuns)(answer).run_ids

    return replace(_post("/v1/batch/stop", read, body=body), only_reads=dry_run)


def retry(run_id: str, *, idempotency_key: str | None = None) -> ApiRequest[str]:
    """Start a run with the submission of one that has ended; returns its id."""
    return _post("/v1/runs/{run_id}/retry", _make_reader(str, "run_id"), _run(run_id), key=idempotency_key)


def pause(run_id: str) -> ApiRequest[Controlled]:
    """Begin nothing new in a run and in all that it caused. Idempotent."""
    from hermes_worker.schemas.runs import Controlled

    return _post("/v1/runs/{run_id}/pause", _make_reader(Controlled), _run(run_id))


def resume(run_id: str) -> ApiRequest[Controlled]:
    """Resume a paused run. Idempotent."""
    from hermes_worker.schemas.runs import Controlled

    return _post("/v1/runs/{run_id}/resume", _make_reader(Controlled), _run(run_id))


def steer(run_id: str, text: str) -> ApiRequest[Controlled]:
    """Steer a run at work: it reads the text with its next tool result."""
    from hermes_worker.schemas.runs import Controlled

    return _post("/v1/runs/{run_id}/steer", _make_reader(Controlled), _run(run_id), body={"text": text})


def build_wait(run_id: str, *, timeout_s: float = WAIT_S) -> ApiRequest[JoinedRuns]:
    """Wait for the end of the run, for at most a minute."""
    from hermes_worker.schemas.runs import JoinedRuns

    def read(answer: ApiAnswer) -> JoinedRuns:
        end = answer.parse_document()
        return _require_document(JoinedRuns, {"done": bool(isinstance(end, dict) and end.get("ended")), "runs": [end]})

    return _get("/v1/runs/{run_id}/wait", read, _run(run_id), timeout_s=timeout_s)


def build_join(
    run_ids: Sequence[str], *, mode: Literal["all", "any"] = "all", timeout_s: float = WAIT_S
) -> ApiRequest[JoinedRuns]:
    """Wait until all of up to a thousand runs have ended, or ``any`` of them, for at most a minute."""
    from hermes_worker.schemas.runs import JoinedRuns

    body = {"run_ids": list(run_ids), "mode": mode, "timeout_s": timeout_s}
    return replace(_post("/v1/batch/wait", _make_reader(JoinedRuns), body=body), only_reads=True)


def events(run_id: str, after: str) -> ApiRequest[None]:
    """The stream of a run's events behind the one with the id ``after``."""
    headers = {"Last-Event-ID": after, "Accept": "text/event-stream"}
    return replace(_get("/v1/runs/{run_id}/events", _read_nothing, _run(run_id)), headers=headers)


def tree_events(run_id: str, after: str) -> ApiRequest[None]:
    """The stream of the events of all runs of a tree, behind the one with the id ``after``."""
    headers = {"Last-Event-ID": after, "Accept": "text/event-stream"}
    return replace(_get("/v1/runs/{run_id}/tree/events", _read_nothing, _run(run_id)), headers=headers)


def changes(after: str, *, all_tenants: bool = False) -> ApiRequest[None]:
    """The stream of lists that changed since the event with the id ``after``; an empty ``after`` begins with all
    lists."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
    return replace(_get("/v1/changes", _read_nothing, all_tenants=all_tenants or None), headers=headers)


# --------------------------------------------------------------------------------------------------- questions of runs


def approvals(*, kind: str | None = None, limit: int = 500, all_tenants: bool = False) -> ApiRequest[list[WaitObject]]:
    """The inbox: open approvals (``kind`` ``approval``) and questions (``input``), oldest first; ``all_tenants`` is for
    operators."""
    from hermes_worker.schemas.approvals import WaitObject

    reads = _make_reader(list[WaitObject], "data")
    return _get("/v1/approvals", reads, kind=kind, limit=limit, all_tenants=all_tenants or None)


def decisions(**filters: Any) -> ApiRequest[Portion[DecisionObject]]:
    """Closed approvals and questions, the newest first, with who answered."""
    from hermes_worker.schemas.approvals import DecisionObject

    request = _get("/v1/approvals/history", _read_nothing, **{"limit": PAGE, **filters})
    return _build_list_request(request, DecisionObject, "data", _make_pager("before", "id"))


def approve(run_id: str, choice: str, *, wait_id: int, reason: str | None = None) -> ApiRequest[AnsweredQuestion]:
    """Allow (``once``, ``session``, ``always``) or ``deny`` what the run asked for: the question ``wait_id`` that was
    seen. ``reason`` is for the model."""
    from hermes_worker.schemas.approvals import AnsweredQuestion

    body = {"choice": choice, "wait_id": wait_id, "reason": reason}
    return _post("/v1/runs/{run_id}/approval", _make_reader(AnsweredQuestion), _run(run_id), body=body)


def answer(run_id: str, text: str, *, wait_id: int) -> ApiRequest[AnsweredQuestion]:
    """Answer the question ``wait_id`` of the run."""
    from hermes_worker.schemas.approvals import AnsweredQuestion

    body = {"text": text, "wait_id": wait_id}
    return _post("/v1/runs/{run_id}/input", _make_reader(AnsweredQuestion), _run(run_id), body=body)


# ---------------------------------------------------------------------------------------------------------------- jobs


def _job(job_id: str) -> Mapping[str, str]:
    return {"job_id": job_id}


def jobs(*, include_disabled: bool = False) -> ApiRequest[list[JobInFull]]:
    """Every job that is scheduled, or every job."""
    from hermes_worker.schemas.jobs import JobInFull

    return _get("/api/jobs", _make_reader(list[JobInFull], "jobs"), include_disabled=include_disabled)


def job(job_id: str) -> ApiRequest[JobInFull]:
    """A job."""
    from hermes_worker.schemas.jobs import JobInFull

    return _get("/api/jobs/{job_id}", _make_reader(JobInFull, "job"), _job(job_id))


def create_job(
    name: str, schedule: str, *, idempotency_key: str | None = None, **fields: Any
) -> ApiRequest[NewJobObject]:
    """Keep a job; ``fields`` are the other fields of ``POST /api/jobs``."""
    from hermes_worker.schemas.jobs import NewJobObject

    body = {"name": name, "schedule": schedule, **fields}
    return _post("/api/jobs", _make_reader(NewJobObject, "job"), body=body, key=idempotency_key)


def change_job(job_id: str, **fields: Any) -> ApiRequest[JobObject]:
    """Change the named ``fields``. Not sent again when its answer is lost."""
    from hermes_worker.schemas.jobs import JobObject

    read = _make_reader(JobObject, "job")
    return ApiRequest(method="PATCH", template="/api/jobs/{job_id}", read=read, names=_job(job_id), body=fields)


def remove_job(job_id: str) -> ApiRequest[None]:
    """Delete a job; its history is kept."""
    return ApiRequest(method="DELETE", template="/api/jobs/{job_id}", read=_read_nothing, names=_job(job_id))


def pause_job(job_id: str, *, reason: str | None = None) -> ApiRequest[JobObject]:
    """Pause a job: nothing comes due until it is resumed. ``reason`` is for people who look at it."""
    from hermes_worker.schemas.jobs import JobObject

    request = _post("/api/jobs/{job_id}/pause", _make_reader(JobObject, "job"), _job(job_id))
    return replace(request, params={"reason": reason})


def resume_job(job_id: str) -> ApiRequest[JobObject]:
    """Resume a job with its next slot."""
    from hermes_worker.schemas.jobs import JobObject

    return _post("/api/jobs/{job_id}/resume", _make_reader(JobObject, "job"), _job(job_id))


def run_job(job_id: str) -> ApiRequest[JobObject]:
    """Make a job due now."""
    from hermes_worker.schemas.jobs import JobObject

    return _post("/api/jobs/{job_id}/run", _make_reader(JobObject, "job"), _job(job_id))


def job_history(job_id: str, *, limit: int = 50, before: float | None = None) -> ApiRequest[list[FiringObject]]:
    """The settled slots of a job, newest first; ``before`` is the slot that ended the page before."""
    from hermes_worker.schemas.jobs import FiringObject

    read = _make_reader(list[FiringObject], "firings")
    return _get("/api/jobs/{job_id}/history", read, _job(job_id), limit=limit, before=before)


def coming_slots(*, days: float = 7.0, limit: int = 200) -> ApiRequest[list[SlotObject]]:
    """The slots of all scheduled jobs in the next ``days``, the next one first."""
    from hermes_worker.schemas.jobs import SlotObject

    return _get("/v1/slots", _make_reader(list[SlotObject], "data"), days=days, limit=limit)


def job_sheets() -> ApiRequest[list[JobSheet]]:
    """All jobs with all that their rows say, as the command line shows them."""
    from hermes_worker.schemas.jobs import JobSheet

    return _get("/v1/job-sheets", _make_reader(list[JobSheet], "data"))


def job_sheet(job_id: str, *, slots: int = 0) -> ApiRequest[FullJobSheet]:
    """A job as ``job_sheets`` lists it, with as many of its next slots as ``slots`` says, at most 100."""
    from hermes_worker.schemas.jobs import FullJobSheet

    return _get("/v1/job-sheets/{job_id}", _make_reader(FullJobSheet), _job(job_id), slots=slots)


# ---------------------------------------------------------------------------------------------------------- deliveries


def _delivery(delivery_id: str) -> Mapping[str, str]:
    return {"delivery_id": delivery_id}


def deliveries(**filters: Any) -> ApiRequest[Portion[DeliveryObject]]:
    """Deliveries, newest first, page after page; ``filters``: ``state``, ``run_id``, ``before``."""
    from hermes_worker.features.deliveries.schema import DeliveryObject

    request = _get("/v1/deliveries", _read_nothing, **{"limit": PAGE, **filters})
    return _build_list_request(request, DeliveryObject, "data", _make_pager("before", "delivery_id"))


def delivery(delivery_id: str) -> ApiRequest[DeliveryObject]:
    """A delivery and what became of it."""
    from hermes_worker.features.deliveries.schema import DeliveryObject

    return _get("/v1/deliveries/{delivery_id}", _make_reader(DeliveryObject), _delivery(delivery_id))


def retry_delivery(delivery_id: str) -> ApiRequest[DeliveryObject]:
    """Send a settled delivery once more."""
    from hermes_worker.features.deliveries.schema import DeliveryObject

    return _post("/v1/deliveries/{delivery_id}/retry", _make_reader(DeliveryObject), _delivery(delivery_id))


def dead_targets() -> ApiRequest[list[DeadTargetObject]]:
    """Targets to which nothing is sent any more, the newest first: ``key``, ``reason``, ``marked_at``."""
    from hermes_worker.features.deliveries.schema import DeadTargetObject

    return _get("/v1/dead-targets", _make_reader(list[DeadTargetObject], "data"))


# ------------------------------------------------------------------------------------------------------------ sessions


def _session(session_id: str) -> Mapping[str, str]:
    return {"session_id": session_id}


def sessions(**filters: Any) -> ApiRequest[Portion[SessionObject]]:
    """Sessions, newest first, page after page; ``filters``: ``source``, ``include_children``,
    ``before``, ``title``, ``archived``."""
    from hermes_worker.schemas.sessions import SessionObject

    request = _get("/api/sessions", _read_nothing, **{"limit": 50, **filters})
    return _build_list_request(request, SessionObject, "data", _make_pager("before", "id"))


def session(session_id: str) -> ApiRequest[SessionObject]:
    """A session, with the totals of its runs."""
    from hermes_worker.schemas.sessions import SessionObject

    return _get("/api/sessions/{session_id}", _make_reader(SessionObject, "session"), _session(session_id))


def search_sessions(query: str, **filters: Any) -> ApiRequest[FoundMessages]:
    """Messages that match, in ``data``; ``is_complete`` says whether none was left out. ``filters``:
    ``limit``, ``sort`` (``hits``, ``newest``, ``oldest``), ``role``, ``session_id``, ``include_children``."""
    from hermes_worker.schemas.search import FoundMessages

    return _get("/api/sessions/search", _make_reader(FoundMessages), q=query, **filters)


def session_lineage(session_id: str) -> ApiRequest[list[SessionObject]]:
    """A session, what it was forked from, and every fork of those, oldest first."""
    from hermes_worker.schemas.sessions import SessionObject

    template = "/api/sessions/{session_id}/lineage"
    return _get(template, _make_reader(list[SessionObject], "data"), _session(session_id))


def create_session(*, idempotency_key: str | None = None, **fields: Any) -> ApiRequest[SessionObject]:
    """Open a session without a run: ``id``, ``model``, ``system_prompt``, ``title``."""
    from hermes_worker.schemas.sessions import SessionObject

    return _post("/api/sessions", _make_reader(SessionObject, "session"), body=fields, key=idempotency_key)


def change_session(session_id: str, **fields: Any) -> ApiRequest[SessionObject]:
    """Change its ``title``, mark it as over by ``end_reason``, or archive it (``archived``). Not sent again when its
    answer is lost."""
    from hermes_worker.schemas.sessions import SessionObject

    return ApiRequest(
        method="PATCH",
        template="/api/sessions/{session_id}",
        read=_make_reader(SessionObject, "session"),
        names=_session(session_id),
        body=fields,
    )


def remove_session(session_id: str) -> ApiRequest[None]:
    """Delete a session with its runs and what they delegated."""
    return ApiRequest(
        method="DELETE", template="/api/sessions/{session_id}", read=_read_nothing, names=_session(session_id)
    )


def messages(session_id: str, *, after: int = 0) -> ApiRequest[Portion[MessageObject]]:
    """The transcript, oldest first, page after page."""
    from hermes_worker.schemas.sessions import MessageObject

    request = _get("/api/sessions/{session_id}/messages", _read_nothing, _session(session_id), after=after)
    return _build_list_request(request, MessageObject, "data", _make_pager("after", "id"))


def fork_session(session_id: str, *, idempotency_key: str | None = None, **fields: Any) -> ApiRequest[SessionObject]:
    """Open a session that begins with a copy of this one's transcript: ``id``, ``title``, ``message_id``."""
    from hermes_worker.schemas.sessions import SessionObject

    read = _make_reader(SessionObject, "session")
    return _post("/api/sessions/{session_id}/fork", read, _session(session_id), body=fields, key=idempotency_key)


def import_session(session: Mapping[str, Any], *, idempotency_key: str | None = None) -> ApiRequest[SessionObject]:
    """Make a session of a conversation from elsewhere, a line of an export; refused (409) where there is one of its
    name."""
    from hermes_worker.schemas.sessions import SessionObject

    read = _make_reader(SessionObject, "session")
    return _post("/api/sessions/import", read, body={"session": session}, key=idempotency_key)


def compress_session(session_id: str, *, focus: str = "", idempotency_key: str | None = None) -> ApiRequest[str]:
    """Summarise the older part of a session now, above all what concerns ``focus``. Returns the id of the run that does
    it; its output is the summary."""
    body = {"focus": focus} if focus else {}
    read = _make_reader(str, "run_id")
    return _post("/api/sessions/{session_id}/compress", read, _session(session_id), body=body, key=idempotency_key)


# ---------------------------------------------------------------------------------------------------- the installation


def audit(**filters: Any) -> ApiRequest[Portion[DeedObject]]:
    """Who did what for the tenant, page after page, oldest first unless ``newest_first``; ``filters``: ``after``,
    ``before``, ``act``, ``subject``, ``actor``, ``since``, ``until``, ``settled`` and, for operators,
    ``all_tenants``."""
    from hermes_worker.features.audit.schema import DeedObject

    request = _get("/v1/audit", _read_nothing, **{"limit": 1_000, **filters})
    onwards = _make_pager("before" if filters.get("newest_first") else "after", "number")
    return _build_list_request(request, DeedObject, "data", onwards)


def memory(*, profile: str | None = None) -> ApiRequest[MemoryObject]:
    """What agents of the tenant remember, with who wrote what, and the changes that wait for a person."""
    from hermes_worker.features.memory.schema import MemoryObject

    return _get("/v1/memory", _make_reader(MemoryObject), profile=profile)


def change_memory(
    target: str,
    operations: Sequence[Mapping[str, Any]],
    *,
    profile: str | None = None,
    idempotency_key: str | None = None,
) -> ApiRequest[MemoryChangedObject]:
    """Add, replace and remove entries of ``memory`` or ``user``, all together or nothing:
    ``[{"action": "add", "content": "likes tea"}]``."""
    from hermes_worker.features.memory.schema import MemoryChangedObject

    return _post(
        "/v1/memory/{target}",
        _make_reader(MemoryChangedObject),
        {"target": target},
        body={"operations": [dict(each) for each in operations]},
        key=idempotency_key,
        profile=profile,
    )


def undo_memory(
    target: str, *, entry_id: str | None = None, profile: str | None = None, idempotency_key: str | None = None
) -> ApiRequest[MemoryChangedObject]:
    """Take the last change of an entry back, or of the one that was changed last."""
    body = {"entry_id": entry_id}
    from hermes_worker.features.memory.schema import MemoryChangedObject

    return _post(
        "/v1/memory/{target}/undo",
        _make_reader(MemoryChangedObject),
        {"target": target},
        body=body,
        key=idempotency_key,
        profile=profile,
    )


def settle_memory(
    target: str, staged_id: str, approve: bool, *, idempotency_key: str | None = None
) -> ApiRequest[MemoryChangedObject]:
    """Make a change that waits for a person, or drop it."""
    body = {"staged_id": staged_id, "approve": approve}
    from hermes_worker.features.memory.schema import MemoryChangedObject

    return _post(
        "/v1/memory/{target}/settle",
        _make_reader(MemoryChangedObject),
        {"target": target},
        body=body,
        key=idempotency_key,
    )


def redact_memory(
    target: str, entry_id: str, version: int, *, idempotency_key: str | None = None
) -> ApiRequest[MemoryVersionObject]:
    """Empty the text of a past version of an entry."""
    body = {"entry_id": entry_id, "version": version}
    from hermes_worker.features.memory.schema import MemoryVersionObject

    return _post(
        "/v1/memory/{target}/redact",
        _make_reader(MemoryVersionObject),
        {"target": target},
        body=body,
        key=idempotency_key,
    )


def memory_history(
    target: str,
    *,
    entry_id: str | None = None,
    behind: int | None = None,
    limit: int = 100,
    profile: str | None = None,
) -> ApiRequest[list[MemoryVersionObject]]:
    """Who made what of ``memory`` or ``user``, the newest first; behind a number."""
    from hermes_worker.features.memory.schema import MemoryVersionObject

    return _get(
        "/v1/memory/{target}/history",
        _make_reader(list[MemoryVersionObject], "data"),
        {"target": target},
        entry_id=entry_id,
        behind=behind,
        limit=limit,
        profile=profile,
    )


def limits() -> ApiRequest[TenantLimitsObject]:
    """What the key's tenant may use, and each of its keys that has limits of its own."""
    from hermes_worker.features.tenants.schema import TenantLimitsObject

    return _get("/v1/limits", _make_reader(TenantLimitsObject))


def key_limits(key_id: str) -> ApiRequest[LimitsObject]:
    """The limits of a key of the tenant."""
    from hermes_worker.features.tenants.schema import LimitsObject

    return _get("/v1/limits/keys/{key_id}", _make_reader(LimitsObject), {"key_id": key_id})


def set_key_limits(key_id: str, limits: Mapping[str, Any]) -> ApiRequest[LimitsObject]:
    """Set the limits of a key of the tenant: ``{"runs": {"at_most": 5}}``. Those that are not named there are none."""
    from hermes_worker.features.tenants.schema import LimitsObject

    return ApiRequest(
        method="PUT",
        template="/v1/limits/keys/{key_id}",
        read=_make_reader(LimitsObject),
        names={"key_id": key_id},
        body={"limits": dict(limits)},
    )


def tenant_limits(tenant: str) -> ApiRequest[TenantLimitsObject]:
    """What a tenant may use; for operators."""
    from hermes_worker.features.tenants.schema import TenantLimitsObject

    return _get("/v1/tenants/{tenant}/limits", _make_reader(TenantLimitsObject), {"tenant": tenant})


def set_tenant_limits(
    tenant: str, limits: Mapping[str, Any], *, weight: float | None = None, key_id: str | None = None
) -> ApiRequest[LimitsObject]:
    """Set the limits of a tenant, or of one of its keys; for operators."""
    from hermes_worker.features.tenants.schema import LimitsObject

    return ApiRequest(
        method="PUT",
        template="/v1/tenants/{tenant}/limits",
        read=_make_reader(LimitsObject),
        names={"tenant": tenant},
        params={"key_id": key_id},
        body={"limits": dict(limits), "weight": weight},
    )


def provider_keys(tenant: str) -> ApiRequest[list[ProviderKeyObject]]:
    """The provider keys that a tenant brought, without the keys; for operators."""
    from hermes_worker.features.provider_keys.schema import ProviderKeyObject

    template = "/v1/tenants/{tenant}/provider-keys"
    return _get(template, _make_reader(list[ProviderKeyObject], "data"), {"tenant": tenant})


def add_provider_key(
    tenant: str, provider: str, key: str, *, idempotency_key: str | None = None
) -> ApiRequest[ProviderKeyObject]:
    """Have a tenant be asked for with a key of its own; for operators. The same key again changes nothing."""
    from hermes_worker.features.provider_keys.schema import ProviderKeyObject

    body = {"provider": provider, "key": key}
    template = "/v1/tenants/{tenant}/provider-keys"
    return _post(template, _make_reader(ProviderKeyObject), {"tenant": tenant}, body=body, key=idempotency_key)


def remove_provider_key(tenant: str, provider_key_id: str) -> ApiRequest[ProviderKeyObject]:
    """Delete a provider key of a tenant; for operators."""
    from hermes_worker.features.provider_keys.schema import ProviderKeyObject

    return ApiRequest(
        method="DELETE",
        template="/v1/tenants/{tenant}/provider-keys/{provider_key_id}",
        read=_make_reader(ProviderKeyObject),
        names={"tenant": tenant, "provider_key_id": provider_key_id},
    )


def change_tenant_limits(
    tenant: str, limits: Mapping[str, Any], *, weight: float | None = None, key_id: str | None = None
) -> ApiRequest[TenantLimitsObject]:
    """Change the limits that are named, and no others; ``None`` takes one away. For operators."""
    from hermes_worker.features.tenants.schema import TenantLimitsObject

    return ApiRequest(
        method="PATCH",
        template="/v1/tenants/{tenant}/limits",
        read=_make_reader(TenantLimitsObject),
        names={"tenant": tenant},
        params={"key_id": key_id},
        body={"limits": dict(limits), "weight": weight},
    )


def tenants() -> ApiRequest[list[TenantView]]:
    """All tenants, with the number of their runs and keys; for operators."""
    from hermes_worker.features.tenants.key_schema import TenantView

    return _get("/v1/tenants", _make_reader(list[TenantView], "data"))


def create_tenant(name: str) -> ApiRequest[TenantObject]:
    """Make a tenant; for operators."""
    from hermes_worker.features.tenants.key_schema import TenantObject

    return _post("/v1/tenants", _make_reader(TenantObject), body={"name": name})


def disable_tenant(tenant: str, *, stop: bool = False) -> ApiRequest[DisabledTenant]:
    """Let nothing new begin for a tenant; for operators. With ``stop``, ask some of its runs to stop as well, and tell
    how many ``open_runs`` are left for the next request."""
    from hermes_worker.features.tenants.key_schema import DisabledTenant

    read = _make_reader(DisabledTenant)
    return _post("/v1/tenants/{tenant}/disable", read, {"tenant": tenant}, body={"stop": stop})


def enable_tenant(tenant: str) -> ApiRequest[TenantObject]:
    """Let a disabled tenant work again; for operators. Idempotent."""
    from hermes_worker.features.tenants.key_schema import TenantObject

    return _post("/v1/tenants/{tenant}/enable", _make_reader(TenantObject), {"tenant": tenant})


def set_places(places: int | None) -> ApiRequest[PlacesBody]:
    """How many runs may be at work at once in the whole fleet; ``None`` for as many as its workers say. For
    operators."""
    from hermes_worker.features.tenants.key_schema import PlacesBody

    body = {"places": places}
    return ApiRequest(method="PUT", template="/v1/places", read=_make_reader(PlacesBody), body=body)


def keys(*, tenant: str | None = None) -> ApiRequest[list[KeyView]]:
    """The keys of the tenant, without what makes them keys; operators may name another ``tenant``."""
    from hermes_worker.features.tenants.key_schema import KeyView

    return _get("/v1/keys", _make_reader(list[KeyView], "data"), tenant=tenant)


def create_key(
    holder: str, *, scopes: Sequence[str] | None = None, expires_in_s: float | None = None, tenant: str | None = None
) -> ApiRequest[NewKeyObject]:
    """Make a key: ``key`` of the answer is shown this once. Sent once: when the answer is lost, so is the key."""
    from hermes_worker.features.tenants.key_schema import NewKeyObject

    body = {"holder": holder, "expires_in_s": expires_in_s, **({"scopes": list(scopes)} if scopes else {})}
    made = _post("/v1/keys", _make_reader(NewKeyObject), body=body)
    return replace(made, params={"tenant": tenant}, is_sent_once=True)


def rotate_key(key_id: str, *, overlap_s: float = 86_400.0, tenant: str | None = None) -> ApiRequest[NewKeyObject]:
    """Make a key in the place of another, which ends in ``overlap_s`` seconds. Sent once, as ``create_key``."""
    from hermes_worker.features.tenants.key_schema import NewKeyObject

    made = _post(
        "/v1/keys/{key_id}/rotate", _make_reader(NewKeyObject), {"key_id": key_id}, body={"overlap_s": overlap_s}
    )
    return replace(made, params={"tenant": tenant}, is_sent_once=True)


def revoke_key(key_id: str, *, tenant: str | None = None) -> ApiRequest[None]:
    """Revoke a key now. Idempotent."""
    names = {"key_id": key_id}
    return ApiRequest(
        method="DELETE", template="/v1/keys/{key_id}", read=_read_nothing, names=names, params={"tenant": tenant}
    )


def page_login() -> ApiRequest[PageLoginObject]:
    """The caller, its tenant, and what the key allows."""
    from hermes_worker.schemas.page import PageLoginObject

    return _get("/v1/page/login", _make_reader(PageLoginObject))


def open_page_login(path: str = "/") -> ApiRequest[PageLoginObject]:
    """Log a browser in: the answer's cookie stands for the key of this client. ``path`` is the page's."""
    from hermes_worker.schemas.page import PageLoginObject

    body = {"path": path}
    return ApiRequest(method="PUT", template="/v1/page/login", read=_make_reader(PageLoginObject), body=body)


def close_page_login(path: str = "/") -> ApiRequest[None]:
    """End the login whose cookie is sent; with a key alone there is none. ``path`` is the page's. Idempotent."""
    return ApiRequest(method="DELETE", template="/v1/page/login", read=_read_nothing, params={"path": path})


def saved_filters() -> ApiRequest[list[SavedFilterObject]]:
    """The filters that the holder of the key saved on the page, by name."""
    from hermes_worker.schemas.page import SavedFilterObject

    return _get("/v1/page/filters", _make_reader(list[SavedFilterObject], "data"))


def save_filter(name: str, query: str) -> ApiRequest[list[SavedFilterObject]]:
    """Save a filter, such as ``status=failed``, in place of the one that has that name. Returns all filters."""
    from hermes_worker.schemas.page import SavedFilterObject

    body = {"name": name, "query": query}
    read = _make_reader(list[SavedFilterObject], "data")
    return ApiRequest(method="PUT", template="/v1/page/filters", read=read, body=body)


def remove_saved_filter(name: str) -> ApiRequest[None]:
    """Remove a filter of the holder of the key."""
    return ApiRequest(method="DELETE", template="/v1/page/filters", read=_read_nothing, params={"name": name})


def gateway_accounts() -> ApiRequest[list[GatewayAccountObject]]:
    """The accounts to which people write: which gateway listens, who was let in and who asks to be."""
    from hermes_worker.schemas.gateway import GatewayAccountObject

    return _get("/v1/gateway/accounts", _make_reader(list[GatewayAccountObject], "data"))


def pair_person(account: str, code: str, *, role: str = "owner") -> ApiRequest[str]:
    """Let in the person who was given ``code`` in a chat of ``account``, such as ``telegram:default``. Returns their
    id."""
    body = {"account": account, "code": code, "role": role}
    return _post("/v1/gateway/pairings", _make_reader(str, "person"), body=body)


def remove_chat_person(account: str, person: str) -> ApiRequest[None]:
    """Remove a person who was let in, or refuse one who asks."""
    params = {"account": account, "person": person}
    return ApiRequest(method="DELETE", template="/v1/gateway/people", read=_read_nothing, params=params)


def remove_gateway_codes(account: str) -> ApiRequest[int]:
    """Remove all unused codes of ``account``. Returns how many."""
    params = {"account": account}
    return ApiRequest(method="DELETE", template="/v1/gateway/codes", read=_make_reader(int, "removed"), params=params)


def mcp_servers() -> ApiRequest[list[McpServerObject]]:
    """The MCP servers that the tenant keeps, without their tokens. None is asked."""
    from hermes_worker.features.mcp_servers.schema import McpServerObject

    return _get("/v1/mcp-servers", _make_reader(list[McpServerObject], "data"))


def mcp_server(name: str) -> ApiRequest[McpServerObject]:
    """One of them, with the tools that it offered when it was last asked, and the name of that ``offer``."""
    from hermes_worker.features.mcp_servers.schema import McpServerObject

    return _get("/v1/mcp-servers/{mcp_server}", _make_reader(McpServerObject), {"mcp_server": name})


def add_mcp_server(
    name: str,
    *,
    url: str = "",
    command: Sequence[str] = (),
    token: str | None = None,
    replaces: bool = False,
    **fields: Any,
) -> ApiRequest[McpServerObject]:
    """Keep a server, or change the one of its name. Without a ``token`` the one that it has stays, if the server stays
    where it is. ``fields`` are those of ``POST /v1/mcp-servers``."""
    from hermes_worker.features.mcp_servers.schema import McpServerObject

    body = {"name": name, "url": url, "command": list(command), "token": token, "replace": replaces, **fields}
    return _post("/v1/mcp-servers", _make_reader(McpServerObject), body=body)


def approve_mcp_server(name: str, offer: str) -> ApiRequest[McpServerObject]:
    """Approve all that a server offered when ``offer`` was looked at. Idempotent."""
    from hermes_worker.features.mcp_servers.schema import McpServerObject

    template = "/v1/mcp-servers/{mcp_server}/approve"
    return _post(template, _make_reader(McpServerObject), {"mcp_server": name}, body={"offer": offer})


def test_mcp_server(name: str) -> ApiRequest[McpServerObject]:
    """Have a server be asked at once what it offers; ``looked_at`` of a later ``mcp_server`` says when it was."""
    from hermes_worker.features.mcp_servers.schema import McpServerObject

    return _post("/v1/mcp-servers/{mcp_server}/test", _make_reader(McpServerObject), {"mcp_server": name})


def remove_mcp_server(name: str) -> ApiRequest[None]:
    """Remove a server, with its token; its processes are ended."""
    template = "/v1/mcp-servers/{mcp_server}"
    return ApiRequest(method="DELETE", template=template, read=_read_nothing, names={"mcp_server": name})


def webhook_routes() -> ApiRequest[list[RouteObject]]:
    """The routes on which others may send events to the tenant, without their secrets."""
    from hermes_worker.features.webhooks.schema import RouteObject

    return _get("/v1/webhook-routes", _make_reader(list[RouteObject], "data"))


def add_webhook_route(
    name: str, *, secret: str | None = None, replaces: bool = False, **fields: Any
) -> ApiRequest[RouteObject]:
    """Keep a route; ``secret`` may be left out only where one is replaced. ``fields`` are those of
    ``POST /v1/webhook-routes``."""
    from hermes_worker.features.webhooks.schema import RouteObject

    body = {"name": name, "secret": secret, "replace": replaces, **fields}
    return _post("/v1/webhook-routes", _make_reader(RouteObject), body=body)


def remove_webhook_route(name: str) -> ApiRequest[None]:
    """Remove a route; its runs stay."""
    return ApiRequest(method="DELETE", template="/v1/webhook-routes/{name}", read=_read_nothing, names={"name": name})


def sign_webhook_event(name: str, payload: str) -> ApiRequest[EventSignature]:
    """What proves that ``payload`` comes from the holder of a route's secret: ``path`` and ``headers``."""
    from hermes_worker.features.webhooks.schema import EventSignature

    read = _make_reader(EventSignature)
    asked = _post("/v1/webhook-routes/{name}/signature", read, {"name": name}, body={"payload": payload})
    return replace(asked, only_reads=True)


def retention_rules() -> ApiRequest[dict[str, str]]:
    """The retention rules of the tenant, by kind."""
    return _get("/v1/retention", _make_reader(dict[str, str], "rules"))


def change_retention(rules: Mapping[str, str | None]) -> ApiRequest[dict[str, str]]:
    """Set rules of the tenant's own, by kind; ``None`` removes one. Returns all rules that hold then."""
    body = {"rules": dict(rules)}
    return ApiRequest(method="PATCH", template="/v1/retention", read=_make_reader(dict[str, str], "rules"), body=body)


def holds() -> ApiRequest[list[HoldView]]:
    """What is held of the tenant whatever the rules say."""
    from hermes_worker.features.retention.schema import HoldView

    return _get("/v1/holds", _make_reader(list[HoldView], "data"))


def place_hold(reason: str, *, run_id: str | None = None, session_id: str | None = None) -> ApiRequest[HoldView]:
    """Hold the chain of a run, a session, or everything of the tenant, until it is released."""
    from hermes_worker.features.retention.schema import HoldView

    body = {"reason": reason, "run_id": run_id, "session_id": session_id}
    return _post("/v1/holds", _make_reader(HoldView), body=body)


def release_hold(number: int) -> ApiRequest[None]:
    """Release a hold."""
    return ApiRequest(method="DELETE", template="/v1/holds/{number}", read=_read_nothing, names={"number": str(number)})


def prune(
    *, dry_run: bool = True, all_tenants: bool = False, after: PrunedPlace | Mapping[str, Any] | None = None
) -> ApiRequest[PruneObject]:
    """Delete for some seconds what the rules let go, or count it: ``counts``, ``done``, and ``next``, which is the
    ``after`` of the next request."""
    from hermes_worker.features.retention.schema import PruneObject

    body = {"dry_run": dry_run, "all_tenants": all_tenants, "after": None if after is None else dict(after)}
    return replace(_post("/v1/prunes", _make_reader(PruneObject), body=body), only_reads=dry_run)


def _at(tenant: str | None) -> Mapping[str, Any]:
    return {"tenant": tenant}


def export(whom: Mapping[str, Any], *, tenant: str | None = None) -> ApiRequest[None]:
    """Everything of a subject, line by line: ``whom`` has the fields ``sessions``, ``named``, ``principals``,
    ``holders``, ``targets`` and ``everybody``. Operators may name another ``tenant``."""
    return replace(_post("/v1/exports", _read_nothing, body=dict(whom)), params=_at(tenant), only_reads=True)


def foretell_erasure(whom: Mapping[str, Any], *, tenant: str | None = None) -> ApiRequest[ForetoldErasure]:
    """What an erasure would erase; changes nothing. ``whom`` as for ``export``."""
    from hermes_worker.features.retention.erasure_schema import ForetoldErasure

    asked = _post("/v1/erasures/foretold", _make_reader(ForetoldErasure), body=dict(whom))
    return replace(asked, params=_at(tenant), only_reads=True)


def begin_erasure(
    whom: Mapping[str, Any], *, shared: bool = False, stop: bool = False, tenant: str | None = None
) -> ApiRequest[ErasureObject]:
    """Mark everything of somebody, so that nothing new begins; ``work_on_erasure`` with its ``receipt_id`` erases."""
    from hermes_worker.features.retention.erasure_schema import ErasureObject

    body = {"whom": dict(whom), "shared": shared, "stop": stop}
    return replace(_post("/v1/erasures", _make_reader(ErasureObject), body=body), params=_at(tenant))


def replay_erasure(receipt: str, *, tenant: str | None = None) -> ApiRequest[ErasureObject]:
    """Begin to erase again what a receipt, as text, tells of."""
    from hermes_worker.features.retention.erasure_schema import ErasureObject

    asked = _post("/v1/erasures/replayed", _make_reader(ErasureObject), body={"receipt": receipt})
    return replace(asked, params=_at(tenant))


def erasures(*, tenant: str | None = None) -> ApiRequest[list[ErasureObject]]:
    """Erasures that have begun and are not finished, oldest first."""
    from hermes_worker.features.retention.erasure_schema import ErasureObject

    return _get("/v1/erasures", _make_reader(list[ErasureObject], "data"), tenant=tenant)


def work_on_erasure(receipt_id: str, *, stop: bool = False, tenant: str | None = None) -> ApiRequest[ErasureWork]:
    """Erase for some seconds; repeat it until ``done``, when there is a ``receipt``."""
    from hermes_worker.features.retention.erasure_schema import ErasureWork

    read = _make_reader(ErasureWork)
    asked = _post("/v1/erasures/{receipt_id}/work", read, {"receipt_id": receipt_id}, body={"stop": stop})
    return replace(asked, params=_at(tenant))


def erasure_receipts(*, tenant: str | None = None) -> ApiRequest[list[dict[str, Any]]]:
    """The receipts of the tenant's erasures, oldest first."""
    return _get("/v1/erasure-receipts", _make_reader(list[dict[str, Any]], "data"), tenant=tenant)


def erasure_receipt(receipt_id: str, *, tenant: str | None = None) -> ApiRequest[dict[str, Any]]:
    """A receipt, after the server verified its signature."""
    read, names = _make_reader(dict[str, Any]), {"receipt_id": receipt_id}
    return _get("/v1/erasure-receipts/{receipt_id}", read, names, tenant=tenant)


def backlog() -> ApiRequest[BacklogObject]:
    """The steps that wait and the steps at work, by queue."""
    from hermes_worker.schemas.fleet import BacklogObject

    return _get("/v1/backlog", _make_reader(BacklogObject))


def workers() -> ApiRequest[list[WorkerObject]]:
    """The worker processes that are alive, and what each of them holds."""
    from hermes_worker.schemas.fleet import WorkerObject

    return _get("/v1/workers", _make_reader(list[WorkerObject], "data"))


def text_keys() -> ApiRequest[list[TextKeyObject]]:
    """The keys that encrypt texts in the database, by their ids; for operators."""
    from hermes_worker.features.encryption.schema import TextKeyObject

    return _get("/v1/encryption/keys", _make_reader(list[TextKeyObject], "data"))


def drain_worker(worker_id: str) -> ApiRequest[None]:
    """Drain a worker; for operators. Idempotent."""
    return _post("/v1/workers/{worker_id}/drain", _read_nothing, {"worker_id": worker_id})


def provider_states() -> ApiRequest[list[KeyStateObject]]:
    """The keys of providers that are without money or out of order."""
    from hermes_worker.schemas.fleet import KeyStateObject

    return _get("/v1/providers/states", _make_reader(list[KeyStateObject], "data"))


def alerts(*, limit: int | None = None) -> ApiRequest[list[AlertObject]]:
    """The newest alerts to operators."""
    from hermes_worker.features.alerts.schema import AlertObject

    return _get("/v1/alerts", _make_reader(list[AlertObject], "data"), limit=limit)


def open_provider_key(credential: str) -> ApiRequest[KeyStateObject]:
    """Let runs use a key of a provider again at once; for operators. Idempotent."""
    from hermes_worker.schemas.fleet import KeyStateObject

    names = {"credential": credential}
    return _post("/v1/providers/states/{credential}/open", _make_reader(KeyStateObject), names)


def try_alerts() -> ApiRequest[int]:
    """Send a text to every target of alerts, as deliveries. Returns how many these are; for operators."""
    return _post("/v1/alerts/test", _make_reader(int, "owed"))


def alert_targets(*, tenant: str | None = None) -> ApiRequest[list[str]]:
    """The targets of the tenant's alerts about itself; operators may name another ``tenant``."""
    return _get("/v1/alerts/targets", _make_reader(list[str], "targets"), tenant=tenant)


def set_alert_targets(targets: Sequence[str], *, tenant: str | None = None) -> ApiRequest[list[str]]:
    """Replace all targets of the tenant's alerts; an empty list ends the alerts. Returns the targets. Idempotent."""
    body = {"targets": list(targets)}
    asked = ApiRequest(method="PUT", template="/v1/alerts/targets", read=_make_reader(list[str], "targets"), body=body)
    return replace(asked, params={"tenant": tenant})


def capabilities() -> ApiRequest[CapabilitiesObject]:
    """The capabilities of the server."""
    from hermes_worker.schemas.capabilities import CapabilitiesObject

    return _get("/v1/capabilities", _make_reader(CapabilitiesObject))


def toolsets() -> ApiRequest[list[ToolsetObject]]:
    """The toolsets that a run can name."""
    from hermes_worker.schemas.capabilities import ToolsetObject

    return _get("/v1/toolsets", _make_reader(list[ToolsetObject], "data"))


def skills() -> ApiRequest[list[SkillObject]]:
    """The skills that a run can be given."""
    from hermes_worker.schemas.capabilities import SkillObject

    return _get("/v1/skills", _make_reader(list[SkillObject], "data"))


def skill(name: str, *, file: str | None = None) -> ApiRequest[SkillSheetObject]:
    """The newest version of a skill: what it says of itself, its files, and the text of one, ``SKILL.md`` by
    default."""
    from hermes_worker.features.skills.schema import SkillSheetObject

    return _get("/v1/skills/{skill}", _make_reader(SkillSheetObject), {"skill": name}, file=file)


def keep_skill(
    name: str, files: Sequence[Mapping[str, Any]], *, category: str | None = None, expects: str | None = None
) -> ApiRequest[SkillSheetObject]:
    """Add a skill, or make these files its newest version, of ``expects`` only where that is given:
    ``[{"path": "SKILL.md", "text": "..."}]``. Idempotent."""
    from hermes_worker.features.skills.schema import SkillSheetObject

    body = {"files": [dict(each) for each in files], "category": category, "expects": expects}
    return ApiRequest(
        method="PUT",
        template="/v1/skills/{skill}",
        read=_make_reader(SkillSheetObject),
        names={"skill": name},
        body=body,
    )


def remove_skill(name: str, *, expects: str | None = None) -> ApiRequest[RemovedSkill]:
    """Take a skill away, of this version only where one is given."""
    from hermes_worker.features.skills.schema import RemovedSkill

    asked = ApiRequest(
        method="DELETE", template="/v1/skills/{skill}", read=_make_reader(RemovedSkill), names={"skill": name}
    )
    return replace(asked, params={"expects": expects})


def health() -> ApiRequest[Health]:
    """Whether the server answers, and its version. Needs no key."""
    from hermes_worker.schemas.capabilities import Health

    return _get("/health", _make_reader(Health))
