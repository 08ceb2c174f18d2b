"""Check what a job needs and does not have here, when it is written and not when it comes due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_worker.channels.adapters import EMAIL, build_credentials, build_email_credentials, load_adapters
from hermes_worker.channels.apprise_services import require_library
from hermes_worker.channels.build import build_dispatcher
from hermes_worker.channels.catalog import APPRISE, find_platform
from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.channels.targets import (
    Target,
    TargetError,
    normalize_deliver,
    parse_chat,
    parse_targets,
    resolve_targets,
)
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.principals import DEFAULT_TENANT, find_tenant_home
from hermes_worker.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The things that a job or a route is to use."""

    deliver: str | Sequence[str] | None = None
    origin: str | None = None
    script: str | None = None
    skills: Sequence[str] = ()
    toolsets: Sequence[str] = ()


def list_lacking(
    settings: Settings, needs: Needs, tenant: str = DEFAULT_TENANT, *, missing_skills: Sequence[str] = ()
) -> list[str]:
    """List a clause for each thing that cannot work with this home and these settings; a value that cannot even be
    parsed is left to the check of its form. ``missing_skills`` are the skills that do not exist."""
    home = find_tenant_home(settings.home, tenant)
    return [
        *_check_script(home / "scripts", needs.script),
        *(f"there is no skill {name!r}, here or below {str(home / 'skills')!r}" for name in missing_skills),
        *_check_toolsets(needs.toolsets),
        *_check_channels(build_dispatcher(settings), needs),
    ]


def require_all(
    settings: Settings, needs: Needs, tenant: str = DEFAULT_TENANT, *, missing_skills: Sequence[str] = ()
) -> None:
    """Raise ``ConfigurationError`` when something is lacking."""
    if found := list_lacking(settings, needs, tenant, missing_skills=missing_skills):
        raise ConfigurationError(
            f"this job cannot work: {'; '.join(found)}; put that right, or keep the job all the same with --force"
        )


def _check_script(scripts: Path, name: str | None) -> Iterator[str]:
    from hermes_worker.tasks.jobs.collect import resolve_script_path
    from hermes_worker.workspaces.base import WorkspaceError

    if not name:
        return
    try:
        resolve_script_path(scripts, name)
    except WorkspaceError:
        yield f"there is no script {name!r} below {str(scripts)!r}"


def _check_toolsets(names: Sequence[str]) -> Iterator[str]:
    from hermes_worker.agent.tools.catalog import get_declared_catalog

    try:
        get_declared_catalog().resolve(tuple(names)) if names else None
    except ConfigurationError as error:
        yield str(error).rstrip(".")


def _check_channels(dispatcher: Dispatcher, needs: Needs) -> Iterator[str]:
    try:
        origin = _parse_chat(needs.origin)
        wanted = parse_targets(normalize_deliver(needs.deliver, has_origin=origin is not None))
    except TargetError:
        return
    found = resolve_targets(wanted, origin=origin, homes=dispatcher.find_homes(), lookup=dispatcher.find_chat)
    for target in found.unresolved:
        yield f"nothing can be delivered to {target.reference!r} ({target.reason})"
    for platform in dict.fromkeys(target.platform for target in found.targets):
        try:
            _require_credentials(platform, dispatcher)
        except HermesError as error:
            yield str(error).rstrip(".")


def _parse_chat(origin: str | None) -> Target | None:
    """Parse the chat of an origin; ``None`` for one that is not on a platform."""
    platform, _, chat = (origin or "").partition(":")
    return parse_chat(platform, chat) if chat and find_platform(platform) is not None else None


def _require_credentials(platform: str, dispatcher: Dispatcher) -> None:
    """Raise ``ConfigurationError`` that names the variables which are missing."""
    if platform == APPRISE:
        require_library()
    elif platform == EMAIL:
        build_email_credentials(dispatcher.values)
    elif platform in load_adapters():
        build_credentials(platform, dispatcher.values)
