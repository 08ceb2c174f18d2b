"""``hermes-worker config`` on rows: the configuration of the fleet, of a tenant, and what is said for a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from hermes_worker.cli.layout import moment, show_difference, table
from hermes_worker.cli.options import acts_as_this_user, chosen_tenant, this_user
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.services.configuring import say_for_session, write_configuration
from hermes_worker.settings import Settings
from hermes_worker.store.configurations import ConfigurationMoved, Configurations
from hermes_worker.wiring import open_client, open_database

_LIVE = "Runs that are accepted from now on have it; what docs/settings.md does not call live is read at a start."


class StoredConfiguration:
    """The configuration of the fleet, or of ``tenant``, or what is said for ``session``."""

    def __init__(self, settings: Settings, *, tenant: str | None, session: str | None) -> None:
        self._settings = settings
        self._tenant = tenant
        self._session = session

    @property
    def name(self) -> str:
        if self._session is not None:
            return f"the session {self._session}"
        return "the configuration of the fleet" if self._tenant is None else f"the configuration of {self._tenant}"

    def change(self, after: Callable[[str], str], said: Mapping[str, str], *, dry_run: bool) -> int:
        """Write what ``after`` makes of the text; for a session ``said``. Raises ``ConfigurationError``."""
        acts_as_this_user()
        if self._session is not None:
            return self._say(said, dry_run=dry_run)
        database = open_database(self._settings)
        try:
            newest = Configurations(database).find(self._tenant)
            before, version = ("", 0) if newest is None else (newest.text, newest.version)
            text = after(before)
            show_difference(before, text)
            if dry_run or text == before:
                return 0
            by = this_user()
            made = write_configuration(database, self._tenant, text, expected=version, written_by=by)
        except ConfigurationMoved as error:
            raise ConfigurationError(str(error)) from None
        finally:
            database.close()
        click.echo(f"Written as version {made.version}. {_LIVE}", err=True)
        return 0

    def versions(self, number: int | None) -> int:
        """List the versions, or print one. Raises ``ConfigurationError``."""
        database = open_database(self._settings)
        try:
            rows = Configurations(database)
            if number is None:
                found = rows.history(self._tenant)
            else:
                one = rows.find(self._tenant, number)
                if one is None:
                    raise ConfigurationError(f"{self.name} has no version {number}, or has it no more")
                click.echo(one.text, nl=False)
                return 0
        finally:
            database.close()
        cells = [(str(row.version), moment(row.created_at), row.written_by) for row in found]
        click.echo(table(cells, ("VERSION", "WRITTEN", "BY"), whole=(0,)) if cells else "none was written yet")
        return 0

    def _say(self, said: Mapping[str, str], *, dry_run: bool) -> int:
        assert self._session is not None
        client = open_client(self._settings)
        try:
            wanted = {key: value or None for key, value in said.items()}
            if dry_run:
                click.echo("\n".join(f"{key}: {value}" for key, value in wanted.items()))
                return 0
            now = say_for_session(client, chosen_tenant(), self._session, wanted)
        finally:
            client.close()
        click.echo("\n".join(f"{key}: {value}" for key, value in sorted(now.items())) or "nothing is said for it")
        return 0
