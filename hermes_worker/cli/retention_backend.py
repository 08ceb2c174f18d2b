"""What ``retention`` and ``prune`` need, as typed calls, and how a database and a server answer them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import click

from hermes_worker.cli.options import this_user
from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.server import read, server_client
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.retention import RetentionKind, RetentionRule, rule_of
from hermes_worker.store.retention.holds import HoldView, Retention
from hermes_worker.store.retention.pruner import note_prune
from hermes_worker.wiring import prune_files_here, pruner_of, retention_rules_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes_worker.client import HermesClient


class RetentionBackend(Protocol):
    """Rules and holds of one tenant. Each call raises ``HermesError``s that say what is wrong."""

    def rules(self) -> Mapping[RetentionKind, RetentionRule]: ...
    def set_rule(self, kind: RetentionKind, rule: RetentionRule) -> None: ...
    def unset_rule(self, kind: RetentionKind) -> None: ...
    def hold(self, reason: str, run_id: str | None, session_id: str | None) -> HoldView: ...
    def holds(self) -> Sequence[HoldView]: ...
    def release(self, number: int) -> None: ...
    def prune(self, *, is_dry: bool, all_tenants: bool) -> Iterator[tuple[str, int]]:
        """What was deleted, or would be, batch after batch: a kind, and how many."""


def open_retention(home: Path | None) -> RetentionBackend:
    """The server that was chosen, or the database of a home. Raises ``ConfigurationError``, ``UnavailableError``."""
    client = server_client()
    return LocalRetention(open_records(home)) if client is None else RemoteRetention(client)


class LocalRetention:
    """Asks a database."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._kept = Retention(records.database, retention_rules_of(records.settings))

    def rules(self) -> Mapping[RetentionKind, RetentionRule]:
        return self._kept.rules(self._records.tenant)

    def set_rule(self, kind: RetentionKind, rule: RetentionRule) -> None:
        self._kept.set_rule(self._records.tenant, kind, rule)

    def unset_rule(self, kind: RetentionKind) -> None:
        self._kept.unset_rule(self._records.tenant, kind)

    def hold(self, reason: str, run_id: str | None, session_id: str | None) -> HoldView:
        full_id = None if run_id is None else self._records.run_id(run_id)
        return self._kept.hold(
            self._records.tenant, reason=reason, by=this_user(), run_id=full_id, session_id=session_id
        )

    def holds(self) -> Sequence[HoldView]:
        return self._kept.holds(self._records.tenant)

    def release(self, number: int) -> None:
        self._kept.release(self._records.tenant, number)

    def prune(self, *, is_dry: bool, all_tenants: bool) -> Iterator[tuple[str, int]]:
        database, settings = self._records.database, self._records.settings
        tenant = None if all_tenants else self._records.tenant
        if not is_dry:
            note_prune(database, tenant)
        for batch in pruner_of(database, settings).steps(tenant=tenant, acts=not is_dry):
            yield batch.what, batch.count
        if not is_dry and tenant in (None, DEFAULT_TENANT):
            for kind, count in prune_files_here(database, settings).items():
                yield kind.value, count


class RemoteRetention:
    """Asks a server, which deletes for some seconds at each request."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def rules(self) -> Mapping[RetentionKind, RetentionRule]:
        told = self._client.retention_rules()
        known = [kind for kind in RetentionKind if kind.value in told]
        return {kind: rule_of(kind, told[kind.value]) for kind in sorted(known, key=list(told).index)}

    def set_rule(self, kind: RetentionKind, rule: RetentionRule) -> None:
        self._client.change_retention({kind.value: str(rule)})

    def unset_rule(self, kind: RetentionKind) -> None:
        self._client.change_retention({kind.value: None})

    def hold(self, reason: str, run_id: str | None, session_id: str | None) -> HoldView:
        from hermes_worker.cli.remote_backend import RemoteBackend

        full_id = None if run_id is None else RemoteBackend(self._client).run_id(run_id)
        return _hold_of(self._client.place_hold(reason, run_id=full_id, session_id=session_id))

    def holds(self) -> Sequence[HoldView]:
        return [_hold_of(told) for told in self._client.holds()]

    def release(self, number: int) -> None:
        self._client.release_hold(number)

    def prune(self, *, is_dry: bool, all_tenants: bool) -> Iterator[tuple[str, int]]:
        after: Mapping[str, str] | None = None
        while True:
            told = self._client.prune(dry_run=is_dry, all_tenants=all_tenants, after=after)
            yield from told["counts"].items()
            after = told["next"]
            if told["done"]:
                return
            if after is None:
                click.echo("there is more than the server counts in one request: at least so many", err=True)
                return


def _hold_of(told: Mapping[str, Any]) -> HoldView:
    return cast("HoldView", read(HoldView, told))
