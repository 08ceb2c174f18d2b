"""Log lines and counters of a process.

``log.info("tool_call.settled", tool=..., duration_s=...)``: a dotted past-tense event from the catalogue, then facts.
Facts of a whole unit of work are bound once, on entry::

    with bound(run_id=run_id, iteration=4, attempt=1):
        ...

Lines go to stderr, as text for people or as one JSON object per line. Every string in them is redacted, whichever code
wrote it: lines of other libraries take the same way. Prompts, tool output and message bodies are only logged at DEBUG.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, cached_property
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from hermes_worker.core.errors import UnavailableError

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

    from hermes_worker.settings import LogSettings, Secret

__all__ = [
    "COUNTED",
    "DURATIONS_S",
    "EVENTS",
    "TIMED",
    "Durations",
    "Log",
    "OutageLog",
    "bind_facts",
    "broker_outage",
    "configure_logging",
    "copy_counters",
    "copy_durations",
    "count",
    "database_outage",
    "find_fact",
    "import_structlog",
    "log",
    "poll_forever",
    "record_duration",
    "reset_counters",
    "send_lines",
]

EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "run.submitted": "A run was accepted and stored.",
        "signed_task.refused": "A task that was to submit a run was not signed as it must be, and nothing was done.",
        "run.finished": "A run reached a terminal status.",
        "run.delegated": "A run handed a task to a child run.",
        "run.stop_requested": "Somebody asked for a run to be cancelled or interrupted.",
        "permits.put_off": "The database was away when a held model call was to go on; the sweeper sees to it.",
        "places.given": "Held runs began, as `usual` ones or as those of tenants that may have `less` or `more`.",
        "places.put_off": "The database was away when a held run was to begin; the sweeper begins it.",
        "run.broken": "A stored run could not be read; it was ended as failed.",
        "context.left_out": "A context source failed, hung or was busy; the session began without its text.",
        "tool_call.host_lost": "The host of a workspace went away in the middle of a call.",
        "inner_call.asked": "A script asked for a tool call.",
        "inner_call.refused": "A script's tool call was not made, because its worker may have lost the script's own.",
        "guardrail.warned": "A remark below a result told a model that its call repeats itself in vain.",
        "guardrail.blocked": "A call that repeats itself in vain was not run.",
        "guardrail.halted": "A guardrail ended a turn that repeats itself in vain.",
        "iteration.claimed": "This worker took a model call.",
        "iteration.committed": "A reply and its tool calls were stored.",
        "iteration.refused": "A reply came too late: the claim was no longer ours and nothing was stored.",
        "iteration.failed": "A model call ended without a reply.",
        "tool_call.claimed": "This worker took a tool call.",
        "tool_call.settled": "A tool's result was stored.",
        "encryption.key_changed": "Texts are encrypted with another key from now on.",
        "encryption.key_missing": "A run waits for a key that this process does not have.",
        "encryption.key_kept": "Keys of encrypted texts were changed in a way that cannot be followed (yet).",
        "home.closed": "The home, or a file of ours in it, could be used by others, and cannot any more.",
        "worker.root": "The worker runs as root.",
        "sandbox.missing": "Commands are not confined, because nothing that could do it works here.",
        "sandbox.grouped": "Memory and processes of each command are limited as a whole, by control groups.",
        "sandbox.group_left": "The control group of a command could not be removed; the next worker tries again.",
        "sandbox.group_refused": "A control group could not be made; the limits hold for single processes only.",
        "egress.connected": "The proxy for commands connected to a server.",
        "egress.refused": "The proxy for commands refused to connect to a server.",
        "egress.delayed": "The proxy for commands could not take in a connection and tries again.",
        "egress.failed": "The proxy for commands met a defect; one command went on without a network.",
        "resource.started": "A host started a process for a session: a browser, or a server that speaks MCP.",
        "resource.not_started": "A process for a session could not be started; the call that waits for it is told.",
        "resource.ended": "A host ended the process of a session.",
        "browser.closed": "A browser ended; its host notices.",
        "browser.connection_ended": "The connection of a worker to a browser broke off.",
        "browser.use_lost": "A call was over before it left what it knew: another one uses the browser.",
        "command.blocked": "A command was refused: it is never run, forbidden, or nobody is there to approve it.",
        "command.judged": "A model said what it makes of a dangerous command.",
        "command.not_judged": "No model could be asked about a dangerous command; a person is.",
        "hook.asked": "A hook was asked about a step.",
        "memory.changed": "A run changed what is remembered, or left a change for a person.",
        "memory.refused": "A run wanted something remembered and may not write.",
        "hook.told": "A hook was told of an event, and that was recorded.",
        "hook.blocked": "A hook kept a tool call from running.",
        "hook.failed": "A hook raised, hung or answered nonsense; the run goes on as if it were not there.",
        "hook.abandoned": "A hook outstayed its time; its thread goes on by itself and nobody waits for it.",
        "hook.returned": "A hook that was switched off is called again: none of its calls hangs any more.",
        "hook.refused": "What a hook did could not be recorded: the claim was no longer ours.",
        "tool_call.refused": "A result came too late, or its start was no longer safe; nothing was stored.",
        "tool_call.hinted": "What a folder says to agents was put behind the first result that touched it.",
        "tool_call.unchecked": "A tool was not run: the schema of its arguments cannot be judged.",
        "tool_call.raised": "A tool raised instead of returning an error.",
        "untrusted.suspicious": "Text from outside looks like an attack; it was marked and shown as data.",
        "delivery.claimed": "This worker took a delivery.",
        "delivery.delivered": "A target took a message.",
        "delivery.retried": "A target did not take a message; it is tried again later.",
        "delivery.failed": "A delivery was given up; 'hermes-worker gateway deliveries retry' sends it again.",
        "delivery.refused": "A delivery's outcome came too late: the claim was no longer ours and nothing was stored.",
        "webhook.accepted": "An event of a webhook was taken in.",
        "webhook.conflict": "An event came under the delivery id of another one and was not taken.",
        "webhook.replayed": "A signed body that was taken before came under another delivery id.",
        "webhook.duplicate": "An event came again and was not taken again.",
        "webhook.list_unreadable": "A file that a filter of a webhook names cannot be read, so it counts as empty.",
        "webhook.locked": "The secret of a route is encrypted with a server key that is not here.",
        "webhook.sealed": "Secrets of routes were encrypted with the current server key.",
        "webhook.limited": "A webhook got more events in a minute than its route allows.",
        "webhook.refused": "An event was not signed by whoever holds the route's secret.",
        "webhook.weak": "An event was signed without a timestamp: a recording of it can be replayed.",
        "gateway.listening": "A gateway listens to an account now.",
        "gateway.lease_lost": "A gateway's lease of an account ended; another one may listen to it now.",
        "gateway.frame_broke": "Our code broke on a frame of a platform; that frame is left out.",
        "gateway.look_failed": "A platform was asked for events and did not give them; it is asked again.",
        "gateway.put_off": "The database was away, so nothing was asked of a platform; it is tried again.",
        "inbound.taken": "An event of a platform was taken: a run, a command, or nothing came of it.",
        "inbound.refused": "A request to the webhook of an account did not prove that it is the platform's.",
        "inbound.given_up": "An event of a platform was left behind, because our code broke on it three times.",
        "inbound.limited": "A message was not taken, because its tenant has used what it may.",
        "inbound.duplicate": "An event of a platform came again and was not taken again.",
        "checkpoint.kept": "A workspace was kept as it was, before a tool changes it.",
        "checkpoint.damaged": "A checkpoint could not be read any more and was let go.",
        "checkpoint.skipped": "A workspace could not be kept before a tool changed it.",
        "checkpoint.not_removed": "Checkpoints of a session that is gone could not be removed.",
        "snapshot.kept": "The files of a workspace were kept in object storage.",
        "snapshot.fetched": "The files of a workspace were brought here from object storage.",
        "snapshot.not_fetched": "The files of a workspace could not be brought here; an answer goes without its file.",
        "snapshot.left_out": "Files of a workspace cannot be read, and are on this machine alone.",
        "snapshot.conflict": "Two workers changed a file at once; the later one's was kept.",
        "object_storage.swept": "Objects of artifacts that are gone were removed.",
        "object_storage.not_removed": "Object storage did not answer an erasure; workers remove the objects later.",
        "prompt.prepared": "What the files of a project say to agents was written into the prompt of a session.",
        "prompt.refused": "What a workspace says came too late: the claim was no longer ours and nothing was stored.",
        "artifacts.gathered": "The files that a run left were kept.",
        "artifacts.failed": "The files that a run left could not be gathered, for good.",
        "artifacts.refused": "What was gathered came too late: the claim was no longer ours and nothing was stored.",
        "inbound_file.fetched": "A file that somebody sent was fetched and looked at.",
        "inbound_file.failed": "A file that somebody sent was not had, or could not be put into a workspace.",
        "inbound_file.placed": "Files that somebody sent were put into the workspace of their run.",
        "inbound_file.refused": "A file came too late: the claim was no longer ours and nothing was stored.",
        "execution.claimed": "This worker took what has to be collected for a job's run.",
        "execution.finished": "What a job's run needs was collected.",
        "execution.refused": "What was collected came too late: the claim was no longer ours and nothing was stored.",
        "job.prompt_cleaned": "Invisible characters were taken out of what a job's prompt was put together from.",
        "output.not_kept": "The document of a job's run could not be written.",
        "output.not_pruned": "Old documents of a job's runs could not be removed.",
        "job_data.not_removed": "What the script of a removed job kept could not be removed.",
        "job.broken": "A stored job could not be read; it was stopped.",
        "lease.lost": "Claims of this process were not renewed in time and now belong to others.",
        "lease.stray": "Claims that stood under this process and that nothing in it worked on were let go.",
        "lane.started": "A process was started in which suspects are tried apart.",
        "lane.crashed": "A lane ended by itself; that counts against the step it was doing.",
        "lane.failed": "The process that starts lanes met an error or is gone.",
        "lease.expired": "The sweeper took claims from a worker that no longer renews them.",
        "thread.failed": "A thread beside the work met a defect or a full disk, and goes on.",
        "worker.started": "A process is ready for work.",
        "worker.stopped": "A process ended in an orderly way.",
        "worker.draining": "A process takes no new work and waits for what it is doing.",
        "worker.stalled": "A process has taken no work for long although there was some; it will be restarted.",
        "control.refused": "A command came over the broker that would change the fleet and is not allowed.",
        "control.failed": "A command that came over the broker cannot be done by this worker.",
        "events.enabled": "Celery's events were switched on over the broker.",
        "events.disabled": "Celery's events were switched off over the broker.",
        "task.interrupted": "A task gave up because the database or the broker was away; it will be sent again.",
        "task.failed": "A task met an error that nobody expected; its run was ended as failed.",
        "rows.pruned": "Old rows were deleted, as the rules of retention say; the numbers by kind.",
        "workspace.tended": "Idle workspaces on other machines gave back what they held, or old ones were removed.",
        "workspace.not_tended": "The place of workspaces could not be asked which there are.",
        "workspace.pruned": "Directories of sessions that are quiet or gone were removed.",
        "search.rebuilt": "The index that messages are searched by was damaged; it is made anew from the messages.",
        "clock.stepped": "The database's clock was set to another time; stored times were moved with it.",
        "sweep.completed": "The sweeper looked through the table once.",
        "hint.sent": "Messages were published.",
        "hint.failed": "Messages could not be published; the sweeper will send them again.",
        "message.dropped": "A message in a queue or a command over the broker is none of ours; said at intervals.",
        "hint.stale": "A message named work that was already done or taken.",
        "model.failed": "One attempt at a model call failed.",
        "model.outcome_unknown": "An attempt at a model call brought no reply and may have been billed.",
        "model.held_back": "A model call waits because its credential is used as much as it may be.",
        "model.elsewhere": "A run waits for workers that ask the provider it was given to.",
        "model.cooled_down": "A provider asked for a pause; all workers heed it.",
        "model.key_rested": "A key was refused or is spent; all workers leave it alone for a while.",
        "provider.closed": "A key of a provider has no money, is refused, or its server is down; all workers leave it.",
        "provider.probed": "One model call tries a closed key.",
        "provider.opened": "A closed key works again.",
        "provider.keys_changed": "A tenant's provider key was added or removed; this worker goes by what there is now.",
        "provider.key_unreadable": "A tenant's provider key was changed in the database by others; it is not used.",
        "schema.ahead": "A newer version made the schema; it says that this version works on it.",
        "session.entitled": "A model gave a conversation a title.",
        "review.begun": "A run of its own looks back at a conversation, for what to remember.",
        "review.not_begun": "The database was away when a conversation was to be reviewed; a later turn sees to it.",
        "session.untitled": "No model gave a conversation a title; it keeps the one it has.",
        "login.renewed": "The access token of a login was renewed; all workers use the new one.",
        "login.deferred": "The access token of a login could not be renewed now.",
        "login.died": "A login cannot be renewed any more: somebody has to sign in again.",
        "model.window_asked": "A server was asked how large its context window is; 0 when it did not tell.",
        "model.fell_back": "A run goes on with the next provider of the chain.",
        "mcp.connection_ended": "The connection of a worker to a host of MCP servers broke off.",
        "mcp.use_not_noted": "A call of an MCP server was over before it left what the next one needs to know.",
        "remote_task.unwatched": "Tasks of servers whose calls are over could not be looked at.",
        "remote_task.not_cancelled": "A server could not be told that nobody wants a task any more; it is told again.",
        "mcp.rows_unwatched": "MCP servers of tenants could not be looked at; that is tried again.",
        "mcp.unapproved": "An MCP server offers tools that were not approved as they are; they are left out.",
        "process.told": "A turn of a session begins because a background process ended or wrote what is watched for.",
        "process.not_told": "A session is not told of a background process: its chain may begin no more turns.",
        "process.reaped": "A background process was ended whose session, child or time was over.",
        "process.forgotten": "Background processes were ended that no row knows any more.",
        "process.unwatched": "A background process could not be looked at; that is tried again.",
        "tool_source.listed": "A tool source offers something else than before; new sessions have it.",
        "skill.fetched": "A process read a version of a skill that it did not have.",
        "skill.suspicious": "A skill that an agent reads looks like an attack; it is shown as untrusted text.",
        "skill.not_laid_out": "The files of a skill could not be put into a workspace; the agent reads them by name.",
        "skill.refused": "A change of a skill that an agent asked for was refused.",
        "chat.not_remembered": "The history of what was typed into chat could not be read or written.",
        "skill.left_out": "A folder is no skill, or cannot be one here.",
        "skill.moved": "Another process brought the same skill at the same time.",
        "tool_source.left_out": "A tool that a source offers cannot be used.",
        "tool_definition.left_out": "A tool's definition can be sent to no model; the model is not told of that tool.",
        "tool_source.failed": "A tool source failed or hangs; what it offered last stays.",
        "conversation.compacted": "The older part of a conversation was replaced by a summary.",
        "conversation.compactor_refused": "The chosen compactor failed or would have lost something; ours did it.",
        "conversation.pruned": "Old results of tools are shown in short, so that a conversation needs no summary yet.",
        "conversation.left_long": "No model wrote a summary, and the conversation is sent as it is: it still fits.",
        "conversation.compacted_blindly": "A conversation was compacted without a model: none could be asked.",
        "auxiliary.claimed": "This worker took an auxiliary call of a tool call.",
        "auxiliary.answered": "The answer to an auxiliary call was stored, or that nobody gives one.",
        "auxiliary.refused": "An answer came too late: the claim was no longer ours and nothing was stored.",
        "auxiliary.failed": "A model call beside the conversation failed at one provider.",
        "callback.failed": "A callback of a client raised an error; the following goes on.",
        "reply.discarded": "A reply was cut short or empty; the model is asked again.",
        "supervisor.failed": "The supervisor itself met an error that nobody expected.",
        "child.started": "The supervisor started a process.",
        "child.awaited": "The supervisor waits for processes that are not ready yet.",
        "child.exited": "A process of the supervisor ended by itself; it is started again.",
        "child.failed": "A process of the supervisor could not be started; everything is stopped.",
        "child.killed": "A process of the supervisor did not start or stop in time and was killed.",
        "broker.data_set_aside": "The embedded broker could not read its files and begins without them.",
        "broker.state_forgotten": "What the broker held of a limit, a key or a preview was not ours; thrown away.",
        "broker.unreachable": "Redis or Valkey did not answer; said at growing intervals while it is away.",
        "broker.reachable": "Redis or Valkey answers again.",
        "database.unreachable": "The database did not answer; said at growing intervals while it is away.",
        "database.reachable": "The database answers again.",
        "request.failed": "An HTTP request met a defect of ours; its traceback follows.",
        "certificate.renewed": "The files of the API's certificate changed; new connections get the new one.",
        "certificate.not_renewed": "The files of the API's certificate changed and cannot be used; the old one stays.",
        "metrics.served": "This process serves its metrics.",
        "metrics.not_served": "This process cannot listen where its metrics should be; it works without them.",
        "configuration.refused": "A configuration cannot be used; the last good one counts. Its error says why.",
    }
)
"""Every event this package logs or counts, with its meaning. Closed: a test reads the sources and compares."""

COUNTED: frozenset[str] = frozenset(
    [
        "auxiliary.answered",
        "auxiliary.claimed",
        "auxiliary.failed",
        "auxiliary.refused",
        "command.judged",
        "context.left_out",
        "conversation.compacted",
        "conversation.pruned",
        "delivery.claimed",
        "delivery.delivered",
        "delivery.failed",
        "delivery.refused",
        "delivery.retried",
        "egress.connected",
        "egress.refused",
        "checkpoint.kept",
        "checkpoint.skipped",
        "artifacts.failed",
        "prompt.prepared",
        "prompt.refused",
        "artifacts.gathered",
        "artifacts.refused",
        "inbound_file.fetched",
        "inbound_file.failed",
        "inbound_file.refused",
        "execution.claimed",
        "execution.finished",
        "guardrail.blocked",
        "guardrail.halted",
        "guardrail.warned",
        "hint.failed",
        "hint.sent",
        "hint.stale",
        "hook.abandoned",
        "hook.asked",
        "hook.failed",
        "hook.refused",
        "hook.told",
        "inner_call.asked",
        "iteration.claimed",
        "iteration.committed",
        "iteration.refused",
        "lease.lost",
        "lease.stray",
        "login.renewed",
        "memory.changed",
        "memory.refused",
        "message.dropped",
        "places.given",
        "model.cooled_down",
        "model.failed",
        "model.held_back",
        "model.key_rested",
        "model.outcome_unknown",
        "provider.closed",
        "provider.keys_changed",
        "provider.opened",
        "provider.probed",
        "reply.discarded",
        "review.begun",
        "run.delegated",
        "run.stop_requested",
        "run.submitted",
        "session.entitled",
        "skill.fetched",
        "sweep.completed",
        "tool_call.claimed",
        "tool_call.hinted",
        "tool_call.refused",
        "tool_call.settled",
        "process.reaped",
        "process.told",
        "tool_source.failed",
        "untrusted.suspicious",
        "gateway.frame_broke",
        "gateway.lease_lost",
        "inbound.duplicate",
        "inbound.given_up",
        "inbound.refused",
        "inbound.taken",
        "webhook.accepted",
        "webhook.conflict",
        "webhook.duplicate",
        "webhook.limited",
        "webhook.replayed",
    ]
)
"""The events that are counted, some of them by kind (``model.failed.rate_limit``): their counters begin at zero."""

TIMED: Mapping[str, str] = MappingProxyType(
    {
        "hint.waited": "From when the message of a step was sent to when it was begun, by queue.",
        "step.held": "From the claim of a step to its end, by queue.",
        "model.waited": "How long model calls were told to wait because their credential is used as much as it may be.",
        "pool.waited": "How long statements waited for a connection to the database.",
        "sweep.took": "One look of the sweeper.",
        "event.lagged": "From when an event of a run was written to when it was sent to somebody who follows the run.",
    }
)
"""The names of durations, in seconds; those with a queue as ``hint.waited.model``."""


# --- context ---------------------------------------------------------------------------------------------------------


def bind_facts(**facts: object) -> AbstractContextManager[None]:
    """Add ``facts`` to every line logged inside the ``with`` block by this thread or asyncio task.

    New threads start without them. Nesting adds, and the inner value of a name wins.
    """
    from structlog.contextvars import bound_contextvars

    return bound_contextvars(**facts)


def find_fact(name: str) -> str | None:
    """Find a fact that ``bind_facts`` added here, as text; ``None`` where there is none."""
    from structlog.contextvars import get_contextvars

    found = get_contextvars().get(name)
    return None if found is None else str(found)


# --- logging ---------------------------------------------------------------------------------------------------------

_STRING_CHARS_MAX = 8_000
"""A longer string is cut in the line: a megabyte of traceback is unreadable, and log collectors drop such lines."""
_DEPTH_MAX = 4
_QUIET_LIBRARIES = ("httpx", "httpx2", "httpcore", "openai", "anthropic", "urllib3", "asyncio", "alembic", "kombu")
"""Their INFO lines repeat what ours say; at DEBUG they are let through."""


class Log:
    """The logger. A line below the level costs one comparison and is never built. The first line imports structlog,
    which takes longer than many a command.
    """

    __slots__ = ("_emit", "_level")

    def __init__(self) -> None:
        self._level = logging.INFO
        self._emit: Any = _FirstLine(_build_renderers("console", ()), None)

    def debug(self, event: str, **facts: object) -> None:
        if self._level <= logging.DEBUG:
            self._emit.debug(event, **facts)

    def info(self, event: str, **facts: object) -> None:
        if self._level <= logging.INFO:
            self._emit.info(event, **facts)

    def warning(self, event: str, **facts: object) -> None:
        if self._level <= logging.WARNING:
            self._emit.warning(event, **facts)

    def error(self, event: str, **facts: object) -> None:
        self._emit.error(event, **facts)

    def exception(self, event: str, **facts: object) -> None:
        """An error with the traceback of the exception being handled."""
        self._emit.error(event, exc_info=True, **facts)


def configure_logging(
    settings: LogSettings, role: str, *, secrets: Iterable[Secret] = (), stream: TextIO | None = None
) -> None:
    """Send the lines of this process, ours and other libraries', to ``stream`` (stderr when ``None``).

    ``role`` (``worker``, ``api``, ``beat`` ...) stands in every line. ``secrets`` are masked wherever they appear,
    whatever they look like; they are listed for the first line. May be called again: the last call wins.
    """
    level = logging.getLevelNamesMapping()[settings.level]
    finish = [_make_origin_adder(role), *_build_renderers(settings.format, secrets)]
    log._level = level
    log._emit = _FirstLine(finish, stream)
    _redirect_other_libraries(level, finish, stream)


def _redirect_other_libraries(level: int, finish: Sequence[Processor], stream: TextIO | None) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_ForeignFormatter(finish))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(level, logging.WARNING) if level > logging.DEBUG else logging.DEBUG)


class _ForeignFormatter(logging.Formatter):
    """Formats the lines of other libraries."""

    def __init__(self, finish: Sequence[Processor]) -> None:
        super().__init__()
        self._finish = finish

    def format(self, record: logging.LogRecord) -> str:
        return self._formatter.format(record)

    @cached_property
    def _formatter(self) -> logging.Formatter:
        from structlog import stdlib

        return stdlib.ProcessorFormatter(
            processors=[stdlib.ProcessorFormatter.remove_processors_meta, *self._finish],
            foreign_pre_chain=[*_list_first_processors(), stdlib.add_logger_name],
        )


def import_structlog() -> None:
    """Import what log lines are made with, without the library that structlog would paint tracebacks with: ours are
    plain, and it takes 4 MB. Only for processes that are ours alone."""
    hides = "rich" not in sys.modules and "structlog" not in sys.modules
    if hides:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import_module("structlog")
    finally:
        if hides:
            del sys.modules["rich"]


class _FirstLine:
    """Stands for the logger until the first line."""

    def __init__(self, finish: Sequence[Processor], stream: TextIO | None) -> None:
        self._finish = finish
        self._stream = stream

    def __getattr__(self, method: str) -> Any:
        import structlog

        made = structlog.wrap_logger(
            _LineWriter(self._stream),
            processors=[*_list_first_processors(), *self._finish],
            wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
            context_class=dict,
        ).bind()
        if log._emit is self:
            log._emit = made
        return getattr(made, method)


class _LineWriter:
    """Writes one line per call, in one piece, so that lines of several threads and processes do not mix."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        stream = self._stream or sys.stderr
        try:
            stream.write(f"{line}\n")
            stream.flush()
        except (OSError, ValueError):
            # The reader of our lines is gone, or stderr is closed. Work must not fail for want of a reader.
            return

    debug = info = warning = error = msg


def _list_first_processors() -> tuple[Processor, ...]:
    from structlog import contextvars, processors

    return (
        contextvars.merge_contextvars,
        processors.add_log_level,
        processors.TimeStamper(fmt="iso", utc=True),
        # Plain tracebacks, made here so that they are redacted with the rest, and never the values of local variables.
        processors.format_exc_info,
    )


def _make_origin_adder(role: str) -> Processor:
    def add_origin(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        # The pid is read each time: prefork children inherit this function.
        return {**line, "role": role, "pid": os.getpid()}

    return add_origin


def _build_renderers(form: str, secrets: Iterable[Secret]) -> list[Processor]:
    @cache
    def list_known() -> tuple[str, ...]:
        return tuple(secret.reveal() for secret in secrets)

    def clean(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        known = list_known()
        return {name: _clean_value(value, name, known) for name, value in line.items()}

    return [clean, _send_line, _render_json_line if form == "json" else _render_console_line]


_sent_lines_to: Callable[[Mapping[str, object]], None] | None = None


def send_lines(to: Callable[[Mapping[str, object]], None] | None) -> None:
    """Give every line that is written to ``to`` as well, redacted. ``to`` raises nothing and does not wait."""
    global _sent_lines_to
    _sent_lines_to = to


def _send_line(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    if _sent_lines_to is not None:
        _sent_lines_to(line)
    return line


def _clean_value(value: object, name: str, known: tuple[str, ...], depth: int = 0) -> object:
    """``value`` as redacted JSON types. ``name`` is the field it is the value of."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth < _DEPTH_MAX:
        return {str(key): _clean_value(item, str(key), known, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEPTH_MAX:
        return [_clean_value(item, name, known, depth + 1) for item in value]
    from hermes_worker.safety.redaction import is_secret_name, mask_secret  # many a command writes no line

    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return mask_secret(text) if is_secret_name(name) else _clean_text(text, known)


def _clean_text(text: str, known: tuple[str, ...]) -> str:
    from hermes_worker.safety.redaction import mask_known, redact

    text = redact(mask_known(text, known))
    if len(text) <= _STRING_CHARS_MAX:
        return text
    return f"{text[:_STRING_CHARS_MAX]}... ({len(text) - _STRING_CHARS_MAX} characters more)"


def _render_json_line(logger: WrappedLogger, method: str, line: EventDict) -> str:
    first = {name: line.pop(name) for name in ("timestamp", "level", "role", "event") if name in line}
    return json.dumps({**first, **line}, ensure_ascii=False, separators=(",", ":"))


def _render_console_line(logger: WrappedLogger, method: str, line: EventDict) -> str:
    """``23:24:01.123 info    worker run.finished  run_id=7f3a status=completed``, then a traceback if there is one."""
    traceback = line.pop("exception", None)
    time = str(line.pop("timestamp"))[11:23]
    head = f"{time} {line.pop('level'):<7} {line.pop('role', '-'):<6} {_escape_controls(str(line.pop('event')))}"
    line.pop("pid", None)
    facts = " ".join(f"{name}={_format_fact(value)}" for name, value in line.items())
    lines = [f"{head}  {facts}" if facts else head, *map(_escape_controls, str(traceback or "").splitlines())]
    return "\n".join(lines)


def _escape_controls(text: str) -> str:
    """Control characters written out: a value must not be able to forge a line or paint the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _format_fact(value: object) -> str:
    if isinstance(value, str):
        is_plain = value.isprintable() and value != "" and not set(' "=') & set(value)
        return value if is_plain else json.dumps(value)
    return _escape_controls(json.dumps(value, ensure_ascii=False))


log = Log()
"""The logger of this process. Before ``configure_logging`` it writes INFO and above as text."""


# --- counters --------------------------------------------------------------------------------------------------------


class _Counters:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._values = dict.fromkeys(COUNTED, 0)

    def add(self, name: str, amount: int) -> None:
        with self._lock:
            if name not in self._values and not {name, name.rpartition(".")[0]} & EVENTS.keys():
                raise KeyError(f"{name!r} is not in observe.EVENTS")
            self._values[name] = self._values.get(name, 0) + amount

    def copy_values(self) -> dict[str, int]:
        with self._lock:
            return dict(self._values)


DURATIONS_S = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the classes in which durations are counted."""


class Durations(NamedTuple):
    """Durations of one kind."""

    classes: tuple[int, ...]
    """How many durations lie in each class of ``DURATIONS_S``, and above them all."""
    sum_s: float


class _Timers:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._classes: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        seconds = max(0.0, seconds)  # clocks of two machines may disagree
        place = bisect_left(DURATIONS_S, seconds)
        with self._lock:
            classes = self._classes.get(name)
            if classes is None:
                if name not in TIMED and name.rpartition(".")[0] not in TIMED:
                    raise KeyError(f"{name!r} is not in observe.TIMED")
                classes = self._classes[name] = [0] * (len(DURATIONS_S) + 1)
                self._sums[name] = 0.0
            classes[place] += 1
            self._sums[name] += seconds

    def copy_values(self) -> dict[str, Durations]:
        with self._lock:
            return {name: Durations(tuple(classes), self._sums[name]) for name, classes in self._classes.items()}


_counters, _timers = _Counters(), _Timers()


def _reset_after_fork(reset: Callable[[], None]) -> None:
    """Call ``reset`` in every forked child: the lock may be held by a thread that the child does not have. Windows has
    no fork.
    """
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=reset)


# A forked child counts for itself.
_reset_after_fork(_counters.reset)
_reset_after_fork(_timers.reset)


def count(name: str, amount: int = 1) -> None:
    """Add to a counter of this process. ``name`` is an event of the catalogue, or one of its kinds:
    ``model.failed.rate_limit``. Raises ``KeyError`` for other names: a misspelt counter would stay at zero for ever.
    """
    _counters.add(name, amount)


def record_duration(name: str, seconds: float) -> None:
    """Note a duration in this process. ``name`` is one of ``TIMED``, or one of its kinds. Raises ``KeyError`` for other
    names."""
    _timers.add(name, seconds)


def copy_counters() -> dict[str, int]:
    """All counters, including those still at zero."""
    return _counters.copy_values()


def copy_durations() -> dict[str, Durations]:
    """All durations so far, by name."""
    return _timers.copy_values()


def reset_counters() -> None:
    """Set every counter to zero and forget durations, for tests."""
    _counters.reset()
    _timers.reset()


# --- threads ---------------------------------------------------------------------------------------------------------


def poll_forever(end: threading.Event, every_s: float, look: Callable[[], object], *, event: str) -> None:
    """Call ``look`` every so many seconds until ``end`` is set, as the body of a thread. What it raises is logged as
    ``event``, an outage of the database only at DEBUG; without this thread no other would look again.
    """
    while not end.wait(every_s):
        try:
            look()
        except UnavailableError as error:
            log.debug(event, reason=str(error))
        except Exception as error:
            log.error(event, reason=f"{type(error).__name__}: {error}", exc_info=error)


# --- outages ---------------------------------------------------------------------------------------------------------

_OUTAGE_FIRST_S = 1.0
_OUTAGE_MAX_S = 60.0


class OutageLog:
    """Logs the outage of a server: at once, then at intervals that double from 1 s to 60 s, from any thread of the
    process, and once more when the server answers again.

    A server that comes and goes does not begin the intervals anew: that takes a minute without a failure. Thread-safe.
    """

    def __init__(self, gone: str, back: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``gone`` and ``back`` are the events that are logged."""
        self._gone = gone
        self._back = back
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._lock = threading.Lock()
        self._since: float | None = None
        self._failed_at = -math.inf
        self._said_since = False
        self._say_at = -math.inf
        self._wait_s = _OUTAGE_FIRST_S
        self._unsaid = 0

    def note_failure(self, **facts: object) -> None:
        """Note that the server did not answer. ``facts`` are logged, if it is time to say it again."""
        with self._lock:
            now = self._clock()
            if now - self._failed_at > _OUTAGE_MAX_S:
                self._say_at, self._wait_s, self._unsaid = now, _OUTAGE_FIRST_S, 0
            self._failed_at = now
            self._since = now if self._since is None else self._since
            if now < self._say_at:
                self._unsaid += 1
                return
            self._say_at, self._wait_s = now + self._wait_s, min(2 * self._wait_s, _OUTAGE_MAX_S)
            unsaid, self._unsaid, self._said_since = self._unsaid, 0, True
            away_s = now - self._since
        log.warning(self._gone, **facts, away_s=round(away_s, 1), more_failures=unsaid)

    def note_success(self) -> None:
        """Note that the server answered. Costs next to nothing while it always does."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
            was_said, self._said_since = self._said_since, False
        if since is not None and was_said:
            log.info(self._back, away_s=round(self._clock() - since, 1))


broker_outage = OutageLog("broker.unreachable", "broker.reachable")
database_outage = OutageLog("database.unreachable", "database.reachable")
for _outage in (broker_outage, database_outage):
    _reset_after_fork(_outage.reset)
