"""``doctor``'s findings about the rows of a fleet: the queues, the jobs, the size of the database, and memory
providers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import wraps

from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.cli.layout import format_count
from hermes_worker.core.errors import HermesError
from hermes_worker.local.paths import find_running_stack, has_no_rows
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database

_WAITS_S_NOTED, _WAITS_S_MAX = 60.0, 900.0
"""Seconds that the oldest step of a queue may wait, before a note and before an error."""
_OVERDUE_S_MAX = 60.0
"""Seconds that a job may be overdue: a scheduler looks every few seconds."""
_CALLS_LOOKED_AT = 100


def with_rows(
    grade: Grade, nothing: str
) -> Callable[[Callable[[Settings, Database], tuple[Grade, str]]], Callable[[Settings], tuple[Grade, str]]]:
    """Give a check the database of the installation; where none was made yet, the finding is ``grade`` and
    ``nothing``."""

    def decorate(check: Callable[[Settings, Database], tuple[Grade, str]]) -> Callable[[Settings], tuple[Grade, str]]:
        @wraps(check)
        def look(settings: Settings) -> tuple[Grade, str]:
            from hermes_worker.wiring import open_database

            if has_no_rows(settings):
                return grade, nothing
            with closing(open_database(settings)) as database:
                return check(settings, database)

        return look

    return decorate


def _is_down(settings: Settings) -> bool:
    """Whether nothing should be running: this home has its own broker, and no stack was started."""
    return settings.broker.url is None and find_running_stack(settings.home) is None


@with_rows(Grade.OK, "nothing waits")
def check_queues(settings: Settings, database: Database) -> tuple[Grade, str]:
    """Check how old the oldest step is that a worker could take."""
    from hermes_worker.store.backlog import read_backlog

    due = [each for each in read_backlog(database) if each.due]
    if not due:
        return Grade.OK, "nothing waits"
    oldest = max(due, key=lambda each: each.oldest_age_s)
    count = format_count(sum(each.due for each in due), "step")
    waits = f"{count} due, the oldest waits for {oldest.oldest_age_s:.0f} s in {oldest.queue!r}"
    if oldest.oldest_age_s <= _WAITS_S_NOTED:
        return Grade.OK, waits
    if _is_down(settings):
        return Grade.NOTE, f"{waits}; 'hermes-worker up' goes on with them"
    grade = Grade.NOTE if oldest.oldest_age_s <= _WAITS_S_MAX else Grade.BROKEN
    return grade, f"{waits}; start more workers for {oldest.queue!r} ('hermes-worker fleet backlog' says how many)"


@with_rows(Grade.OK, "no job is scheduled")
def check_beat(settings: Settings, database: Database) -> tuple[Grade, str]:
    """Check whether jobs begin when they are due. A scheduler has no row of its own, so its work is the only sign of
    it."""
    from hermes_worker.store.fleet import load_fleet

    fleet = load_fleet(database)
    scheduled = fleet.jobs.get("scheduled", 0)
    if fleet.job_overdue_s <= _OVERDUE_S_MAX:
        return Grade.OK, f"{scheduled} scheduled, none overdue" if scheduled else "no job is scheduled"
    overdue = f"a job is overdue for {fleet.job_overdue_s:.0f} s, so no scheduler is at work"
    if _is_down(settings):
        return Grade.NOTE, f"{overdue}; 'hermes-worker up' starts one"
    return Grade.BROKEN, f"{overdue}; start one with 'hermes-worker start beat'"


@with_rows(Grade.OK, "no database yet, so none in it")
def check_configuration(settings: Settings, database: Database) -> tuple[Grade, str]:
    """Whether the configurations in the database and the file can be used, and which count."""
    from hermes_worker.live_settings import build_live_settings

    live = build_live_settings(settings, database)
    layers, problems = live.choose_settings("").layers, live.list_problems()
    if problems:
        return Grade.BROKEN, f"{'; '.join(problems.values())} The last good one counts: write it anew"
    told = ", ".join(f"{layer} {version}" for layer, version in layers.items())
    return Grade.OK, f"can be used ({told})" if told else "none in the database"


@with_rows(Grade.OK, "no database yet")
def check_size(settings: Settings, database: Database) -> tuple[Grade, str]:
    """Check how large the database is, and how much of it is empty."""
    from hermes_worker.store.whole_database import measure_size

    found = measure_size(database)
    text = f"the database takes {_format_megabytes(found.total_bytes)}"
    if not found.is_bloated:
        return Grade.OK, text
    if found.dead_rows:
        told = ", ".join(f"{count} of {table}" for table, count in list(found.dead_rows.items())[:3])
        return Grade.NOTE, f"{text}; more rows are dead than alive ({told}): let autovacuum run, or use 'doctor --fix'"
    free = _format_megabytes(found.free_bytes)
    return Grade.NOTE, f"{text}, {free} of it hold nothing; 'doctor --fix' gives them back while nothing runs"


@with_rows(Grade.OK, "no messages yet")
def check_search(settings: Settings, database: Database) -> tuple[Grade, str]:
    """Whether the index of messages can be used."""
    from hermes_worker.store.search.indexing import find_index_damage

    damage = find_index_damage(database)
    if damage is None:
        return Grade.OK, "the index of messages is whole"
    return Grade.BROKEN, f"{damage}; use 'doctor --fix', or search for something: it is made anew from the messages"


def _format_megabytes(count: int) -> str:
    return f"{count / 1024**2:.1f} MB"


def has_memory_provider(settings: Settings) -> bool:
    """Whether an extension brings a memory provider. False where extensions cannot be used, which other findings
    report."""
    from hermes_worker import plugins

    try:
        return bool(plugins.begin_extensions(settings).list_bringing("memory_providers"))
    except HermesError:
        return False


def check_memory(settings: Settings) -> tuple[Grade, str]:
    """Check memory providers: whether each was called of late. None is called for this, because each has an interface
    of its own."""
    from hermes_worker import plugins
    from hermes_worker.core.hooks import HookCallState
    from hermes_worker.store.hooks.calls import HookCalls
    from hermes_worker.wiring import open_database

    found = plugins.begin_extensions(settings)
    brought = [
        (one.name, provider.name)
        for one in found.list_bringing("memory_providers")
        for provider in one.memory_providers
    ]
    name = ", ".join(f"{provider} of {extension}" for extension, provider in brought)
    if any(plugins.is_unverified(extension) for extension, _ in brought):
        name += " (unverified live)"
    if has_no_rows(settings):
        return Grade.OK, f"{name}; it was told of nothing yet"
    theirs = {hook.name for hook in found.hooks.values() if hook.of_memory}
    with closing(open_database(settings)) as database:
        calls = [call for call in HookCalls(database).list(limit=_CALLS_LOOKED_AT) if call.hook in theirs]
    settled = [call for call in calls if call.settled_at is not None]
    failed = [call for call in settled if call.state is not HookCallState.DONE]
    if not failed:
        return Grade.OK, f"{name}; {len(settled)} of the latest calls of hooks were its, and none failed"
    said = f"{len(failed)} of its {len(settled)} latest calls failed: {failed[0].reason or failed[0].state.value}"
    grade = Grade.BROKEN if len(failed) == len(settled) else Grade.NOTE
    return grade, f"{name}; {said}; look at its address and its key"
