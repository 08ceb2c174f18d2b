"""Keep the secrets of webhook routes encrypted with the current server key."""

from __future__ import annotations

from hermes_worker.features.webhooks.rows import RouteRow, Webhooks
from hermes_worker.features.webhooks.rules.sealed import reseal_secret
from hermes_worker.observe import log
from hermes_worker.settings import Settings
from hermes_worker.settings.sealing import SealedElsewhere
from hermes_worker.settings.server_key import build_keyring
from hermes_worker.store.engine.database import Database


def reseal_routes(settings: Settings, database: Database) -> None:
    """Encrypt what an earlier version stored in the clear, and what was sealed with an earlier key. Idempotent."""
    keyring = build_keyring(settings)

    def change(row: RouteRow) -> str | None:
        try:
            return reseal_secret(keyring, row.full_name, row.secret)
        except SealedElsewhere as error:
            log.error("webhook.locked", route=row.full_name, reason=str(error))
            return None

    if changed := Webhooks(database).reseal(change):
        log.info("webhook.sealed", routes=changed)
