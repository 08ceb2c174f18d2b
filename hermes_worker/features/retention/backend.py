"""The API's operations on retention, as typed calls for the verbs of ``retention`` and ``prune``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hermes_worker.cli.reaching import api_client
from hermes_worker.cli.server import read
from hermes_worker.cli.short_ids import whole_id, whole_session
from hermes_worker.features.retention.hold_rows import HoldView
from hermes_worker.features.retention.rules import RetentionKind, RetentionRule, rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes_worker.client import HermesClient


def open_retention(home: Path | None) -> RetentionRows:
    """Open the retention of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return RetentionRows(api_client(home))


class RetentionRows:
    """Rules and holds of one tenant. The API deletes for some seconds at each request."""

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
        full_id = None if run_id is None else whole_id(self._client, run_id, "run")
        whole = None if session_id is None else whole_session(self._client, session_id)
        return _hold_of(self._client.place_hold(reason, run_id=full_id, session_id=whole))

    def holds(self) -> Sequence[HoldView]:
        return [_hold_of(told) for told in self._client.holds()]

    def release(self, number: int) -> None:
        self._client.release_hold(number)

    def prune(self, *, is_dry: bool, all_tenants: bool) -> Iterator[tuple[str, int]]:
        """Yield what was deleted, or would be, batch after batch: a kind, and how many."""
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
