"""``doctor``'s finding about webhook routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.local.paths import has_no_rows
from hermes_worker.settings import Settings


def list_checks(settings: Settings) -> Iterator[tuple[str, Callable[[], tuple[Grade, str]]]]:
    """List the check of webhook routes."""
    yield "webhooks", partial(check_routes, settings)


def check_routes(settings: Settings) -> tuple[Grade, str]:
    """Check whether the secrets of all routes can be decrypted, and are encrypted with the current key."""
    from hermes_worker.features.webhooks.rows import Webhooks
    from hermes_worker.features.webhooks.rules.sealed import open_secret, reseal_secret
    from hermes_worker.settings.sealing import SealedElsewhere
    from hermes_worker.settings.server_key import build_keyring
    from hermes_worker.wiring import open_database

    if has_no_rows(settings):
        return Grade.OK, "no routes"
    keyring = build_keyring(settings)
    with closing(open_database(settings)) as database:
        rows = Webhooks(database).list_all_tenants()
    for row in rows:
        try:
            open_secret(keyring, row.full_name, row.secret)
        except SealedElsewhere as error:
            return Grade.BROKEN, str(error)
    if old := [row.full_name for row in rows if reseal_secret(keyring, row.full_name, row.secret)]:
        return (
            Grade.NOTE,
            f"not encrypted with the current server key: {', '.join(old)}; an API that starts does it",
        )
    return Grade.OK, f"{len(rows)} routes, secrets encrypted" if rows else "no routes"
