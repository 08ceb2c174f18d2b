"""The settings of where answers and alerts are sent."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SWITCH, list_of_names, number


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """Where answers are sent. Credentials and home channels are read from the variables of their platforms."""

    alert_targets: tuple[str, ...] = declare_setting(
        "alerts.targets",
        "HERMES_ALERT_TARGETS",
        list_of_names(r"[^\s,]{1,300}", "targets such as telegram:-100"),
        (),
        audience="operator",
        reason="somebody should hear of trouble at once; it stands in the log alone without it.",
    )
    """Where operators are told what is wrong: a provider's key is closed, a run was quarantined, a target is dead, work
    waits too long. Not set: nowhere."""
    alert_backlog_age_s: float = declare_setting(
        "alerts.backlog_age_s",
        "HERMES_ALERT_BACKLOG_AGE_S",
        number(1.0, 604_800.0, "seconds"),
        600.0,
        audience="operator",
        reason="a wait of ten minutes is usual, or far too long; operators are told then without it.",
    )
    """How long work may wait for a worker before they are told."""
    allow_private_urls: bool = declare_setting(
        "delivery.allow_private_urls",
        "HERMES_DELIVERY_ALLOW_PRIVATE_URLS",
        SWITCH,
        False,
        audience="security",
        reason="answers go to a service of the intranet; such targets are refused without it.",
    )
    """Whether `webhook:` and `apprise:` targets may name addresses of the local network or of this machine."""
    media_dirs: tuple[str, ...] = declare_setting(
        "delivery.media_dirs",
        "HERMES_MEDIA_ALLOW_DIRS",
        list_of_names(r"/[^\x00-\x1f]{1,500}", "absolute directories"),
        (),
        audience="operator",
        reason="tools write files outside of the workspace; answers cannot take them along without it.",
    )
    """Directories whose files an answer may take along (`MEDIA:path`), beside the workspace of its session."""
    media_strict: bool = declare_setting(
        "delivery.media_strict",
        "HERMES_MEDIA_DELIVERY_STRICT",
        SWITCH,
        True,
        audience="security",
        reason="answers should take older files along; only those of the last ten minutes go without it.",
    )
    """Whether other files may be sent only within ten minutes after they were written. Credentials are never sent."""
    channels: tuple[str, ...] = declare_setting(
        "delivery.channels",
        "HERMES_DELIVERY_CHANNELS",
        list_of_names(
            r"[a-z_]{2,20}:[^=,\x00-\x1f]{1,100}=[^=,\s]{1,200}", "chats by name, such as slack:#ops=C0123ABCD"
        ),
        (),
        audience="operator",
        reason="chats have long ids; jobs must name them by these without it.",
    )
    """Names for chats: with `slack:#ops=C0123ABCD`, `slack:#ops` is a target."""
    filter_silence: bool = declare_setting(
        "delivery.filter_silence_narration",
        "HERMES_FILTER_SILENCE_NARRATION",
        SWITCH,
        True,
        audience="operator",
        reason='an answer such as "..." means something; it is withheld without it.',
    )
    """Whether an answer that only says that it says nothing (`*(silent)*`, `...`) is withheld from people."""
