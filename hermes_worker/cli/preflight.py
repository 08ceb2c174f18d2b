"""Check what a job needs and does not have here, when it is written and not when it comes due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_worker.channels.adapters import EMAIL, adapters, credentials_for, email_credentials
from hermes_worker.channels.apprise_services import require_library
from hermes_worker.channels.catalog import APPRISE, platform_named
from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.targets import (
    Target,
    TargetError,
    normalize_deliver,
    parse_chat,
    parse_targets,
    resolve,
)
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.principals import DEFAULT_TENANT, tenant_home
from hermes_worker.settings import Settings
from hermes_worker.wiring import dispatcher_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The things that a job or a route is to use."""

    deliver: str | Sequence[str] | None = None
    origin: str | None = None
    script: str | None = None
    skills: Sequence[str] = ()
    toolsets: Sequence[str] = ()


def lacks(
    settings: Settings, needs: Needs, tenant: str = DEFAULT_TENANT, *, missing_skills: Sequence[str] = ()
) -> list[str]:
    """List a clause for each thing that cannot work with this home and these settings; a value that cannot even be
    parsed is left to the check of its form. ``missing_skills`` are the skills that do not exist."""
    home = tenant_home(settings.home, tenant)
    return [
        *_of_script(home / "scripts", needs.script),
        *(f"there is no skill {name!r}, here or below {str(home / 'skills')!r}" for name in missing_skills),
        *_of_toolsets(needs.toolsets),
        *_of_channels(dispatcher_of(settings), needs),
    ]


def require_all(
    settings: Settings, needs: Needs, tenant: str = DEFAULT_TENANT, *, missing_skills: Sequence[str] = ()
) -> None:
    """Raise ``ConfigurationError`` when something is lacking."""
    if found := lacks(settings, needs, tenant, missing_skills=missing_skills):
        raise ConfigurationError(
            f"this job cannot work: {'; '.join(found)}; put that right, or keep the job all the same with --force"
        )


def _of_script(scripts: Path, name: str | None) -> Iterator[str]:
    from hermes_worker.tasks.jobs.collect import script_path
    from hermes_worker.workspaces.base import WorkspaceError

    if not name:
        return
    try:
        script_path(scripts, name)
    except WorkspaceError:
        yield f"there is no script {name!r} below {str(scripts)!r}"


def _of_toolsets(names: Sequence[str]) -> Iterator[str]:
    from hermes_worker.agent.tools.catalog import declared_catalog

    try:
        declared_catalog().resolve(tuple(names)) if names else None
    except ConfigurationError as error:
        yield str(error).rstrip(".")


def _of_channels(dispatcher: Dispatcher, needs: Needs) -> Iterator[str]:
    try:
        origin = _chat(needs.origin)
        wanted = parse_targets(normalize_deliver(needs.deliver, has_origin=origin is not None))
    except TargetError:
        return
    found = resolve(wanted, origin=origin, homes=dispatcher.homes(), lookup=dispatcher.named)
    for target in found.unresolved:
        yield f"nothing can be delivered to {target.reference!r} ({target.reason})"
    for platform in dict.fromkeys(target.platform for target in found.targets):
        try:
            _require_credentials(platform, dispatcher)
        except HermesError as error:
            yield str(error).rstrip(".")


def _chat(origin: str | None) -> Target | None:
    """Parse the chat of an origin; ``None`` for one that is not on a platform."""
    platform, _, chat = (origin or "").partition(":")
    return parse_chat(platform, chat) if chat and platform_named(platform) is not None else None


def _require_credentials(platform: str, dispatcher: Dispatcher) -> None:
    """Raise ``ConfigurationError`` that names the variables which are missing."""
    if platform == APPRISE:
        require_library()
    elif platform == EMAIL:
        email_credentials(dispatcher.values)
    elif platform in adapters():
        credentials_for(platform, dispatcher.values)
