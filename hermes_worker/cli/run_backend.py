"""Runs over the API: ids that people write short, filters by their names, and following across stacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_worker.cli.api_connection import ApiConnection, connect_api, connect_home
from hermes_worker.cli.children import FamilyWatch
from hermes_worker.cli.event_notices import Notice, add_notices, describe_idle_fleet, find_standing_notice
from hermes_worker.cli.options import get_chosen_tenant
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.run_views import RunNews, RunView
from hermes_worker.stream.wire_events import WireEvent

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
    """Connect to the API as ``connect_api`` does; a command that ``names_tenant`` only lists runs."""
    return RunBackend(connect_api(home, names_tenant=names_tenant, begins_work=begins_work))


class RunBackend:
    """Runs of one tenant. ``client`` does to them what needs no more than a request."""

    def __init__(self, asked: ApiConnection) -> None:
        self._asked = asked
        self.client = asked.client
        tenant = get_chosen_tenant()
        self._of_tenant = {} if tenant == DEFAULT_TENANT else {"tenant": tenant}

    @property
    def source(self) -> str:
        """The name space of sessions: ``cli`` at a home, ``api`` over a server."""
        return self._asked.source

    def complete_run_id(self, written: str) -> str:
        """Complete an id from its beginning; a text that begins no id is returned as it is, and looking it up then
        fails with a sentence. Raises ``AmbiguousId``, ``ConfigurationError`` for what can be no id."""
        return complete_id(self.client, written, "run")

    def iterate_runs(
        self, said: Mapping[str, Any], *, before: str | None = None, page: int = PAGE
    ) -> Iterator[RunView]:
        """Iterate over the runs that ``said`` selects, as fields of ``RunFilter``, newest first; ``before`` a run."""
        params = {_PARAMS.get(name, name): value for name, value in said.items() if value not in (None, ())}
        return self.client.sheets(**self._of_tenant, **params, limit=min(page, PAGE), before=before or None)

    def find_idle_notice(self, run_id: str) -> str | None:
        """Write that no worker is alive, and what to do; ``None`` while one is. Over a server that is the operators'
        business. ``run_id`` names the run whose model would be needed."""
        settings = self._asked.settings
        if settings is None or self.client.workers():
            return None
        view = self.client.sheet(run_id).view
        return describe_idle_fleet(settings, view.endpoint, view.model)

    def find_notice(self, run_id: str, news: RunNews) -> str | None:
        """Write why a run does not move, once that has lasted long enough for its watcher to know; ``None`` before."""
        if news.standing is None:
            return None
        if (idle := self.find_idle_notice(run_id)) is not None:
            return idle
        return find_standing_notice(news.standing)

    def follow(self, run_id: str) -> Iterator[WireEvent | Notice]:
        """Iterate over everything that happens to a run until it has ended, and over notices in between. At a home it
        continues when one stack ends there and another starts."""
        watch = FamilyWatch()

        def load_notices() -> tuple[list[str], str | None]:
            news = self.client.run_news(run_id)
            return watch.render_changes(news), self.find_notice(run_id, news)

        last_id = "0"
        while True:
            try:
                for told in add_notices(self._iterate_events(run_id, last_id), load_notices):
                    last_id = told.id if isinstance(told, WireEvent) and told.id else last_id
                    yield told
                return
            except UnavailableError:
                if self._asked.settings is None:
                    raise
            # The stack that served this has ended: the rows are still there.
            self._asked = connect_home(self._asked.settings)
            self.client = self._asked.client

    def _iterate_events(self, run_id: str, after: str) -> Iterator[WireEvent]:
        for told in self.client.told_events(run_id, after=after):
            fields = dict(told.document)
            name, at = str(fields.pop("event", "")), fields.pop("timestamp", 0.0)
            fields.pop("run_id", None)
            yield WireEvent(id=told.id, name=name, at=float(at), fields=fields)


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
