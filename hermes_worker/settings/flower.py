"""The settings of Flower."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import HOST, SECRET, Secret, integer


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerSettings:
    """Flower, the web page that Celery engineers know (`hermes-worker start flower`)."""

    host: str = declare_setting(
        "flower.host",
        "HERMES_FLOWER_HOST",
        HOST,
        "127.0.0.1",
        audience="operator",
        reason="Flower is opened from other machines; only this one can without it.",
    )
    """Address to listen on."""
    port: int = declare_setting(
        "flower.port",
        "HERMES_FLOWER_PORT",
        integer(0, 65_535),
        5555,
        audience="operator",
        reason="the port 5555 is taken; Flower cannot start then without it.",
    )
    """TCP port to listen on; 0 takes a free one."""
    password: Secret | None = declare_setting(  # noqa: RUF009 - a field
        "flower.password",
        "HERMES_FLOWER_PASSWORD",
        SECRET,
        audience="operator",
        reason="Flower is used at all; it does not start without it.",
    )
    """The password of that user. Without one Flower does not start."""
