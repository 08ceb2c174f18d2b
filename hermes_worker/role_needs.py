"""What a role needs before it starts: the settings of its extensions, and the packages that its configuration takes.

A role that starts without them looks healthy and cannot do its work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from hermes_worker import plugins
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import explain_missing_extra
from hermes_worker.settings import Settings
from hermes_worker.settings.role_secrets import ProcessRole

_WITH_FILES = frozenset({ProcessRole.TOOLS, ProcessRole.SYSTEM, ProcessRole.API, ProcessRole.DELIVERY})
"""Roles that read or write files in object storage."""


def require_role_needs(settings: Settings, roles: Collection[ProcessRole]) -> None:
    """Check that processes of ``roles`` can do what the settings ask of them. Connects to nothing. Raises
    ``ConfigurationError`` that names all that is missing."""
    plugins.require_settings(settings, roles)
    if missing := list_missing_extras(settings, roles):
        raise ConfigurationError("; ".join(missing))


def list_missing_extras(settings: Settings, roles: Collection[ProcessRole]) -> list[str]:
    """List a clause for each extra that the settings need in processes of ``roles`` and that is not installed. Raises
    ``ConfigurationError`` for accounts that are configured wrongly."""
    found = {}
    for reason, extra in _list_needed(settings, roles):
        if extra not in found and (missing := explain_missing_extra(extra)):
            found[extra] = f"{reason}, and {missing}"
    return list(found.values())


def _list_needed(settings: Settings, roles: Collection[ProcessRole]) -> Iterator[tuple[str, str]]:
    """List the reasons for which an extra is needed, with its name."""
    if settings.tracing.endpoint is not None:
        yield "HERMES_TRACING_ENDPOINT is set", "otel"
    if settings.metrics.endpoint is not None:
        yield "HERMES_METRICS_ENDPOINT is set", "otel"
    if settings.log.endpoint is not None:
        yield "HERMES_LOG_ENDPOINT is set", "otel"
    if settings.object_storage.url is not None and not _WITH_FILES.isdisjoint(roles):
        yield "HERMES_OBJECT_STORAGE is set", "s3"
    if ProcessRole.MODEL in roles and not settings.model.is_scripted:
        yield from _list_wire_needs(settings)
    if ProcessRole.TOOLS in roles:
        if settings.terminal.workspace == "ssh" or settings.terminal.ssh_host:
            yield "workspaces on a host of ssh are configured", "ssh"
        if settings.terminal.workspace == "kubernetes":
            yield "HERMES_WORKSPACE is kubernetes", "kubernetes"
    if settings.browser.is_enabled and {ProcessRole.TOOLS, ProcessRole.BROWSER} & set(roles):
        yield "HERMES_BROWSER is true", "browser"
    if settings.gateway.is_enabled and ProcessRole.GATEWAY in roles:
        yield from _list_account_needs(settings)


def _list_wire_needs(settings: Settings) -> Iterator[tuple[str, str]]:
    from hermes_worker.models.build import list_wires
    from hermes_worker.models.catalog import list_wire_rows

    rows = list_wire_rows()
    for provider, wire in list_wires(settings):
        if extra := rows[wire].extra:
            yield f"{provider} is asked over the wire {rows[wire].name!r}", extra


def _list_account_needs(settings: Settings) -> Iterator[tuple[str, str]]:
    from hermes_worker.channels.inbound.declaration import InboundMode
    from hermes_worker.channels.receivers import list_gateway_accounts

    for one in list_gateway_accounts(settings.variables, settings.gateway.accounts):
        if one.mode is InboundMode.SOCKET and (extra := one.receiver.receiving.socket_extra):
            yield f"{one.account.removesuffix(':default')} is listened to over a websocket", extra
