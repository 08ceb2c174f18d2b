"""The operations of the API about runs, sessions, jobs and the installation: ``hermes_worker.operation`` says what an
operation is.

Each method raises ``RefusedError`` when the API refuses, and ``UnavailableError`` when no answer comes in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hermes_worker.operation import (
    PAGE,
    ApiAnswer,
    ApiRequest,
    Portion,
    build_get,
    build_list_request,
    build_post,
    build_put,
    find_cursor,
    make_pager,
    make_reader,
    read_nothing,
    require_document,
)

if TYPE_CHECKING:
    from hermes_worker.core.run_views import HookCallView, RunNews, RunSheet, RunView
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

WAIT_S = 30.0
"""Seconds of one request that waits; the server allows at most a minute."""


def _run(run_id: str) -> Mapping[str, str]:
    return {"run_id": run_id}


# ---------------------------------------------------------------------------------------------------------------- runs


def start(text: str, *, idempotency_key: str | None = None, **options: Any) -> ApiRequest[StartedRun]:
    """Start a run; ``options`` are the other fields of ``POST /v1/runs``. The same key gives the same run; without one
    the client makes one, so that a lost answer starts no second run."""
    from hermes_worker.schemas.runs import StartedRun

    body = {"input": text, **options}
    return build_post("/v1/runs", make_reader(StartedRun), body=body, key=idempotency_key)


def submit(text: str, *, idempotency_key: str | None = None, **options: Any) -> ApiRequest[str]:
    """Start a run as ``start`` does; returns its id."""
    body = {"input": text, **options}
    return build_post("/v1/runs", make_reader(str, "run_id"), body=body, key=idempotency_key)


def submit_all(submissions: Sequence[Mapping[str, Any]], *, dry_run: bool = False) -> ApiRequest[list[BatchResult]]:
    """Start up to a thousand runs in one request: the fields of ``POST /v1/runs``, and ``idempotency_key``. Returns the
    result of each, in their order; with ``dry_run`` only what is wrong with the form of each."""
    from hermes_worker.schemas.runs import BatchResults

    body: dict[str, Any] = {"runs": [dict(each) for each in submissions], **({"dry_run": True} if dry_run else {})}

    def read(answer: ApiAnswer) -> list[BatchResult]:
        return make_reader(BatchResults)(answer).data

    return build_post("/v1/batch/runs", read, body=body)


def runs(**filters: Any) -> ApiRequest[Portion[RunObject]]:
    """Runs, newest first, page after page; ``filters`` are those of ``GET /v1/runs``, lists where several are meant.
    ``limit`` is the size of a page."""
    from hermes_worker.schemas.runs import RunObject

    request = build_get("/v1/runs", read_nothing, **{"limit": PAGE, **filters})
    return build_list_request(request, RunObject, "data", find_cursor)


def run(run_id: str) -> ApiRequest[RunObject]:
    """A run, with its budget and its tool calls."""
    from hermes_worker.schemas.runs import RunObject

    return build_get("/v1/runs/{run_id}", make_reader(RunObject), _run(run_id))


def sheets(**filters: Any) -> ApiRequest[Portion[RunView]]:
    """Runs as ``runs`` lists them, with all that their rows say, as the command line needs it."""
    from hermes_worker.core.run_views import RunView

    request = build_get("/v1/sheets", read_nothing, **{"limit": PAGE, **filters})
    return build_list_request(request, RunView, "data", find_cursor)


def sheet(run_id: str) -> ApiRequest[RunSheet]:
    """Everything about one run, as the command line shows it."""
    from hermes_worker.core.run_views import RunSheet

    return build_get("/v1/sheets/{run_id}", make_reader(RunSheet), _run(run_id))


def run_news(run_id: str) -> ApiRequest[RunNews]:
    """What a follower of a run learns beside its events: why it is where it is, its children, and what was refused to
    runs below it."""
    from hermes_worker.core.run_views import RunNews

    return build_get("/v1/sheets/{run_id}/news", make_reader(RunNews), _run(run_id))


def whole_id(begins: str, kind: Literal["run", "delivery", "session", "job"] = "run") -> ApiRequest[str]:
    """The id of the one run, delivery, session or job whose id begins so, with its prefix or without; or the job that
    is called so, or the session that has this name or title."""
    return build_get("/v1/ids", make_reader(str, "id"), kind=kind, begins=begins)


def hook_calls(run_id: str, *, limit: int | None = None) -> ApiRequest[list[HookCallView]]:
    """The calls of hooks for a run and their results, the newest first."""
    from hermes_worker.core.run_views import HookCallView

    return build_get("/v1/sheets/{run_id}/hooks", make_reader(list[HookCallView], "data"), _run(run_id), limit=limit)


def trajectory(run_id: str) -> ApiRequest[TrajectoryObject]:
    """A run as a training sample (ShareGPT)."""
    from hermes_worker.schemas.runs import TrajectoryObject

    return build_get("/v1/sheets/{run_id}/trajectory", make_reader(TrajectoryObject), _run(run_id))


def result(run_id: str) -> ApiRequest[TurnResult]:
    """The result of the run, under Hermes Agent's names."""
    from hermes_worker.schemas.runs import TurnResult

    return build_get("/v1/runs/{run_id}/result", make_reader(TurnResult), _run(run_id))


def explain(run_id: str) -> ApiRequest[ExplanationObject]:
    """Why the run is where it is: ``because``, ``text`` and ``facts``."""
    from hermes_worker.schemas.runs import ExplanationObject

    return build_get("/v1/runs/{run_id}/explain", make_reader(ExplanationObject), _run(run_id))


def calls(run_id: str) -> ApiRequest[Portion[LedgerEntryObject]]:
    """The tool calls of a run, in order: their effect class, attempts, takeovers, and who holds them."""
    from hermes_worker.schemas.runs import LedgerEntryObject

    request = build_get("/v1/runs/{run_id}/calls", read_nothing, _run(run_id), limit=PAGE)
    return build_list_request(request, LedgerEntryObject, "data", make_pager("after", "call"))


def call(run_id: str, place: str) -> ApiRequest[CallDetailObject]:
    """One tool call with its arguments and its result; ``place`` is its ``call``, such as ``3.0``."""
    from hermes_worker.schemas.runs import CallDetailObject

    return build_get("/v1/runs/{run_id}/calls/{call}", make_reader(CallDetailObject), {"run_id": run_id, "call": place})


def prompt(run_id: str, reply: int | None = None) -> ApiRequest[PromptObject]:
    """The prompt for one ``reply`` of a run, counted from 1; ``None`` is the newest."""
    from hermes_worker.schemas.runs import PromptObject

    return build_get("/v1/runs/{run_id}/prompt", make_reader(PromptObject), _run(run_id), reply=reply)


def tree(run_id: str) -> ApiRequest[TreeObject]:
    """The runs of the tree that a run is in, each with the run it stands below."""
    from hermes_worker.schemas.runs import TreeObject

    return build_get("/v1/runs/{run_id}/tree", make_reader(TreeObject), _run(run_id))


def settings(prefix: str | None = None, **about: Any) -> ApiRequest[list[SettingObject]]:
    """Every setting whose key begins with ``prefix``, with the layer that set it; for operators. ``about`` names a
    ``tenant``, a ``session_id`` or a ``run_id``."""
    from hermes_worker.schemas.settings import SettingObject

    return build_get("/v1/settings", make_reader(list[SettingObject], "data"), prefix=prefix, **about)


def told_settings(**about: Any) -> ApiRequest[SettingList]:
    """All settings, with the versions of the configurations that count and what is wrong with others. ``about`` as for
    ``settings``."""
    from hermes_worker.schemas.settings import SettingList

    return build_get("/v1/settings", make_reader(SettingList), **about)


def session_settings(session_id: str) -> ApiRequest[dict[str, str]]:
    """The overrides of a session, by key."""
    place = {"session_id": session_id}
    return build_get("/v1/sessions/{session_id}/settings", make_reader(dict[str, str], "settings"), place)


def set_session_settings(session_id: str, settings: Mapping[str, str | None]) -> ApiRequest[dict[str, str]]:
    """Override settings for the next runs of a session; ``None`` removes an override."""
    place = {"session_id": session_id}
    return build_put(
        "/v1/sessions/{session_id}/settings", make_reader(dict[str, str], "settings"), place, settings=settings
    )


def stop(run_id: str) -> ApiRequest[Stopping]:
    """Ask a run, and all that it caused, to stop. Idempotent."""
    from hermes_worker.schemas.runs import Stopping

    return build_post("/v1/runs/{run_id}/stop", make_reader(Stopping), _run(run_id))


def stop_all(*, dry_run: bool = False, **filters: Any) -> ApiRequest[list[str]]:
    """Stop the open runs that match, at most ``limit`` of them. Returns which they are, or with ``dry_run`` would be.
    One request looks at the newest 200,000 open runs at most, and at fewer where texts are read. Idempotent."""
    from hermes_worker.schemas.runs import StoppedRuns

    body = {"dry_run": dry_run, **filters}

    def read(answer: ApiAnswer) -> list[str]:
        return make_reader(StoppedRuns)(answer).run_ids

    return replace(build_post("/v1/batch/stop", read, body=body), only_reads=dry_run)


def retry(run_id: str, *, idempotency_key: str | None = None) -> ApiRequest[str]:
    """Start a run with the submission of one that has ended; returns its id."""
    return build_post("/v1/runs/{run_id}/retry", make_reader(str, "run_id"), _run(run_id), key=idempotency_key)


def pause(run_id: str) -> ApiRequest[Controlled]:
    """Begin nothing new in a run and in all that it caused. Idempotent."""
    from hermes_worker.schemas.runs import Controlled

    return build_post("/v1/runs/{run_id}/pause", make_reader(Controlled), _run(run_id))


def resume(run_id: str) -> ApiRequest[Controlled]:
    """Resume a paused run. Idempotent."""
    from hermes_worker.schemas.runs import Controlled

    return build_post("/v1/runs/{run_id}/resume", make_reader(Controlled), _run(run_id))


def steer(run_id: str, text: str) -> ApiRequest[Controlled]:
    """Steer a run at work: it reads the text with its next tool result."""
    from hermes_worker.schemas.runs import Controlled

    return build_post("/v1/runs/{run_id}/steer", make_reader(Controlled), _run(run_id), body={"text": text})


def build_wait(run_id: str, *, timeout_s: float = WAIT_S) -> ApiRequest[JoinedRuns]:
    """Wait for the end of the run, for at most a minute."""
    from hermes_worker.schemas.runs import JoinedRuns

    def read(answer: ApiAnswer) -> JoinedRuns:
        end = answer.parse_document()
        return require_document(JoinedRuns, {"done": bool(isinstance(end, dict) and end.get("ended")), "runs": [end]})

    return build_get("/v1/runs/{run_id}/wait", read, _run(run_id), timeout_s=timeout_s)


def build_join(
    run_ids: Sequence[str], *, mode: Literal["all", "any"] = "all", timeout_s: float = WAIT_S
) -> ApiRequest[JoinedRuns]:
    """Wait until all of up to a thousand runs have ended, or ``any`` of them, for at most a minute."""
    from hermes_worker.schemas.runs import JoinedRuns

    body = {"run_ids": list(run_ids), "mode": mode, "timeout_s": timeout_s}
    return replace(build_post("/v1/batch/wait", make_reader(JoinedRuns), body=body), only_reads=True)


def events(run_id: str, after: str) -> ApiRequest[None]:
    """The stream of a run's events behind the one with the id ``after``."""
    headers = {"Last-Event-ID": after, "Accept": "text/event-stream"}
    return replace(build_get("/v1/runs/{run_id}/events", read_nothing, _run(run_id)), headers=headers)


def tree_events(run_id: str, after: str) -> ApiRequest[None]:
    """The stream of the events of all runs of a tree, behind the one with the id ``after``."""
    headers = {"Last-Event-ID": after, "Accept": "text/event-stream"}
    return replace(build_get("/v1/runs/{run_id}/tree/events", read_nothing, _run(run_id)), headers=headers)


def changes(after: str, *, all_tenants: bool = False) -> ApiRequest[None]:
    """The stream of lists that changed since the event with the id ``after``; an empty ``after`` begins with all
    lists."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
    return replace(build_get("/v1/changes", read_nothing, all_tenants=all_tenants or None), headers=headers)


# --------------------------------------------------------------------------------------------------- questions of runs


def approvals(*, kind: str | None = None, limit: int = 500, all_tenants: bool = False) -> ApiRequest[list[WaitObject]]:
    """The inbox: open approvals (``kind`` ``approval``) and questions (``input``), oldest first; ``all_tenants`` is for
    operators."""
    from hermes_worker.schemas.approvals import WaitObject

    reads = make_reader(list[WaitObject], "data")
    return build_get("/v1/approvals", reads, kind=kind, limit=limit, all_tenants=all_tenants or None)


def decisions(**filters: Any) -> ApiRequest[Portion[DecisionObject]]:
    """Closed approvals and questions, the newest first, with who answered."""
    from hermes_worker.schemas.approvals import DecisionObject

    request = build_get("/v1/approvals/history", read_nothing, **{"limit": PAGE, **filters})
    return build_list_request(request, DecisionObject, "data", make_pager("before", "id"))


def approve(
    run_id: str,
    choice: str,
    *,
    wait_id: int,
    reason: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> ApiRequest[AnsweredQuestion]:
    """Allow (``once``, ``session``, ``always``) or ``deny`` what the run asked for: the question ``wait_id`` that was
    seen. ``reason`` is for the model. Allowed ``once``, the call runs with ``arguments`` instead of its own where they
    are given; that takes a key that may begin runs."""
    from hermes_worker.schemas.approvals import AnsweredQuestion

    body = {"choice": choice, "wait_id": wait_id, "reason": reason, "arguments": arguments}
    return build_post("/v1/runs/{run_id}/approval", make_reader(AnsweredQuestion), _run(run_id), body=body)


def answer(run_id: str, text: str, *, wait_id: int) -> ApiRequest[AnsweredQuestion]:
    """Answer the question ``wait_id`` of the run."""
    from hermes_worker.schemas.approvals import AnsweredQuestion

    body = {"text": text, "wait_id": wait_id}
    return build_post("/v1/runs/{run_id}/input", make_reader(AnsweredQuestion), _run(run_id), body=body)


# ---------------------------------------------------------------------------------------------------------------- jobs


def _name_job(job_id: str) -> Mapping[str, str]:
    return {"job_id": job_id}


def jobs(*, include_disabled: bool = False) -> ApiRequest[list[JobInFull]]:
    """Every job that is scheduled, or every job."""
    from hermes_worker.schemas.jobs import JobInFull

    return build_get("/api/jobs", make_reader(list[JobInFull], "jobs"), include_disabled=include_disabled)


def job(job_id: str) -> ApiRequest[JobInFull]:
    """A job."""
    from hermes_worker.schemas.jobs import JobInFull

    return build_get("/api/jobs/{job_id}", make_reader(JobInFull, "job"), _name_job(job_id))


def create_job(
    name: str, schedule: str, *, idempotency_key: str | None = None, **fields: Any
) -> ApiRequest[NewJobObject]:
    """Keep a job; ``fields`` are the other fields of ``POST /api/jobs``."""
    from hermes_worker.schemas.jobs import NewJobObject

    body = {"name": name, "schedule": schedule, **fields}
    return build_post("/api/jobs", make_reader(NewJobObject, "job"), body=body, key=idempotency_key)


def change_job(job_id: str, **fields: Any) -> ApiRequest[JobObject]:
    """Change the named ``fields``. Not sent again when its answer is lost."""
    from hermes_worker.schemas.jobs import JobObject

    read = make_reader(JobObject, "job")
    return ApiRequest(method="PATCH", template="/api/jobs/{job_id}", read=read, names=_name_job(job_id), body=fields)


def remove_job(job_id: str) -> ApiRequest[None]:
    """Delete a job; its history is kept."""
    return ApiRequest(method="DELETE", template="/api/jobs/{job_id}", read=read_nothing, names=_name_job(job_id))


def pause_job(job_id: str, *, reason: str | None = None) -> ApiRequest[JobObject]:
    """Pause a job: nothing comes due until it is resumed. ``reason`` is for people who look at it."""
    from hermes_worker.schemas.jobs import JobObject

    request = build_post("/api/jobs/{job_id}/pause", make_reader(JobObject, "job"), _name_job(job_id))
    return replace(request, params={"reason": reason})


def resume_job(job_id: str) -> ApiRequest[JobObject]:
    """Resume a job with its next slot."""
    from hermes_worker.schemas.jobs import JobObject

    return build_post("/api/jobs/{job_id}/resume", make_reader(JobObject, "job"), _name_job(job_id))


def run_job(job_id: str) -> ApiRequest[JobObject]:
    """Make a job due now."""
    from hermes_worker.schemas.jobs import JobObject

    return build_post("/api/jobs/{job_id}/run", make_reader(JobObject, "job"), _name_job(job_id))


def job_history(job_id: str, *, limit: int = 50, before: float | None = None) -> ApiRequest[list[FiringObject]]:
    """The settled slots of a job, newest first; ``before`` is the slot that ended the page before."""
    from hermes_worker.schemas.jobs import FiringObject

    read = make_reader(list[FiringObject], "firings")
    return build_get("/api/jobs/{job_id}/history", read, _name_job(job_id), limit=limit, before=before)


def coming_slots(*, days: float = 7.0, limit: int = 200) -> ApiRequest[list[SlotObject]]:
    """The slots of all scheduled jobs in the next ``days``, the next one first."""
    from hermes_worker.schemas.jobs import SlotObject

    return build_get("/v1/slots", make_reader(list[SlotObject], "data"), days=days, limit=limit)


def job_sheets() -> ApiRequest[list[JobSheet]]:
    """All jobs with all that their rows say, as the command line shows them."""
    from hermes_worker.schemas.jobs import JobSheet

    return build_get("/v1/job-sheets", make_reader(list[JobSheet], "data"))


def job_sheet(job_id: str, *, slots: int = 0) -> ApiRequest[FullJobSheet]:
    """A job as ``job_sheets`` lists it, with as many of its next slots as ``slots`` says, at most 100."""
    from hermes_worker.schemas.jobs import FullJobSheet

    return build_get("/v1/job-sheets/{job_id}", make_reader(FullJobSheet), _name_job(job_id), slots=slots)


# ------------------------------------------------------------------------------------------------------------ sessions


def _name_session(session_id: str) -> Mapping[str, str]:
    return {"session_id": session_id}


def sessions(**filters: Any) -> ApiRequest[Portion[SessionObject]]:
    """Sessions, those with the newest activity first, page after page; ``filters``: ``source``, ``include_children``,
    ``before``, ``title``, ``archived``."""
    from hermes_worker.schemas.sessions import SessionObject

    request = build_get("/api/sessions", read_nothing, **{"limit": 50, **filters})
    return build_list_request(request, SessionObject, "data", find_cursor)


def session(session_id: str) -> ApiRequest[SessionObject]:
    """A session, with the totals of its runs."""
    from hermes_worker.schemas.sessions import SessionObject

    return build_get("/api/sessions/{session_id}", make_reader(SessionObject, "session"), _name_session(session_id))


def search_sessions(query: str, **filters: Any) -> ApiRequest[FoundMessages]:
    """Messages that match, in ``data``; ``is_complete`` says whether none was left out. ``filters``:
    ``limit``, ``sort`` (``hits``, ``newest``, ``oldest``), ``role``, ``session_id``, ``include_children``."""
    from hermes_worker.schemas.search import FoundMessages

    return build_get("/api/sessions/search", make_reader(FoundMessages), q=query, **filters)


def session_lineage(session_id: str) -> ApiRequest[list[SessionObject]]:
    """A session, what it was forked from, and every fork of those, oldest first."""
    from hermes_worker.schemas.sessions import SessionObject

    template = "/api/sessions/{session_id}/lineage"
    return build_get(template, make_reader(list[SessionObject], "data"), _name_session(session_id))


def create_session(*, idempotency_key: str | None = None, **fields: Any) -> ApiRequest[SessionObject]:
    """Open a session without a run: ``id``, ``model``, ``system_prompt``, ``title``."""
    from hermes_worker.schemas.sessions import SessionObject

    return build_post("/api/sessions", make_reader(SessionObject, "session"), body=fields, key=idempotency_key)


def change_session(session_id: str, **fields: Any) -> ApiRequest[SessionObject]:
    """Change its ``title``, mark it as over by ``end_reason``, or archive it (``archived``). Not sent again when its
    answer is lost."""
    from hermes_worker.schemas.sessions import SessionObject

    return ApiRequest(
        method="PATCH",
        template="/api/sessions/{session_id}",
        read=make_reader(SessionObject, "session"),
        names=_name_session(session_id),
        body=fields,
    )


def remove_session(session_id: str) -> ApiRequest[None]:
    """Delete a session with its runs and what they delegated."""
    return ApiRequest(
        method="DELETE", template="/api/sessions/{session_id}", read=read_nothing, names=_name_session(session_id)
    )


def messages(session_id: str, *, after: int = 0) -> ApiRequest[Portion[MessageObject]]:
    """The transcript, oldest first, page after page."""
    from hermes_worker.schemas.sessions import MessageObject

    request = build_get("/api/sessions/{session_id}/messages", read_nothing, _name_session(session_id), after=after)
    return build_list_request(request, MessageObject, "data", make_pager("after", "id"))


def fork_session(session_id: str, *, idempotency_key: str | None = None, **fields: Any) -> ApiRequest[SessionObject]:
    """Open a session that begins with a copy of this one's transcript: ``id``, ``title``, ``message_id``."""
    from hermes_worker.schemas.sessions import SessionObject

    read = make_reader(SessionObject, "session")
    return build_post(
        "/api/sessions/{session_id}/fork", read, _name_session(session_id), body=fields, key=idempotency_key
    )


def import_session(session: Mapping[str, Any], *, idempotency_key: str | None = None) -> ApiRequest[SessionObject]:
    """Make a session of a conversation from elsewhere, a line of an export; refused (409) where there is one of its
    name."""
    from hermes_worker.schemas.sessions import SessionObject

    read = make_reader(SessionObject, "session")
    return build_post("/api/sessions/import", read, body={"session": session}, key=idempotency_key)


def compress_session(session_id: str, *, focus: str = "", idempotency_key: str | None = None) -> ApiRequest[str]:
    """Summarise the older part of a session now, above all what concerns ``focus``. Returns the id of the run that does
    it; its output is the summary."""
    body = {"focus": focus} if focus else {}
    read = make_reader(str, "run_id")
    return build_post(
        "/api/sessions/{session_id}/compress", read, _name_session(session_id), body=body, key=idempotency_key
    )


# ---------------------------------------------------------------------------------------------------- the installation


def page_login() -> ApiRequest[PageLoginObject]:
    """The caller, its tenant, and what the key allows."""
    from hermes_worker.schemas.page import PageLoginObject

    return build_get("/v1/page/login", make_reader(PageLoginObject))


def open_page_login(path: str = "/") -> ApiRequest[PageLoginObject]:
    """Log a browser in: the answer's cookie stands for the key of this client. ``path`` is the page's."""
    from hermes_worker.schemas.page import PageLoginObject

    body = {"path": path}
    return ApiRequest(method="PUT", template="/v1/page/login", read=make_reader(PageLoginObject), body=body)


def close_page_login(path: str = "/") -> ApiRequest[None]:
    """End the login whose cookie is sent; with a key alone there is none. ``path`` is the page's. Idempotent."""
    return ApiRequest(method="DELETE", template="/v1/page/login", read=read_nothing, params={"path": path})


def saved_filters() -> ApiRequest[list[SavedFilterObject]]:
    """The filters that the holder of the key saved on the page, by name."""
    from hermes_worker.schemas.page import SavedFilterObject

    return build_get("/v1/page/filters", make_reader(list[SavedFilterObject], "data"))


def save_filter(name: str, query: str) -> ApiRequest[list[SavedFilterObject]]:
    """Save a filter, such as ``status=failed``, in place of the one that has that name. Returns all filters."""
    from hermes_worker.schemas.page import SavedFilterObject

    body = {"name": name, "query": query}
    read = make_reader(list[SavedFilterObject], "data")
    return ApiRequest(method="PUT", template="/v1/page/filters", read=read, body=body)


def remove_saved_filter(name: str) -> ApiRequest[None]:
    """Remove a filter of the holder of the key."""
    return ApiRequest(method="DELETE", template="/v1/page/filters", read=read_nothing, params={"name": name})


def gateway_accounts() -> ApiRequest[list[GatewayAccountObject]]:
    """The accounts to which people write: which gateway listens, who was let in and who asks to be."""
    from hermes_worker.schemas.gateway import GatewayAccountObject

    return build_get("/v1/gateway/accounts", make_reader(list[GatewayAccountObject], "data"))


def pair_person(account: str, code: str, *, role: str = "owner") -> ApiRequest[str]:
    """Let in the person who was given ``code`` in a chat of ``account``, such as ``telegram:default``. Returns their
    id."""
    body = {"account": account, "code": code, "role": role}
    return build_post("/v1/gateway/pairings", make_reader(str, "person"), body=body)


def remove_chat_person(account: str, person: str) -> ApiRequest[None]:
    """Remove a person who was let in, or refuse one who asks."""
    params = {"account": account, "person": person}
    return ApiRequest(method="DELETE", template="/v1/gateway/people", read=read_nothing, params=params)


def remove_gateway_codes(account: str) -> ApiRequest[int]:
    """Remove all unused codes of ``account``. Returns how many."""
    params = {"account": account}
    return ApiRequest(method="DELETE", template="/v1/gateway/codes", read=make_reader(int, "removed"), params=params)


def export(whom: Mapping[str, Any], *, tenant: str | None = None) -> ApiRequest[None]:
    """Everything of a subject, line by line: ``whom`` has the fields ``sessions``, ``named``, ``principals``,
    ``holders``, ``targets`` and ``everybody``. Operators may name another ``tenant``."""
    return replace(build_post("/v1/exports", read_nothing, body=dict(whom)), params={"tenant": tenant}, only_reads=True)


def backlog() -> ApiRequest[BacklogObject]:
    """The steps that wait and the steps at work, by queue."""
    from hermes_worker.schemas.fleet import BacklogObject

    return build_get("/v1/backlog", make_reader(BacklogObject))


def workers() -> ApiRequest[list[WorkerObject]]:
    """The worker processes that are alive, and what each of them holds."""
    from hermes_worker.schemas.fleet import WorkerObject

    return build_get("/v1/workers", make_reader(list[WorkerObject], "data"))


def drain_worker(worker_id: str) -> ApiRequest[None]:
    """Drain a worker; for operators. Idempotent."""
    return build_post("/v1/workers/{worker_id}/drain", read_nothing, {"worker_id": worker_id})


def provider_states() -> ApiRequest[list[KeyStateObject]]:
    """The keys of providers that are without money or out of order."""
    from hermes_worker.schemas.fleet import KeyStateObject

    return build_get("/v1/providers/states", make_reader(list[KeyStateObject], "data"))


def open_provider_key(credential: str) -> ApiRequest[KeyStateObject]:
    """Let runs use a key of a provider again at once; for operators. Idempotent."""
    from hermes_worker.schemas.fleet import KeyStateObject

    names = {"credential": credential}
    return build_post("/v1/providers/states/{credential}/open", make_reader(KeyStateObject), names)


def capabilities() -> ApiRequest[CapabilitiesObject]:
    """The capabilities of the server."""
    from hermes_worker.schemas.capabilities import CapabilitiesObject

    return build_get("/v1/capabilities", make_reader(CapabilitiesObject))


def toolsets() -> ApiRequest[list[ToolsetObject]]:
    """The toolsets that a run can name."""
    from hermes_worker.schemas.capabilities import ToolsetObject

    return build_get("/v1/toolsets", make_reader(list[ToolsetObject], "data"))


def skills() -> ApiRequest[list[SkillObject]]:
    """The skills that a run can be given."""
    from hermes_worker.schemas.capabilities import SkillObject

    return build_get("/v1/skills", make_reader(list[SkillObject], "data"))


def health() -> ApiRequest[Health]:
    """Whether the server answers, and its version. Needs no key."""
    from hermes_worker.schemas.capabilities import Health

    return build_get("/health", make_reader(Health))
