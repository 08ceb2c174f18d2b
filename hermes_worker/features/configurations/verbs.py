"""``hermes-worker config`` on rows: the configuration of the fleet, of a tenant, and the overrides of a session, in the
database of a home or over a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.layout import moment, show_difference, table
from hermes_worker.cli.reaching import api_client
from hermes_worker.cli.server import read
from hermes_worker.core.errors import ConfigurationError

if TYPE_CHECKING:
    from hermes_worker.cli.reaching import AskedApi
    from hermes_worker.client import HermesClient
    from hermes_worker.settings import ToldSetting

_LIVE = "Runs that are accepted from now on have it; what docs/settings.md does not call live is read at a start."
_VERSIONS_MAX = 100
"""Most versions that a server is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptConfiguration:
    """A version of a configuration. ``created_at`` in epoch seconds."""

    version: int
    text: str
    written_by: str
    created_at: float


def open_configurations(home: Path | None) -> ConfigurationRows:
    """Open the configurations of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return ConfigurationRows(api_client(home))


def told_by(asked: AskedApi, **about: str | None) -> tuple[list[ToldSetting], list[str]]:
    """List every setting with which the API accepts a run, or accepted one, and for a home notes to print beside.
    Raises ``HermesError``s of the client."""
    told = asked.client.told_settings(**about)
    found = [_read_setting(each) for each in told["data"]]
    if asked.settings is None:
        return found, []
    layers = [f"version {version} of the {layer}" for layer, version in told["layers"].items()]
    return found, [
        f"home {asked.settings.home}, configuration {told['configuration']}",
        *layers,
        *told["problems"].values(),
    ]


def _read_setting(told: Mapping[str, Any]) -> ToldSetting:
    from hermes_worker.settings import ToldSetting

    names = ("key", "variable", "value", "is_secret", "is_set", "layer", "origin")
    found: ToldSetting = read(ToldSetting, {**{name: told.get(name) for name in names}, "doc": told.get("description")})
    return found


class ConfigurationRows:
    """Configurations in rows; ``tenant`` is ``None`` for the fleet. The configuration of the fleet and of tenants is
    for keys of operators."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def newest(self, tenant: str | None) -> tuple[str, int]:
        told = self._client.configuration() if tenant is None else self._client.tenant_configuration(tenant)
        return str(told["text"]), int(told["version"])

    def write(self, tenant: str | None, text: str, *, expected: int) -> int:
        if tenant is None:
            told: dict[str, Any] = self._client.write_configuration(text, expected)
        else:
            told = self._client.write_tenant_configuration(tenant, text, expected)
        return int(told["version"])

    def kept(self, tenant: str | None) -> Sequence[KeptConfiguration]:
        if tenant is None:
            told = self._client.configuration_versions(_VERSIONS_MAX)
        else:
            told = self._client.tenant_configuration_versions(tenant, _VERSIONS_MAX)
        fields = KeptConfiguration.__slots__
        return [read(KeptConfiguration, {name: each.get(name) for name in fields}) for each in told]

    def say(self, session: str, wanted: Mapping[str, str | None]) -> Mapping[str, str]:
        return self._client.set_session_settings(session, wanted)


class StoredConfiguration:
    """The configuration of the fleet, or of ``tenant``, or the overrides of ``session``."""

    def __init__(self, backend: ConfigurationRows, *, tenant: str | None, session: str | None) -> None:
        self._backend = backend
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
            return self._say(self._session, said, dry_run=dry_run)
        before, version = self._backend.newest(self._tenant)
        text = after(before)
        show_difference(before, text)
        if dry_run or text == before:
            return 0
        made = self._backend.write(self._tenant, text, expected=version)
        click.echo(f"Written as version {made}. {_LIVE}", err=True)
        return 0

    def versions(self, number: int | None) -> int:
        """List the versions, or print one. Raises ``ConfigurationError``."""
        found = self._backend.kept(self._tenant)
        if number is not None:
            one = next((row for row in found if row.version == number), None)
            if one is None:
                raise ConfigurationError(f"{self.name} has no version {number}, or has it no more")
            click.echo(one.text, nl=False)
            return 0
        cells = [(str(row.version), moment(row.created_at), row.written_by) for row in found]
        click.echo(table(cells, ("VERSION", "WRITTEN", "BY"), whole=(0,)) if cells else "none was written yet")
        return 0

    def _say(self, session: str, said: Mapping[str, str], *, dry_run: bool) -> int:
        wanted = {key: value or None for key, value in said.items()}
        if dry_run:
            click.echo("\n".join(f"{key}: {value}" for key, value in wanted.items()))
            return 0
        now = self._backend.say(session, wanted)
        click.echo("\n".join(f"{key}: {value}" for key, value in sorted(now.items())) or "nothing is said for it")
        return 0
