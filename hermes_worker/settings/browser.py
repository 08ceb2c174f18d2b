"""The settings of browsers for sessions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import FILE, HOST, SWITCH, integer, number


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserSettings:
    """Browsers for sessions."""

    is_enabled: bool = declare_setting(
        "browser.enabled",
        "HERMES_BROWSER",
        SWITCH,
        False,
        audience="anyone",
        reason="agents should use web pages as people do; they have no browser without it.",
    )
    """Whether sessions have a browser: the tools `browser_*`. Their workers need the extra `browser`, and a process of
    `hermes-worker start browser` must run; `up` starts one."""
    chromium: Path | None = declare_setting(  # noqa: RUF009 - a field
        "browser.chromium",
        "HERMES_CHROMIUM",
        FILE,
        audience="operator",
        reason="Chromium is not on PATH, or not the one to use; no browser starts without it.",
    )
    """The Chromium to start. Not set: the one on PATH."""
    browsers_max: int = declare_setting(
        "browser.max",
        "HERMES_BROWSERS_MAX",
        integer(1, 200),
        4,
        audience="operator",
        reason="a host has little or much memory; four browsers run at a time without it.",
    )
    """Browsers of one host at a time; each takes some 300 MB."""
    idle_s: float = declare_setting(
        "browser.idle_s",
        "HERMES_BROWSER_IDLE_S",
        number(5, 86_400, "seconds"),
        600.0,
        audience="operator",
        reason="memory is short, or pages are slow to open anew; browsers stay for ten minutes without it.",
    )
    """Seconds after which a browser that nobody uses is ended. Its cookies are kept for the next one of its session."""
    host: str = declare_setting(
        "browser.host",
        "HERMES_BROWSER_HOST",
        HOST,
        "127.0.0.1",
        audience="operator",
        reason="workers are on other machines than browsers; they cannot connect without it.",
    )
    """Address on which a host lets workers in. What they say to each other is not encrypted."""
    address: str | None = declare_setting(
        "browser.address",
        "HERMES_BROWSER_ADDRESS",
        HOST,
        audience="operator",
        reason="a host is known by another name than it has; workers cannot find it without it.",
    )
    """What workers call this host. Not set: as `browser.host`, and the name of the machine if that is a wildcard."""
    has_cdp: bool = declare_setting(
        "browser.cdp",
        "HERMES_BROWSER_CDP",
        SWITCH,
        False,
        audience="developer",
        reason="agents need what no browser tool does; the DevTools protocol is closed to them without it.",
    )
    """Whether sessions have `browser_cdp` as well, which sends any command of the DevTools protocol to their page."""
