"""The keys of encrypted texts: from a setting, its file, or the output of a command. Keys in a file and those of a
command may be changed while processes run.

No process hands on what it read anew: each reads for itself, so that one that is started later has the current keys.
The keys go to ``store``, which derives what it needs, and stay out of logs and errors.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hermes_worker.core.errors import ConfigurationError, format_reason
from hermes_worker.settings import Settings
from hermes_worker.settings.kinds import TEXT_KEYS
from hermes_worker.settings.role_secrets import is_secret
from hermes_worker.system.plainfiles import read_plain

FILE_VARIABLE = "HERMES_ENCRYPTION_KEYS_FILE"
ASK_AGAIN_S = 60.0
"""How often a command is run again."""
_ASK_AT_ONCE_S = 5.0
_TIMEOUT_S = 30.0
_BYTES_MAX = 65_536


def load_current_keys(settings: Settings) -> tuple[tuple[str, ...], FileOfKeys | CommandOfKeys | None]:
    """The keys of now, the first of which encrypts, and who knows when there are others; none at all when nothing is
    to be encrypted. Raises ``ConfigurationError``."""
    configured = settings.encryption
    handed = tuple(key.reveal() for key in configured.keys)
    if configured.keys_command:
        command = CommandOfKeys(configured.keys_command, settings.environ)
        return tuple(command.read_if_changed(at_once=True) or ()), command
    path = settings.secret_files.get(FILE_VARIABLE)
    if path is None or not handed:
        return handed, None
    file = FileOfKeys(path)
    try:
        return tuple(file.read_if_changed(at_once=True) or handed), file
    except ConfigurationError:
        return handed, file  # what whoever started us read there; the file is looked at again before texts are written


class FileOfKeys:
    """Keys in a file, separated by commas or white space. Looked at as often as it is asked for. Thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def read_if_changed(self, *, at_once: bool) -> Sequence[str] | None:
        """Return the keys, of which the first seals, if they differ from those returned last; else ``None``. Raises
        ``ConfigurationError``."""
        try:
            found = Path(self._path).stat()
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if seen == self._seen:
                return None
            text = read_plain(Path(self._path), bytes_max=_BYTES_MAX).decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = format_reason(error) if isinstance(error, OSError) else "it is not plain text"
            raise ConfigurationError(f"{FILE_VARIABLE} names {self._path!r}, which cannot be read: {reason}") from None
        keys = _parse_keys(text, f"{FILE_VARIABLE} names {self._path!r}, which")
        self._seen = seen
        return keys


class CommandOfKeys:
    """Keys that a command prints. It is run in a thread of its own once a minute, because it may ask a server; and at
    once when a key is missing. Thread-safe."""

    def __init__(self, command: str, environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = {name: value for name, value in environ.items() if not is_secret(name, value)}
        self._lock = threading.Lock()
        self._known: Sequence[str] = ()
        self._told: Sequence[str] = ()
        self._error: ConfigurationError | None = None
        self._asked_at = 0.0
        self._is_asking = False

    def read_if_changed(self, *, at_once: bool) -> Sequence[str] | None:
        """Return the keys, of which the first seals, if they differ from those returned last; else ``None``. Raises
        ``ConfigurationError``."""
        age_s = time.monotonic() - self._asked_at
        with self._lock:
            is_due = age_s >= (_ASK_AT_ONCE_S if at_once else ASK_AGAIN_S) and not self._is_asking
            self._is_asking = self._is_asking or is_due
        if is_due and at_once:
            self._run_and_keep()
        elif is_due:
            threading.Thread(target=self._run_and_keep, name="encryption-keys", daemon=True).start()
        if self._error is not None:
            raise self._error
        if self._known == self._told:
            return None
        self._told = self._known
        return self._known

    def _run_and_keep(self) -> None:
        try:
            self._known = self._run_command()
            self._error = None
        except ConfigurationError as error:
            self._error = error
        finally:
            self._asked_at = time.monotonic()
            self._is_asking = False

    def _run_command(self) -> Sequence[str]:
        said = "the command in HERMES_ENCRYPTION_KEYS_COMMAND (encryption.keys_command)"
        try:
            done = subprocess.run(
                shlex.split(self._command),
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=True,
            )
            text = done.stdout[:_BYTES_MAX].decode("ascii")
        except subprocess.TimeoutExpired:
            raise ConfigurationError(f"{said} took longer than {_TIMEOUT_S:.0f} seconds") from None
        except subprocess.CalledProcessError as error:
            raise ConfigurationError(f"{said} failed with status {error.returncode}; run it by hand") from None
        except OSError as error:
            raise ConfigurationError(f"{said} cannot be run: {format_reason(error)}") from None
        except ValueError:  # of what it printed, or of its quotes
            raise ConfigurationError(f"{said} cannot be read, or does not print plain text") from None
        return _parse_keys(text, said)


def _parse_keys(text: str, said: str) -> tuple[str, ...]:
    try:
        keys = TEXT_KEYS.parse(text)
    except (ValueError, TypeError):
        keys = ()
    if not keys:
        # Nothing of it is shown: it may be half a key.
        raise ConfigurationError(f"{said} must give {TEXT_KEYS.allowed}")
    return tuple(key.reveal() for key in keys)
