"""Explain why a run is where it is, in one sentence and with the facts behind it. Pure.

``core.status_reason`` decides what a run does or waits for. This module adds the facts around that: what goes before
it, which worker holds it and until when, who may let it go on. ``explain_run`` is total: there is an answer for every
state of the core (a test goes through them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from hermes_worker.core.limits import LimitName, compute_period_end
from hermes_worker.core.run import CallStatus, ExitReason, RunStatus, WaitKind
from hermes_worker.core.status_reason import (
    MODEL_QUEUE,
    TOOLS_QUEUE,
    StandingFacts,
    StandingReason,
    StatusReason,
    decide_status_reason,
)

AHEAD_COUNTED_MAX = 10_000
"""How many steps ahead are counted; for more, the answer says "at least" so many."""


class ExplainedReason(StrEnum):
    """Why a run is where it is."""

    ENDED = "ended"
    """It has ended: ``exit_reason``, ``failure``, ``deliveries_open``, ``hooks_owed``."""
    QUARANTINED = "quarantined"
    """It has ended, because one of its steps took down its worker again and again."""
    PAUSED = "paused"
    """Somebody paused it; ``worker`` still holds a step."""
    STOPPING = "stopping"
    """It is being stopped; ``worker`` still holds a step."""
    ORPHANED = "orphaned"
    """The run that caused it has ended; the sweeper stops it."""
    OVERDUE = "overdue"
    """Its deadline has passed (``deadline_at``); the sweeper ends it."""
    NOT_BEFORE = "not_before"
    """It is to begin later (``not_before``)."""
    SESSION_AT_WORK = "session_at_work"
    """It waits for another run of its session (``active_run``)."""
    CHILDREN_AT_WORK = "children_at_work"
    """It is a child, and as many children of its parent work as may: ``parent_run``, ``child_number``, ``siblings``."""
    FLEET_IS_SHARED = "fleet_is_shared"
    """It waits for the next place of its ``tenant`` in a fleet that several tenants share, or within its limits."""
    ABOUT_TO_BEGIN = "about_to_begin"
    """It begins with the next sweep."""
    NO_WORKER = "no_worker"
    """No worker consumes the ``queue`` of its step."""
    QUEUED = "queued"
    """Its step waits in a ``queue``, behind so many others (``ahead``)."""
    SUSPECT = "suspect"
    """Its step lost its worker, and waits for a lane, in which it is tried apart (``attempt``)."""
    RETRY_LATER = "retry_later"
    """Its step was lost several times, and is tried again at ``retry_at``."""
    WORKER_LOST = "worker_lost"
    """The ``worker`` that holds its step is silent; the sweeper takes the step away after ``lease_until``."""
    PREPARING = "preparing"
    """A ``worker`` reads the workspace of its new session, before the first model call."""
    ASKING_MODEL = "asking_model"
    """A ``worker`` asks its model: ``held_since``, ``lease_until``."""
    CALLING_TOOLS = "calling_tools"
    """A ``worker`` runs ``tools``: ``held_since``, ``lease_until``."""
    PROVIDER = "provider"
    """The provider, or the limit of its key, makes it wait until ``resume_at``."""
    LIMIT = "limit"
    """Its tenant, or its key, has a limit of model calls in flight or of spending, which is reached."""
    APPROVAL = "approval"
    """A person has to allow a call: ``wait_id``, ``tool``, and ``who`` may answer."""
    QUESTION = "question"
    """A person has to answer a question: ``wait_id``, ``tool``, and ``who`` may answer."""
    CLIENT_TOOL = "client_tool"
    """Its client has to bring the results of its own ``tools``: ``wait_id``, ``who``."""
    CHILDREN = "children"
    """It waits for the runs that it delegated to: ``children_ended`` of ``children_total``."""
    REMOTE_TASK = "remote_task"
    """It waits for tasks of an MCP server, which are polled: ``tool``, ``server``, ``tasks``, ``looks_at``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderFacts:
    """The worker that holds a step of the run."""

    worker: str
    since: float | None
    lease_until: float
    is_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFacts:
    """A question of the run to a person."""

    wait_id: int
    kind: WaitKind
    tool: str
    opened_at: float
    expires_at: float | None
    is_clients: bool = False
    """Its client brings the answer: the result of its own tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A task of a server for which one of its calls waits."""

    tool: str
    source: str
    """The tool source that polls it."""
    begun_at: float
    looks_at: float | None
    """When it is polled next."""
    failures: int = 0
    """Polls in a row without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts about a run and around it in one snapshot. Times are epoch seconds by the database's clock."""

    run_id: str
    standing: StandingFacts
    tenant: str
    exit_reason: str | None = None
    failure: str | None = None
    deadline_at: float | None = None
    is_held: bool = False
    """It could begin, and is not given a place in a fleet that tenants share."""
    waits_for_permit: bool = False
    """Its next model call waits for a permit, because of a limit of its tenant or key."""
    held_behind: int | None = None
    """Runs of its tenant that get a place before it."""
    places: int | None = None
    """Runs that may be at work in the whole fleet."""
    tenant_at_work: int | None = None
    limit: str | None = None
    """The limit of its tenant, or of its key, that is reached."""
    limited_key: str | None = None
    """The key whose limit that is; ``None`` for its tenant's."""
    child_number: int | None = None
    """The number of its task in its parent's call, from 1; ``None`` for a run that is no child."""
    siblings: int = 0
    """How many tasks that call has."""
    parent_ended_at: float | None = None
    ahead: int | None = None
    """Steps in its queue that became due before its own; ``None`` where its step is not in a queue."""
    holder: HolderFacts | None = None
    questions: Sequence[QuestionFacts] = ()
    tasks: Sequence[TaskFacts] = ()
    exhausted: str | None = None
    """The dimension of its budget that is used up."""
    hooks_owed: int = 0
    """Calls of observers that are pending."""
    deliveries_open: int = 0


Fact = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a run is where it is."""

    because: ExplainedReason
    text: str
    """One sentence for people."""
    since: float | None = None
    until: float | None = None
    """When it goes on by itself, where that is known."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """The facts behind the sentence, and more; never a text of the agent or of its tools."""


def explain_run(facts: RunFacts) -> Explanation:
    """Explain a run. Total and pure."""
    base = decide_status_reason(facts.standing)
    found = _explain_overdue(facts) or _explain_by_reason(facts, base)
    said = {**_list_facts(facts), **found.facts}
    text = found.text
    if facts.exhausted is not None and not facts.standing.status.is_terminal:
        text += f"; the budget of {facts.exhausted.replace('_', ' ')} is used up, so it only sums up"
    return Explanation(
        because=found.because,
        text=text,
        since=found.since if found.since is not None else base.since,
        until=found.until if found.until is not None else base.until,
        facts={name: value for name, value in said.items() if value is not None},
    )


def _list_facts(facts: RunFacts) -> dict[str, Fact]:
    """Everything that is known, whether or not it is the reason."""
    seen = facts.standing
    return {
        "tenant": facts.tenant,
        "deadline_at": facts.deadline_at,
        "attempt": seen.attempt if seen.attempt > 1 else None,
        "budget_dimension": facts.exhausted,
        "parent_run": seen.parent_run,
        "child_number": facts.child_number,
        "siblings": facts.siblings or None,
        "hooks_owed": facts.hooks_owed or None,
        "deliveries_open": facts.deliveries_open or None,
    }


def _explain_overdue(facts: RunFacts) -> Explanation | None:
    """Explain the sweeper's next action, independent of what the run is doing; ``None`` for none."""
    seen = facts.standing
    if seen.status.is_terminal or seen.status is RunStatus.STOPPING:
        return None
    if facts.deadline_at is not None and facts.deadline_at <= seen.now:
        return Explanation(
            because=ExplainedReason.OVERDUE,
            text="its deadline has passed; the sweeper ends it",
            since=facts.deadline_at,
        )
    if facts.parent_ended_at is not None:
        text = f"the run that caused it, {seen.parent_run}, has ended; the sweeper stops it"
        return Explanation(because=ExplainedReason.ORPHANED, text=text, since=facts.parent_ended_at)
    return None


def _explain_by_reason(facts: RunFacts, base: StatusReason) -> Explanation:
    match base.reason:
        case StandingReason.ENDED:
            return _explain_end(facts)
        case StandingReason.PAUSED:
            return Explanation(because=ExplainedReason.PAUSED, text="it is paused; 'runs resume' lets it go on")
        case StandingReason.STOPPING:
            return _explain_stopping(facts)
        case StandingReason.WAITING_FOR_PROVIDER:
            return _explain_provider(facts, base)
        case StandingReason.WAITING_FOR_PERSON:
            return _explain_person(facts)
        case StandingReason.WAITING_FOR_CHILDREN:
            return _explain_children(facts, base)
        case StandingReason.PREPARING | StandingReason.ASKING_MODEL | StandingReason.CALLING_TOOLS:
            return _explain_held(facts, base)
        case StandingReason.NO_WORKER:
            facts_of_queue: dict[str, Fact] = {"queue": find_queue(facts.standing), "ahead": facts.ahead}
            return Explanation(because=ExplainedReason.NO_WORKER, text=base.text, facts=facts_of_queue)
        case StandingReason.PUT_OFF | StandingReason.BEHIND_SESSION | StandingReason.BEHIND_SIBLINGS:
            return _explain_not_begun(facts, base)
        case StandingReason.DUE:
            return (
                _explain_not_begun(facts, base) if find_queue(facts.standing) is None else _explain_queued(facts, base)
            )


def _explain_end(facts: RunFacts) -> Explanation:
    reason = facts.exit_reason or facts.standing.status.value
    said: dict[str, Fact] = {"exit_reason": facts.exit_reason, "failure": facts.failure}
    if facts.exit_reason == ExitReason.STEP_QUARANTINED:
        text = "it was quarantined: one of its steps took down a worker that did nothing else, as often as is allowed"
        return Explanation(because=ExplainedReason.QUARANTINED, text=text, facts=said)
    text = f"it has ended: {facts.standing.status.value} ({reason})"
    if facts.deliveries_open:
        text += f"; {_format_count(facts.deliveries_open, 'delivery', 'deliveries')} of its answer not settled"
    return Explanation(because=ExplainedReason.ENDED, text=text, facts=said)


def _explain_stopping(facts: RunFacts) -> Explanation:
    text = "a stop was asked for"
    held = facts.holder
    text += f"; it ends when {held.worker} lets go of its step" if held else "; it ends when its last step is given up"
    return Explanation(because=ExplainedReason.STOPPING, text=text, facts=_list_holder_facts(held))


def _explain_provider(facts: RunFacts, base: StatusReason) -> Explanation:
    if facts.waits_for_permit:
        text = f"its next model call waits: {facts.standing.waits_because}"
        return Explanation(because=ExplainedReason.LIMIT, text=text, until=base.until, facts={"resume_at": base.until})
    until = f", until {_format_clock(base.until)}" if base.until is not None else ""
    text = f"it waits for the provider{until}: {base.text}"
    return Explanation(because=ExplainedReason.PROVIDER, text=text, until=base.until, facts={"resume_at": base.until})


def _explain_person(facts: RunFacts) -> Explanation:
    is_approval = facts.standing.status is RunStatus.WAITING_FOR_APPROVAL
    wanted = WaitKind.APPROVAL if is_approval else WaitKind.INPUT
    asked = [question for question in facts.questions if question.kind is wanted]
    if asked and all(question.is_clients for question in asked):
        return _explain_client(asked)
    verb = "runs approve" if is_approval else "runs answer"
    who = f"whoever has a key of the tenant {facts.tenant!r} with the scope 'approve', or '{verb}' on the command line"
    what = "somebody has to allow a command" if is_approval else "somebody has to answer a question"
    because = ExplainedReason.APPROVAL if is_approval else ExplainedReason.QUESTION
    if not asked:
        return Explanation(because=because, text=f"{what}: {who}", facts={"who": who})
    first = asked[0]
    more = f" and {len(asked) - 1} more" if len(asked) > 1 else ""
    until = f", until {_format_clock(first.expires_at)}" if first.expires_at is not None else ""
    return Explanation(
        because=because,
        text=f"{what} (of {first.tool}{more}){until}: {who}",
        since=first.opened_at,
        until=first.expires_at,
        facts={"wait_id": first.wait_id, "tool": first.tool, "questions": len(asked), "who": who},
    )


def _explain_client(asked: Sequence[QuestionFacts]) -> Explanation:
    first = asked[0]
    tools = ", ".join(sorted({question.tool for question in asked}))
    until = f" until {_format_clock(first.expires_at)}, when it is given up" if first.expires_at is not None else ""
    text = f"the client that asked is to bring the results of its own tools ({tools}) with its next request{until}"
    return Explanation(
        because=ExplainedReason.CLIENT_TOOL,
        text=text,
        since=first.opened_at,
        until=first.expires_at,
        facts={"wait_id": first.wait_id, "tools": tools, "questions": len(asked), "who": "the client that asked"},
    )


def _explain_children(facts: RunFacts, base: StatusReason) -> Explanation:
    seen = facts.standing
    said: dict[str, Fact] = {}
    if seen.children_total or not facts.tasks:
        said = {"children_total": seen.children_total, "children_ended": seen.children_ended}
    if not facts.tasks:
        return Explanation(because=ExplainedReason.CHILDREN, text=base.text, facts=said)
    first = min(facts.tasks, key=lambda task: task.looks_at or 0.0)
    said |= {"tool": first.tool, "server": first.source, "tasks": len(facts.tasks), "looks_at": first.looks_at}
    said |= {"looks_failed": first.failures or None}
    if seen.children_total:
        return Explanation(because=ExplainedReason.CHILDREN, text=base.text, facts=said)
    return Explanation(
        because=ExplainedReason.REMOTE_TASK,
        text=f"{base.text} ({first.tool} of {first.source}){_format_next_poll(first)}",
        since=min(task.begun_at for task in facts.tasks),
        until=None,  # only the server knows when it ends
        facts=said,
    )


def _format_next_poll(task: TaskFacts) -> str:
    again = f"; it is looked at again at {_format_clock(task.looks_at)}" if task.looks_at is not None else ""
    if not task.failures:
        return again
    return f"{again}; {'the last look' if task.failures == 1 else f'the last {task.failures} looks'} brought nothing"


def _explain_held(facts: RunFacts, base: StatusReason) -> Explanation:
    held = facts.holder
    if held is not None and not held.is_alive:
        text = f"{held.worker}, which holds its step, has fallen silent; the sweeper takes the step away"
        return Explanation(
            because=ExplainedReason.WORKER_LOST, text=text, since=held.lease_until, facts=_list_holder_facts(held)
        )
    because = ExplainedReason(base.reason.value)
    tools = [call.name for call in facts.standing.calls if call.status is CallStatus.RUNNING]
    said = _list_holder_facts(held) | {"tools": ", ".join(tools[:10]) or None}
    return Explanation(because=because, text=base.text, facts=said)


def _list_holder_facts(held: HolderFacts | None) -> dict[str, Fact]:
    if held is None:
        return {}
    return {"worker": held.worker, "held_since": held.since, "lease_until": held.lease_until}


def _explain_not_begun(facts: RunFacts, base: StatusReason) -> Explanation:
    seen = facts.standing
    if base.reason is StandingReason.PUT_OFF:
        text = f"it is to begin later, not before {_format_clock(seen.not_before)}"
        return Explanation(because=ExplainedReason.NOT_BEFORE, text=text, facts={"not_before": seen.not_before})
    if base.reason is StandingReason.BEHIND_SESSION:
        return Explanation(
            because=ExplainedReason.SESSION_AT_WORK, text=base.text, facts={"active_run": seen.active_run}
        )
    if base.reason is StandingReason.BEHIND_SIBLINGS:
        which = f"it is child {facts.child_number} of {facts.siblings}, and " if facts.child_number else ""
        return Explanation(because=ExplainedReason.CHILDREN_AT_WORK, text=f"{which}{base.text}")
    if facts.is_held:
        return _explain_no_place(facts)
    return Explanation(because=ExplainedReason.ABOUT_TO_BEGIN, text="the sweeper is about to begin it")


def _explain_no_place(facts: RunFacts) -> Explanation:
    text = f"it waits for the next place of the tenant {facts.tenant!r}: "
    whose = f"the limit of the key {facts.limited_key}" if facts.limited_key else "its limit"
    until = None
    if facts.limit is None:
        text += "tenants share the fleet"
    elif (limit := LimitName(facts.limit)).is_spending:
        # A budget can be short without being used up: a run of the usual size must fit into the rest.
        text += f"{whose} {facts.limit!r} leaves no room for a run like its others until the period ends"
        until = compute_period_end(limit, facts.standing.now)
    else:
        text += f"{whose} {facts.limit!r} is reached"
    if facts.held_behind is not None:
        counted = facts.held_behind
        text += f"; {'at least ' if counted >= AHEAD_COUNTED_MAX else ''}{counted} of its runs go before"
    said: dict[str, Fact] = {
        "ahead": facts.held_behind,
        "places": facts.places,
        "tenant_at_work": facts.tenant_at_work,
        "limit": facts.limit,
        "limited_key": facts.limited_key,
    }
    return Explanation(because=ExplainedReason.FLEET_IS_SHARED, text=text, until=until, facts=said)


def _explain_queued(facts: RunFacts, base: StatusReason) -> Explanation:
    queue = find_queue(facts.standing)
    said: dict[str, Fact] = {"queue": queue, "ahead": facts.ahead}
    if base.until is not None:
        text = f"its step was lost several times and is tried again at {_format_clock(base.until)}"
        return Explanation(because=ExplainedReason.RETRY_LATER, text=text, facts=said | {"retry_at": base.until})
    if is_step_suspect(facts.standing):
        return Explanation(because=ExplainedReason.SUSPECT, text=base.text, facts=said)
    text = base.text
    if facts.ahead is not None:
        count = f"at least {facts.ahead}" if facts.ahead >= AHEAD_COUNTED_MAX else f"{facts.ahead}"
        text += f"; {count} before it"
    return Explanation(because=ExplainedReason.QUEUED, text=text, facts=said)


def find_queue(facts: StandingFacts) -> str | None:
    """The queue in which the next due step waits; ``None`` when none is due."""
    pending = [call for call in facts.calls if call.status is CallStatus.PENDING]
    if pending:
        return TOOLS_QUEUE if any(not call.asks for call in pending) else MODEL_QUEUE
    if facts.due_since is None:
        return None
    return TOOLS_QUEUE if facts.wants_preparing else MODEL_QUEUE


def is_step_suspect(facts: StandingFacts) -> bool:
    """Whether the next due step is to be tried apart."""
    pending = [call for call in facts.calls if call.status is CallStatus.PENDING]
    tools = [call for call in pending if not call.asks] or pending
    return all(call.is_suspect for call in tools) if tools else facts.is_suspect


def _format_count(count: int, one: str, many: str) -> str:
    return f"1 {one} is" if count == 1 else f"{count} {many} are"


def _format_clock(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
