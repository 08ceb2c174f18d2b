"""One Chromium: found, started as confined as a stranger's command, and ended with everything it started.

A page is a program of a stranger. So Chromium runs where commands of a guest run (``workspaces.sandbox``): it sees the
system's directories, its own profile and nothing else, it has no network but the proxy that judges each connection, and
the kernel ends all of its processes with the first one. Its own sandbox needs what such a command may not do, so it is
off, and without bubblewrap there is no browser at all. DevTools is spoken over two pipes; nothing listens anywhere.

``hosting.program`` starts and ends it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hermes_worker.core.errors import format_reason
from hermes_worker.hosting.program import ConfinedProgram, NotStarted, ProgramPlan
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.network import PROXY_PORT, Network, RunOrigin
from hermes_worker.workspaces.sandbox.policy import CommandLimits

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PAGE: Final = RunOrigin(source="cli", tenant="page")
"""The origin of a page for the sandbox: a guest, with the proxy at most."""
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--remote-debugging-pipe",
    f"--proxy-server=http://127.0.0.1:{PROXY_PORT}",
    # Also what a page calls localhost is asked of the proxy, which judges it.
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    # A page that comes back from it is one that the library does not see come.
    "--disable-back-forward-cache",
    "--deny-permission-prompts",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-print-preview",
    "--disable-notifications",
    "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider,InterestFeedContentSuggestions,"
    "CertificateTransparencyComponentUpdater,GlobalMediaControls,HttpsUpgrades,WebUSB,WebBluetooth",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
    "--use-mock-keychain",
    "--window-size=1280,900",
    "--force-color-profile=srgb",
)
_WRAPPERS: Final = {"chromium": "/usr/lib/chromium/chromium", "chromium-browser": "/usr/lib/chromium/chromium"}
"""Paths of the program itself behind Debian's shell script, which reads settings of users."""


class NoBrowserHere(NotStarted):
    """This machine cannot start a browser; the message says what is missing."""


def find_chromium(configured: Path | None) -> str:
    """The program to start. Raises ``NoBrowserHere``."""
    if configured is not None:
        if not os.access(configured, os.X_OK):
            raise NoBrowserHere(f"browser.chromium (HERMES_CHROMIUM) is {str(configured)!r}, which cannot be run")
        return str(configured)
    for name in PROGRAMS:
        if found := shutil.which(name):
            own = _WRAPPERS.get(name, found)
            return own if os.access(own, os.X_OK) else found
    raise NoBrowserHere(
        "no Chromium was found: install one (apt-get install chromium), or name it with HERMES_CHROMIUM "
        "(browser.chromium)"
    )


def require_confinement(sandbox: Sandbox) -> None:
    """Raise ``NoBrowserHere`` where a browser could not be confined."""
    standing = sandbox.find_backend()
    if standing.name != "bubblewrap":
        why = "; ".join(standing.reasons) or "commands are confined otherwise"
        raise NoBrowserHere(f"a browser is confined by bubblewrap or not started, and {why}")


class Chromium:
    """A running browser. ``commands`` is written to and ``events`` read from, in DevTools' form: JSON, each message
    with a NUL behind it.
    """

    def __init__(self, program: str, folder: Path, sandbox: Sandbox, flags: Sequence[str] = ()) -> None:
        """Start one with its profile in ``folder``, which is made and, at the end, removed. Raises
        ``NoBrowserHere``."""
        require_confinement(sandbox)
        try:
            folder.mkdir(parents=True, mode=0o700)
            home = str(folder.resolve())
            confined = sandbox.plan_confinement(home, PAGE)
            if confined is None or confined.network is not Network.PROXY:
                raise WorkspaceError("a browser has the network of a guest, which is none here (terminal.network)")
            plan = ProgramPlan(
                argv=[program, *_FLAGS, *flags, f"--user-data-dir={home}/profile", "about:blank"],
                cwd=home,
                env={"PATH": "/usr/bin:/bin"},
                limits=CommandLimits(cpu_s=None, file_bytes=1024**3),
            )
            self._program = ConfinedProgram(plan, folder, confined)
        except (OSError, WorkspaceError, NotStarted) as error:
            shutil.rmtree(folder, ignore_errors=True)
            reason = format_reason(error) if isinstance(error, OSError) else str(error)
            raise NoBrowserHere(f"the browser could not be started: {reason}") from error
        self.commands, self.events = self._program.to_program, self._program.from_program

    @property
    def pid(self) -> int:
        """The id of the process that keeps it."""
        return self._program.pid

    def keep_alive(self) -> None:
        """Let it live some seconds longer (``hosting.program.SILENCE_S``)."""
        self._program.keep_alive()

    def end(self) -> None:
        """End all of its processes and delete its profile. Idempotent."""
        self._program.end()
