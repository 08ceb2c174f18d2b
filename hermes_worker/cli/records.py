"""The database of a home or of a deployment, for commands that look at runs. None of them needs a broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hermes_worker import wiring
from hermes_worker.cli.follow import Sources
from hermes_worker.cli.options import client_settings
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.run import CallStatus
from hermes_worker.embedded.paths import embedded_broker_url
from hermes_worker.queue import Publisher, redis_client
from hermes_worker.settings import Settings
from hermes_worker.store.database import Database
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs import Runs
from hermes_worker.store.trees import Trees
from hermes_worker.store.views import CallView, RunView, Views
from hermes_worker.store.workers import Workers

CALLS_SHOWN_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What is known about runs."""

    settings: Settings
    database: Database
    views: Views
    trees: Trees
    runs: Runs
    workers: Workers

    @property
    def sources(self) -> Sources:
        return Sources(views=self.views, runs=self.runs, broker_url=self.broker_url)

    def broker_url(self) -> str | None:
        """The broker as it is now; an embedded one may have come or gone."""
        return self.settings.broker.url or embedded_broker_url(self.settings.home)

    def idle_notice(self) -> str | None:
        """A sentence when no worker is there to do anything, else ``None``. Raises ``UnavailableError``."""
        if self.workers.alive():
            return None
        if self.settings.broker.url:
            return "no worker is running; start one with 'hermes-worker worker'"
        return f"nothing runs on {str(self.settings.home)!r}; 'hermes-worker up' carries on from here"

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
    """Raises ``ConfigurationError``, ``UnavailableError``."""
    if settings.database.url is None and not (settings.home / "hermes-worker.db").exists():
        raise ConfigurationError(
            f"nothing has run on {str(settings.home)!r} yet; start with 'hermes-worker run' or 'hermes-worker up', "
            "or name another directory with --home"
        )
    database = wiring.open_database(settings)
    return Records(
        settings=settings,
        database=database,
        views=Views(database),
        trees=Trees(database),
        runs=Runs(database),
        workers=Workers(database),
    )


def run_document(view: RunView, calls: Sequence[CallView]) -> dict[str, Any]:
    """A run as JSON: the names are those of ``RunView``."""
    statuses = Counter(call.status.value for call in calls)
    return {
        **asdict(view),
        "status": view.status.value,
        "cost_usd": None if view.cost_usd is None else float(view.cost_usd),
        "is_completed": view.is_completed,
        "is_partial": view.is_partial,
        "is_failed": view.is_failed,
        "is_interrupted": view.is_interrupted,
        "tool_calls": dict(statuses),
    }


def unknown_calls(calls: Sequence[CallView]) -> list[CallView]:
    """Calls whose worker vanished and whose effect nobody knows."""
    return [call for call in calls if call.status is CallStatus.UNKNOWN]
