"""Build the host of browsers, and the way to it, from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database
from hermes_worker.workspaces.build import build_network_rules, build_sandbox

if TYPE_CHECKING:
    from hermes_worker.hosting.host import ResourceHost
    from hermes_worker.net.urls import UrlPolicy


def build_browser_services(settings: Settings, database: Database, policy: UrlPolicy) -> dict[str, object]:
    """The services by which tools use the browsers of sessions; empty where there are none."""
    if not settings.browser.is_enabled:
        return {}
    from hermes_worker.browser.visits import SessionBrowsers
    from hermes_worker.store.resources import Resources

    return {"browsers": SessionBrowsers(Resources(database), policy, build_network_rules(settings))}


def build_browser_host(settings: Settings, database: Database, *, name: str, alive_file: Path | None) -> ResourceHost:
    """Build the host of the browsers of this process. Raises ``NoBrowserHere``, ``OSError``."""
    from hermes_worker.browser.chromium import Chromium, find_chromium, require_confinement
    from hermes_worker.browser.host import build_browser_host
    from hermes_worker.browser.relay import BrowserRelay
    from hermes_worker.hosting.host import HostOptions, find_advertised_host
    from hermes_worker.store.resources import Resources

    chosen = settings.browser
    program, sandbox = find_chromium(chosen.chromium), build_sandbox(settings)
    require_confinement(sandbox)
    address = find_advertised_host(chosen.host, chosen.address)
    options = HostOptions(
        name=name,
        hosted_max=chosen.browsers_max,
        idle_s=chosen.idle_s,
        ttl_s=settings.lease.ttl_s,
        folder=settings.home / "browsers",
        alive_file=alive_file,
    )
    return build_browser_host(
        Resources(database),
        lambda folder: Chromium(program, folder, sandbox),
        options,
        lambda may_use: BrowserRelay(chosen.host.strip("[]"), address, may_use),
    )
