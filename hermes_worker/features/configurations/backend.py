"""``hermes-worker config`` on rows: the configuration of the fleet, of a tenant, and the overrides of a session, in the
database of a home or over a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.layout import format_moment, render_table, show_difference
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.short_ids import ShortKind

if TYPE_CHECKING:
    from hermes_worker.cli.api_connection import ApiConnection
    from hermes_worker.client import HermesClient
    from hermes_worker.schemas.settings import SettingObject

_LIVE = "Runs that are accepted from now on have it; what docs/settings.md does not call live is read at a start."
_VERSIONS_MAX = 100
"""Most versions that a server is asked for."""


def list_settings(asked: ApiConnection, **about: str | None) -> tuple[list[SettingObject], list[str]]:
    """List every setting with which the API accepts a run, or accepted one, and for a home notes to print beside.
    Raises ``HermesError``s of the client."""
    kinds: Mapping[str, ShortKind] = {"session_id": "session", "run_id": "run"}
    meant = {
        name: complete_id(asked.client, about[name] or "", kind) for name, kind in kinds.items() if about.get(name)
    }
    told = asked.client.told_settings(**{**about, **meant})
    if asked.settings is None:
        return told.data, []
    layers = [f"version {version} of the {layer}" for layer, version in told.layers.items()]
    return told.data, [
        f"home {asked.settings.home}, configuration {told.configuration}",
        *layers,
        *told.problems.values(),
    ]


class StoredConfiguration:
    """The configuration of the fleet, or of ``tenant``, or the overrides of ``session``."""

    def __init__(self, client: HermesClient, *, tenant: str | None, session: str | None) -> None:
        self._client = client
        self._tenant = tenant
        self._session = session

    @property
    def name(self) -> str:
        if self._session is not None:
            return f"the session {self._session}"
        return "the configuration of the fleet" if self._tenant is None else f"the configuration of {self._tenant}"

    def change(self, after: Callable[[str], str], said: Mapping[str, str], *, dry_run: bool) -> int:
        """Write what ``after`` makes of the text; for a session the overrides ``said``. Raises
        ``ConfigurationError``."""
        if self._session is not None:
            return self._override_for_session(self._session, said, dry_run=dry_run)
        client, tenant = self._client, self._tenant
        newest = client.configuration() if tenant is None else client.tenant_configuration(tenant)
        text = after(newest.text)
        show_difference(newest.text, text)
        if dry_run or text == newest.text:
            return 0
        if tenant is None:
            made = client.write_configuration(text, newest.version)
        else:
            made = client.write_tenant_configuration(tenant, text, newest.version)
        click.echo(f"Written as version {made.version}. {_LIVE}", err=True)
        return 0

    def print_versions(self, number: int | None) -> int:
        """List the versions, or print one. Raises ``ConfigurationError``."""
        if self._tenant is None:
            found = self._client.configuration_versions(_VERSIONS_MAX)
        else:
            found = self._client.tenant_configuration_versions(self._tenant, _VERSIONS_MAX)
        if number is not None:
            one = next((row for row in found if row.version == number), None)
            if one is None:
                raise ConfigurationError(f"{self.name} has no version {number}, or has it no more")
            click.echo(one.text, nl=False)
            return 0
        cells = [(str(row.version), format_moment(row.created_at), row.written_by or "-") for row in found]
        click.echo(render_table(cells, ("VERSION", "WRITTEN", "BY"), whole=(0,)) if cells else "none was written yet")
        return 0

    def _override_for_session(self, session: str, said: Mapping[str, str], *, dry_run: bool) -> int:
        wanted = {key: value or None for key, value in said.items()}
        if dry_run:
            click.echo("\n".join(f"{key}: {value}" for key, value in wanted.items()))
            return 0
        now = self._client.set_session_settings(session, wanted)
        click.echo("\n".join(f"{key}: {value}" for key, value in sorted(now.items())) or "nothing is said for it")
        return 0
