"""The platforms that are listened to, as data: what each brings in, and what is needed for that. One row each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hermes_worker.channels.inbound.declaration import InboundMode, Receiving, receiving_by

RECEIVING: Mapping[str, Receiving] = MappingProxyType(
    {
        "telegram": receiving_by(
            "hermes_worker.channels.inbound.telegram",
            modes=(InboundMode.WEBHOOK, InboundMode.POLL),
            required={InboundMode.POLL: ("token",), InboundMode.WEBHOOK: ("webhook_secret",)},
            variables={
                "token": "TELEGRAM_BOT_TOKEN",
                "base_url": "TELEGRAM_BASE_URL",
                "webhook_secret": "TELEGRAM_WEBHOOK_SECRET",
                "bot_name": "TELEGRAM_BOT_USERNAME",
            },
            secrets=("token", "webhook_secret"),
            webhook_secrets=("webhook_secret",),
            also=("download",),
            is_unverified=True,
        ),
    }
)
"""By the platform's name in the catalogue."""
