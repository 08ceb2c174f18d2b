"""The database of a home or of a deployment, for commands that look at runs. None of them needs a broker."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hermes_worker import wiring
from hermes_worker.broker.queue import Publisher, redis_client
from hermes_worker.cli.follow import Sources
from hermes_worker.cli.layout import clock
from hermes_worker.cli.options import acts_as_this_user, chosen_tenant, client_settings
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.standing import StandingReason
from hermes_worker.local.paths import embedded_broker_url, has_no_rows
from hermes_worker.models.identity import STAND_IN, endpoint_identity
from hermes_worker.settings import Settings
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.families import Families
from hermes_worker.store.runs.runs import Runs
from hermes_worker.store.runs.standings import Standings
from hermes_worker.store.runs.trees import Trees
from hermes_worker.store.runs.views import RunView, Views
from hermes_worker.store.workers import Workers

_WORTH_SAYING_AFTER_S = {
    StandingReason.BEHIND_SESSION: 0.0,
    StandingReason.BEHIND_SIBLINGS: 0.0,
    StandingReason.WAITING_FOR_CHILDREN: 0.0,
    StandingReason.NO_WORKER: 1.0,
    StandingReason.DUE: 5.0,
    StandingReason.ASKING_MODEL: 10.0,
    StandingReason.CALLING_TOOLS: 10.0,
}
"""How long a run has to stand so before its watcher is told; for the rest there are events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What is known about runs."""

    settings: Settings
    database: Database
    tenant: str
    """Whose runs, jobs and routes are meant."""
    views: Views
    standings: Standings
    families: Families
    trees: Trees
    runs: Runs
    workers: Workers

    def run_id(self, written: str) -> str:
        """The id of the tenant's run that is meant by an id or by its beginning. Raises ``AmbiguousId``,
        ``RunNotFound``."""
        return Tenants(self.database).require_run(self.tenant, self.views.full_id(written, tenant=self.tenant))

    @property
    def sources(self) -> Sources:
        return Sources(views=self.views, runs=self.runs, broker_url=self.broker_url)

    def broker_url(self) -> str | None:
        """The broker as it is now; an embedded one may have come or gone."""
        return self.settings.broker.url or embedded_broker_url(self.settings.home)

    def notice(self, run_id: str) -> str | None:
        """Why a run does not move, for whoever watches it, once that is worth saying. Raises ``UnavailableError``."""
        if (idle := self.idle_notice(run_id)) is not None:
            return idle
        found = self.standings.of(run_id)
        patience_s = _WORTH_SAYING_AFTER_S.get(found.reason)
        if patience_s is None or (found.lasts_s or 0.0) < patience_s:
            return None
        since = f", since {clock(found.since)}" if found.since is not None else ""
        return f"{found.text}{since}"

    def idle_notice(self, run_id: str | None = None) -> str | None:
        """A sentence when no worker is there to do anything, else ``None``. ``run_id`` is whose model has to be asked.
        Raises ``UnavailableError``."""
        if self.workers.alive():
            return None
        if self.settings.broker.url:
            return "no worker is running; start one with 'hermes-worker worker'"
        flags = self._model_flags(run_id) if run_id is not None else ""
        return f"nothing runs on {str(self.settings.home)!r}; 'hermes-worker up{flags}' carries on from here"

    def _model_flags(self, run_id: str) -> str:
        """What ``up`` has to be told so that it asks whom the run was given to."""
        view = self.views.run(run_id)
        if view.endpoint in (None, STAND_IN, endpoint_identity(self.settings.model)):
            return ""
        return f" --base-url {shlex.quote(view.endpoint)} --model {shlex.quote(view.model)}"

    def tell_workers(self, verb: str, run_id: str, hints: Sequence[Hint]) -> None:
        """Send what a write left to be sent, best effort: the sweeper sends what does not arrive."""
        with self._publisher() as publisher:
            if publisher is not None:
                publisher.send(hints)
                publisher.nudge(verb, run_id)

    def tell_stopped(self, run_ids: Sequence[str], hints: Sequence[Hint]) -> None:
        """Tell the workers that these runs are being stopped, best effort."""
        with self._publisher() as publisher:
            if publisher is not None:
                publisher.tell_stopped(run_ids, hints)

    @contextmanager
    def _publisher(self) -> Iterator[Publisher | None]:
        """``None`` when there is no broker to talk to."""
        try:
            url = self.broker_url()
        except HermesError:
            url = None
        if url is None:
            yield None
            return
        client = redis_client(url)
        try:
            yield Publisher(client)
        finally:
            client.close()


def open_records(home: Path | None) -> Records:
    """Raises ``ConfigurationError``, ``UnavailableError``."""
    return records_of(client_settings(home))


def records_of(settings: Settings) -> Records:
    """Of the tenant that the command line names. Raises ``ConfigurationError``, ``UnavailableError``,
    ``TenantNotFound``."""
    require_begun(settings)
    acts_as_this_user()
    database = wiring.open_database(settings)
    return Records(
        settings=settings,
        database=database,
        tenant=Tenants(database).require_tenant(chosen_tenant()),
        views=Views(database),
        standings=Standings(database),
        families=Families(database),
        trees=Trees(database),
        runs=Runs(database),
        workers=Workers(database),
    )


def require_begun(settings: Settings) -> None:
    """Raises ``ConfigurationError`` for a home on which nothing has run yet; looking there creates nothing."""
    if has_no_rows(settings):
        raise ConfigurationError(
            f"nothing has run on {str(settings.home)!r} yet; start with 'hermes-worker run' or 'hermes-worker up', "
            "or name another directory with --home"
        )


def run_document(view: RunView, calls_by_status: Mapping[str, int]) -> dict[str, Any]:
    """A run as JSON: the names are those of ``RunView``."""
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
