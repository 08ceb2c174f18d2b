"""The role ``browser``: owns the browsers of one machine (``hosting.host``), each with a way to it (``relay``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hermes_worker.browser.chromium import Chromium
from hermes_worker.browser.relay import BrowserRelay, DevTools
from hermes_worker.hosting.host import HostOptions, ResourceHost
from hermes_worker.store.resources import ResourceKind, Resources, ResourceView


class StartBrowser(Protocol):
    def __call__(self, folder: Path) -> Chromium:
        """Start a browser with its profile in ``folder``. Raises ``NoBrowserHere``."""


@dataclass(frozen=True, slots=True)
class _HostedBrowser:
    name: str
    endpoint: str
    chromium: Chromium
    tools: DevTools
    relay: BrowserRelay

    @property
    def pid(self) -> int:
        return self.chromium.pid

    @property
    def has_ended(self) -> bool:
        return self.tools.closed.is_set()

    def keep_alive(self) -> None:
        self.chromium.keep_alive()

    def end(self) -> None:
        self.relay.close(self.name)
        self.chromium.end()


def build_browser_host(
    rows: Resources,
    start: StartBrowser,
    options: HostOptions,
    relay_of: Callable[[Callable[[str, str], bool]], BrowserRelay],
) -> ResourceHost:
    """The host of the browsers of this process. ``relay_of`` makes the server, given the function that says which call
    may use which browser. Raises ``OSError``.
    """

    def start_browser(resource: ResourceView, folder: Path) -> _HostedBrowser:
        name = resource.resource_id
        chromium = start(folder)
        try:
            endpoint, tools = relay.open(name, chromium.commands, chromium.events, chromium.keep_alive)
        except BaseException:
            chromium.end()
            raise
        return _HostedBrowser(name, endpoint, chromium, tools, relay)

    host = ResourceHost(rows, ResourceKind.BROWSER, start_browser, options)
    relay = relay_of(host.may_use)
    return host
