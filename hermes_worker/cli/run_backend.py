"""The API's operations on runs, as typed calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from hermes_worker.cli.api_connection import ApiConnection, connect_api, connect_home
from hermes_worker.cli.children import FamilyWatch
from hermes_worker.cli.event_notices import Notice, add_notices, describe_idle_fleet, find_standing_notice
from hermes_worker.cli.options import chosen_tenant
from hermes_worker.cli.server import parse_document
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.client import operations
from hermes_worker.client.exchange import ApiRequest
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.schemas.approvals import WaitObject
from hermes_worker.schemas.runs import (
    CallDetailObject,
    ExplanationObject,
    LedgerEntryObject,
    Stopping,
    TrajectoryObject,
    TreeObject,
    TurnResult,
)
from hermes_worker.services.sheets import RunNews, RunSheet
from hermes_worker.store.hooks.calls import HookCallView
from hermes_worker.store.runs.views import RunView
from hermes_worker.stream.sse import WireEvent

PAGE = 100
_PARAMS = {
    "statuses": "status",
    "tags": "tag",
    "origin": "source",
    "parent": "parent_run_id",
    "cost_usd_min": "min_cost_usd",
    "cost_usd_max": "max_cost_usd",
}
"""Filters that have another name in the API."""


def open_backend(home: Path | None, *, names_tenant: bool = False, begins_work: bool = False) -> RunBackend:
    """Connect to the API as ``ask_api`` does; a command that ``names_tenant`` only lists runs."""
    return RunBackend(connect_api(home, names_tenant=names_tenant, begins_work=begins_work))


class RunBackend:
    """Runs of one tenant. Each call raises ``HermesError``s that say what is wrong."""

    def __init__(self, asked: ApiConnection) -> None:
        self._asked = asked
        self._client = asked.client
        tenant = chosen_tenant()
        self._of_tenant = {} if tenant == DEFAULT_TENANT else {"tenant": tenant}

    @property
    def source(self) -> str:
        """The name space of sessions: ``cli`` at a home, ``api`` over a server."""
        return self._asked.source

    def complete_run_id(self, written: str) -> str:
        """Complete an id from its beginning; a text that begins no id is returned as it is, and looking it up then
        fails with a sentence. Raises ``AmbiguousId``, ``ConfigurationError`` for what can be no id."""
        return complete_id(self._client, written, "run")

    def _iterate_views(self, params: Mapping[str, Any]) -> Iterator[RunView]:
        request: ApiRequest[operations.Portion[Any]] | None = operations.sheets(**self._of_tenant, **params)
        while request is not None:
            page = self._client.send(request)
            yield from parse_document(list[RunView], page.items)
            request = page.following

    def runs(self, said: Mapping[str, Any], *, before: str | None = None, page: int = PAGE) -> Iterator[RunView]:
        """Iterate over the runs that ``said`` selects, as fields of ``RunFilter``, newest first; ``before`` a run."""
        params = {_PARAMS.get(name, name): value for name, value in said.items() if value not in (None, ())}
        return self._iterate_views({**params, "limit": min(page, PAGE), **({"before": before} if before else {})})

    def sheet(self, run_id: str) -> RunSheet:
        sheet: RunSheet = parse_document(RunSheet, self._client.sheet(run_id))
        return sheet

    def find_idle_notice(self, run_id: str) -> str | None:
        """Write that no worker is alive, and what to do; ``None`` while one is. Over a server that is the operators'
        business. ``run_id`` names the run whose model would be needed."""
        settings = self._asked.settings
        if settings is None or self._client.workers():
            return None
        view = self.sheet(run_id).view
        return describe_idle_fleet(settings, view.endpoint, view.model)

    def find_notice(self, run_id: str, news: RunNews) -> str | None:
        """Write why a run does not move, once that has lasted long enough for its watcher to know; ``None`` before."""
        if news.standing is None:
            return None
        if (idle := self.find_idle_notice(run_id)) is not None:
            return idle
        return find_standing_notice(news.standing)

    def news(self, run_id: str) -> RunNews:
        news: RunNews = parse_document(RunNews, self._client.run_news(run_id))
        return news

    def status(self, run_id: str) -> RunStatus:
        return self._client.run(run_id).status

    def result(self, run_id: str) -> TurnResult:
        return self._client.result(run_id)

    def training_sample(self, run_id: str) -> TrajectoryObject:
        return self._client.trajectory(run_id)

    def hook_calls(self, run_id: str, *, limit: int) -> Sequence[HookCallView]:
        found: Sequence[HookCallView] = parse_document(list[HookCallView], self._client.hook_calls(run_id, limit=limit))
        return found

    def explain(self, run_id: str) -> ExplanationObject:
        return self._client.explain(run_id)

    def follow(self, run_id: str) -> Iterator[WireEvent | Notice]:
        """Iterate over everything that happens to a run until it has ended, and over notices in between. At a home it
        continues when one stack ends there and another starts."""
        watch = FamilyWatch()

        def notices() -> tuple[list[str], str | None]:
            news = self.news(run_id)
            return watch.render_changes(news), self.find_notice(run_id, news)

        last_id = "0"
        while True:
            try:
                for told in add_notices(self._events(run_id, last_id), notices):
                    last_id = told.id if isinstance(told, WireEvent) and told.id else last_id
                    yield told
                return
            except UnavailableError:
                if self._asked.settings is None:
                    raise
            # The stack that served this has ended: the rows are still there.
            self._asked = connect_home(self._asked.settings)
            self._client = self._asked.client

    def _events(self, run_id: str, after: str) -> Iterator[WireEvent]:
        for told in self._client.told_events(run_id, after=after):
            fields = dict(told.document)
            name, at = str(fields.pop("event", "")), fields.pop("timestamp", 0.0)
            fields.pop("run_id", None)
            yield WireEvent(id=told.id, name=name, at=float(at), fields=fields)

    def stop(self, run_id: str) -> Stopping:
        return self._client.stop(run_id)

    def pause(self, run_id: str) -> RunStatus:
        return RunStatus(self._client.pause(run_id).status)

    def resume(self, run_id: str) -> RunStatus:
        return RunStatus(self._client.resume(run_id).status)

    def steer(self, run_id: str, text: str) -> None:
        self._client.steer(run_id, text)

    def approve(self, run_id: str, choice: str, *, reason: str | None, wait_id: int) -> None:
        self._client.approve(run_id, choice, reason=reason, wait_id=wait_id)

    def answer(self, run_id: str, text: str, *, wait_id: int) -> None:
        self._client.answer(run_id, text, wait_id=wait_id)

    def retry(self, run_id: str) -> str:
        return self._client.retry(run_id)

    def tree(self, run_id: str) -> TreeObject:
        return self._client.tree(run_id)

    def calls(self, run_id: str, *, limit: int) -> Sequence[LedgerEntryObject]:
        return list(islice(self._client.calls(run_id), limit))

    def call(self, run_id: str, iteration: int, position: int) -> CallDetailObject:
        return self._client.call(run_id, f"{iteration}.{position}")

    def questions(self, *, kind: WaitKind | None, all_tenants: bool, limit: int) -> Sequence[WaitObject]:
        """List what waits for a person, the oldest first."""
        wanted = None if kind is None else kind.value
        return self._client.approvals(kind=wanted, limit=limit, all_tenants=all_tenants)

    def join(self, run_ids: Sequence[str], *, is_any: bool, timeout_s: float | None) -> Mapping[str, RunStatus]:
        """Wait until all have ended, or ``is_any`` of them, or the time is over, and return how those ended that
        have."""
        found = self._client.join(run_ids, mode="any" if is_any else "all", timeout_s=timeout_s).runs
        return {end.run_id: end.status for end in found if end.status is not None}


def build_run_document(view: RunView, calls_by_status: Mapping[str, int]) -> dict[str, Any]:
    """Render a run as JSON: the names are those of ``RunView``."""
    return {
        **asdict(view),
        "status": view.status.value,
        "priority": view.priority.word,
        "cost_usd": None if view.cost_usd is None else float(view.cost_usd),
        "doubtful_cost_usd": float(view.doubtful_cost_usd),
        "is_completed": view.is_completed,
        "is_partial": view.is_partial,
        "is_failed": view.is_failed,
        "is_interrupted": view.is_interrupted,
        "tool_calls": dict(calls_by_status),
    }
