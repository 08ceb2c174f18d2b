"""What the log says of the end of a run and of a claim that was taken away."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from support.logs import kept_log
from support.store import Store

from hermes_worker.core.errors import Failure
from hermes_worker.core.events import ModelFailed
from hermes_worker.core.run import ExitReason
from hermes_worker.core.trace_ids import derive_trace_id
from hermes_worker.store.run_ends import list_uncounted_ends
from hermes_worker.store.statistics import count_ended_rows


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    with kept_log() as stream:
        yield stream


def events(stream: io.StringIO, name: str) -> list[dict[str, object]]:
    return [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == name]


def fail(store: Store, run_id: str) -> None:
    failure = Failure(kind="auth", message="the provider says: bad key for user@example.org")
    store.runs.commit_failure(
        store.turn(run_id), ModelFailed(failure=failure, exit_reason=ExitReason.ALL_RETRIES_EXHAUSTED)
    )


def test_each_end_of_a_run_has_one_line_whoever_sweeps(store: Store, lines: io.StringIO) -> None:
    answered = store.submit().run_id
    store.answer(answered)
    store.submit()  # goes on
    for _ in range(3):
        store.sweep()
        count_ended_rows(store.database)

    (line,) = events(lines, "run.finished")
    assert line == line | {
        "level": "info",
        "run_id": answered,
        "status": "completed",
        "reason": "text_response",
        "iterations": 1,
        "trace_id": f"{derive_trace_id(answered):032x}",
    }
    assert {"duration_s", "input_tokens", "output_tokens", "cost_usd", "cost_status", "model"} <= line.keys()


def test_a_failed_run_is_a_warning_with_the_kind_of_its_failure_and_without_the_providers_words(
    store: Store, lines: io.StringIO
) -> None:
    failed = store.submit().run_id
    fail(store, failed)
    store.sweep()

    (line,) = events(lines, "run.finished")
    assert (line["level"], line["reason"], line["failure"]) == ("warning", "all_retries_exhausted_no_response", "auth")
    assert "bad key" not in lines.getvalue()


def test_ends_that_a_tracer_was_told_of_are_logged_as_well(store: Store, lines: io.StringIO) -> None:
    for _ in range(3):
        store.answer(store.submit().run_id)
    count_ended_rows(store.database, only=[end.pk for end in list_uncounted_ends(store.database)])

    assert len(events(lines, "run.finished")) == 3


def test_a_claim_that_the_sweeper_takes_away_is_said_with_its_step(store: Store, lines: io.StringIO) -> None:
    lost = store.worker("lost")
    run_id = store.with_tools()
    asked = store.submit().run_id
    store.turn(asked, lost.pk)
    store.vanish(lost)
    store.sweep()

    (line,) = events(lines, "lease.expired")
    assert line == line | {"level": "warning", "run_id": asked, "step": "model", "worker": lost.pk}
    assert run_id != asked
