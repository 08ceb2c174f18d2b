"""The key of the API, which every client of the API needs.

An operator may set one (``server.key``). Otherwise the home directory holds one in a file that only its owner reads,
and that no command of an agent sees; the first process to serve the API makes it. It stays in that file: it is not
handed on in an environment, on a command line or in a log.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path

from hermes_worker.core.errors import ConfigurationError, format_reason
from hermes_worker.settings import Settings
from hermes_worker.settings.kinds import SERVER_KEY, Secret
from hermes_worker.settings.sealing import Keyring
from hermes_worker.system.plainfiles import read_plain

KEY_PREFIX = "hwk_"
"""What our keys begin with, so that one that turns up in a text is known for a secret by its shape."""
_RANDOM_BYTES = 32
_FILE_BYTES_MAX = 4096
_FINGERPRINT_CHARS = 8
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def get_key_file_path(home: Path) -> Path:
    """Return the path of the file with the server key of an installation whose settings name none."""
    return home / "api.key"


def find_server_key(settings: Settings) -> Secret | None:
    """The key, for who talks to the API; ``None`` when none was made yet. Raises ``ConfigurationError``."""
    return settings.server.key or _read_key(get_key_file_path(settings.home))


def keep_server_key(settings: Settings) -> Secret:
    """The key, for who serves the API; made when there is none. Any number of processes may ask at once: they get the
    same. Raises ``ConfigurationError``."""
    return find_server_key(settings) or _make_key(get_key_file_path(settings.home))


def build_keyring(settings: Settings, *, makes: bool = False) -> Keyring:
    """What opens secrets in rows, and seals them with the current key. ``makes``: one is made where none is needed but
    that of this home, which has its own database. Raises ``ConfigurationError``."""
    is_alone = settings.database.url is None
    current = keep_server_key(settings) if makes and is_alone else find_server_key(settings)
    held = (current, *settings.server.previous_keys, _read_key(get_key_file_path(settings.home)))
    return Keyring([key for key in held if key])


def describe_key_place(settings: Settings) -> str:
    """Say where the server key is: its setting, or the path of its file."""
    return "server.key (HERMES_SERVER_KEY)" if settings.server.key else str(get_key_file_path(settings.home))


def is_open_to_others(settings: Settings) -> bool:
    """Whether other users of this machine may read the file of the key."""
    try:
        mode = get_key_file_path(settings.home).stat().st_mode
    except OSError:
        return False
    return settings.server.key is None and bool(mode & _OTHERS)


def compute_fingerprint(key: Secret) -> str:
    """A name for the key that tells nothing of it."""
    return hashlib.sha256(key.reveal().encode()).hexdigest()[:_FINGERPRINT_CHARS]


def _read_key(path: Path) -> Secret | None:
    try:
        text = read_plain(path, bytes_max=_FILE_BYTES_MAX).decode("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable_error(path, _format_reason(error)) from error
    return _check_key(path, text) if text else None


def _make_key(path: Path) -> Secret:
    """Make the key. The file's lock lets one process write it; the others read what that one wrote."""
    import fcntl  # not on Windows, where nobody makes a key

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if text := file.read().strip():
                return _check_key(path, text)
            os.fchmod(file.fileno(), 0o600)  # an empty file may have been somebody else's idea
            key = f"{KEY_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}"
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())
            return Secret(key)
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable_error(path, _format_reason(error)) from error


def _check_key(path: Path, text: str) -> Secret:
    try:
        return SERVER_KEY.parse(text)
    except ValueError as error:
        raise _unusable_error(path, f"it must hold {SERVER_KEY.allowed}") from error


def _format_reason(error: OSError | UnicodeDecodeError) -> str:
    # What cannot be decoded is not shown: it may be a key.
    return format_reason(error) if isinstance(error, OSError) else "it is not plain text"


def _unusable_error(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"the API's key in {str(path)!r} cannot be used ({reason}); correct it, or remove it to have a new key made"
    )
