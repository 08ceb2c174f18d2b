"""One Chromium: found, started where a command of a stranger is started, and ended with everything it started.

A page is a program of a stranger. So Chromium runs where commands of a guest run (``workspaces.sandbox``): it sees the
system's directories, its own profile and nothing else, it has no network but the proxy that judges each connection,
and the kernel ends all of its processes with the first one. Its own sandbox needs what such a command may not do, so it
is off, and without bubblewrap there is no browser at all. DevTools is spoken over two pipes; nothing listens anywhere.

A shell inside starts it and reads a third pipe. The host writes a line to it with each renewal of its leases: when the
host is killed the pipe ends, and when it is frozen the lines stay out; either way the shell ends, and so does all.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from hermes_worker.core.errors import HermesError, reason_of
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.guardian import TAG_VARIABLE, guardian
from hermes_worker.workspaces.sandbox.helper.keeper import FIRST_DESCRIPTOR
from hermes_worker.workspaces.sandbox.keeping import Launch, kept
from hermes_worker.workspaces.sandbox.ladder import Sandbox
from hermes_worker.workspaces.sandbox.network import PROXY_PORT, Network, RunOrigin
from hermes_worker.workspaces.sandbox.policy import CommandLimits

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
SILENCE_S: Final = 20
"""Without a line from its host for so long, a browser ends itself."""
PAGE: Final = RunOrigin(source="cli", tenant="page")
"""What a page is to the sandbox: a guest, with the proxy at most."""
_FIRST = FIRST_DESCRIPTOR
_WRAPPER: Final = (
    f"exec 3<&{_FIRST} 4>&{_FIRST + 1} 5<&{_FIRST + 2} {_FIRST}<&- {_FIRST + 1}>&- {_FIRST + 2}<&-; "
    f'"$@" 5<&- & exec 3<&- 4>&-; while read -r -t {SILENCE_S} -u 5 _; do :; done; exit 0'
)
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
"""Where Debian's shell script, which reads settings of users, has the program itself."""
_END_S: Final = 10.0


class NoBrowserHere(HermesError):
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
    """Raises ``NoBrowserHere`` where a browser could not be confined."""
    standing = sandbox.standing()
    if standing.name != "bubblewrap":
        why = "; ".join(standing.reasons) or "commands are confined otherwise"
        raise NoBrowserHere(f"a browser is confined by bubblewrap or not started, and {why}")


def missing_extra() -> str | None:
    """What to install for hosts and tools; ``None`` when it is there."""
    lacking = [name for name in ("playwright", "websockets") if find_spec(name) is None]
    return f"{' and '.join(lacking)} is missing: pip install 'hermes-worker[browser]'" if lacking else None


class Chromium:
    """A running browser. ``commands`` is written to and ``events`` read from, as DevTools has them: JSON, each message
    with a NUL behind it."""

    def __init__(self, program: str, folder: Path, sandbox: Sandbox, flags: Sequence[str] = ()) -> None:
        """Start one with its profile in ``folder``, which is made and, at the end, removed. Raises
        ``NoBrowserHere``."""
        self._folder = folder
        self._held = ExitStack()
        try:
            self._start(program, sandbox, flags)
        except (OSError, ValueError, WorkspaceError) as error:
            self._held.close()
            self._remove()
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            raise NoBrowserHere(f"the browser could not be started: {reason}") from error

    def _start(self, program: str, sandbox: Sandbox, flags: Sequence[str]) -> None:
        require_confinement(sandbox)
        self._folder.mkdir(parents=True, mode=0o700)
        folder = str(self._folder.resolve())
        confined = sandbox.confine(folder, PAGE)
        if confined is None or confined.network is not Network.PROXY:
            raise WorkspaceError("a browser has the network of a guest, which is none here (terminal.network)")
        tag = secrets.token_hex(8)
        command = self._held.enter_context(
            kept(confined.confinement, tag=tag, limits=CommandLimits(cpu_s=None, file_bytes=1024**3))
        )
        with ExitStack() as theirs:
            commands_in, self.commands = self._pipe(theirs, is_read_by_us=False)
            events_out, self.events = self._pipe(theirs, is_read_by_us=True)
            life_in, self._life = self._pipe(theirs, is_read_by_us=False)
            entrance = guardian.entrance()
            theirs.callback(os.close, entrance)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            theirs.callback(os.close, nowhere)
            launch = Launch(
                cwd=folder,
                env={
                    "PATH": "/usr/bin:/bin",
                    "HOME": folder,
                    "LANG": "C.UTF-8",
                    **command.variables,
                    TAG_VARIABLE: tag,
                },
                outputs=(nowhere, nowhere),
                entrance=entrance,
                for_command=(commands_in, events_out, life_in),
            )
            argv = [program, *_FLAGS, *flags, f"--user-data-dir={folder}/profile", "about:blank"]
            self._process = command.start(
                ["/bin/bash", "--noprofile", "--norc", "-c", _WRAPPER, "browser", *argv], launch
            )
        guardian.entered(self._process.pid, tag)
        os.set_blocking(self._life, False)

    def _pipe(self, theirs: ExitStack, *, is_read_by_us: bool) -> tuple[int, int]:
        """Their end, and ours."""
        read_end, write_end = os.pipe()
        their, our = (write_end, read_end) if is_read_by_us else (read_end, write_end)
        theirs.callback(os.close, their)
        self._held.callback(_close, our)
        return their, our

    @property
    def pid(self) -> int:
        """Of the process that keeps it."""
        return self._process.pid

    def keep_alive(self) -> None:
        """Let it live ``SILENCE_S`` seconds longer."""
        with suppress(BlockingIOError, BrokenPipeError, OSError):
            os.write(self._life, b"\n")

    def end(self) -> None:
        """End all of its processes and delete its profile. Idempotent."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGUSR1)  # a keeper ends everything at once
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                return  # stuck in the kernel; the guardian keeps it listed
            guardian.release(self._process.pid)
            self._held.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)
