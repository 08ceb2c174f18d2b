"""Access to the database of a home or of a deployment, for the commands that work there themselves: ``run``, which
shows what the stack that it starts does, and ``workspaces``. All others call the API (``cli.api_connection``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hermes_worker import wiring
from hermes_worker.cli.api_connection import require_used_home
from hermes_worker.cli.event_notices import describe_idle_fleet, find_standing_notice
from hermes_worker.cli.follow import Sources
from hermes_worker.cli.options import act_as_this_user, get_chosen_tenant, load_client_settings
from hermes_worker.local.paths import find_embedded_broker_url
from hermes_worker.settings import Settings
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.runs import Runs
from hermes_worker.store.runs.status_reasons import Standings
from hermes_worker.store.runs.views import Views
from hermes_worker.store.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Readers and writers of the rows of one database."""

    settings: Settings
    database: Database
    tenant: str
    """The tenant whose runs, jobs and routes are meant."""
    views: Views
    standings: Standings
    runs: Runs
    workers: Workers

    @property
    def sources(self) -> Sources:
        return Sources(views=self.views, runs=self.runs, broker_url=self.find_broker_url)

    def find_broker_url(self) -> str | None:
        """Find the broker as it is now; an embedded one may have come or gone."""
        return self.settings.broker.url or find_embedded_broker_url(self.settings.home)

    def find_notice(self, run_id: str) -> str | None:
        """Write why a run does not move, once that has lasted long enough for its watcher to know; ``None`` before.
        Raises ``UnavailableError``."""
        if not self.workers.list_alive():
            view = self.views.load_run(run_id)
            return describe_idle_fleet(self.settings, view.endpoint, view.model)
        return find_standing_notice(self.standings.find_standing(run_id))


def open_records(home: Path | None) -> Records:
    """Open the database of a home. Raises ``ConfigurationError``, ``UnavailableError``."""
    return open_records_of(load_client_settings(home))


def open_records_of(settings: Settings) -> Records:
    """Open the database for the tenant that the command line names. Raises ``ConfigurationError``,
    ``UnavailableError``, ``TenantNotFound``."""
    require_used_home(settings)
    act_as_this_user()
    database = wiring.open_database(settings)
    return Records(
        settings=settings,
        database=database,
        tenant=Tenants(database).require_tenant(get_chosen_tenant()),
        views=Views(database),
        standings=Standings(database),
        runs=Runs(database),
        workers=Workers(database),
    )
