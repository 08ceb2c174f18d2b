"""Files that no tool reads or writes, wherever the workspace is.

Defence in depth, not a sandbox: a shell command can read what the worker's user can read. What this stops is a model
that is talked into opening a credential through the file tools, which ask nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

_SECRET_NAMES = frozenset(
    {
        ".env",
        ".envrc",
        ".git-credentials",
        ".netrc",
        ".pgpass",
        ".pypirc",
        "id_dsa",
        "id_ecdsa",
        "id_ed25519",
        "id_rsa",
    }
)
_ENV_TEMPLATES = frozenset({".env.dist", ".env.example", ".env.sample", ".env.template"})
"""Documentation of what a ``.env`` needs; they are committed and hold no secrets."""
_SECRET_FOLDERS = frozenset({".aws", ".gnupg", ".ssh"})
_SECRETS_OF_HOME = (".azure", ".config/gcloud", ".config/gh", ".config/git/credentials", ".docker", ".kube", ".npmrc")
"""Ordinary names inside a project, credentials inside a home directory."""
_OPEN_IN_HERMES = "workspaces"
"""The part of the worker's own directory that tools may use: the workspaces of sessions. The rest decides what is asked
and who may answer (settings, database, keys, scripts, skills), and no tool reads or writes it.
"""
_KERNEL_FOLDERS = ("/dev", "/proc", "/sys")
"""``/proc/self/environ`` is a regular file, and it is the worker's own environment."""
_SYSTEM_SECRETS = ("/etc/gshadow", "/etc/shadow", "/etc/sudoers", "/etc/sudoers.d")
_SYSTEM_FILES = ("/etc/group", "/etc/passwd", "/etc/systemd")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProtection:
    """The rules for one machine."""

    home: str | None = None
    """The home directory that commands see."""
    hermes_home: str | None = None
    """The worker's own directory of settings and state."""

    def find_refusal(self, path: PurePosixPath, *, for_write: bool) -> str | None:
        """The reason why ``path`` (absolute) may not be used, as the end of a sentence; ``None`` when it may."""
        if (
            _is_secret_name(path)
            or _is_in(path, _SYSTEM_SECRETS)
            or _is_in(path, _join_below(self.home, _SECRETS_OF_HOME))
        ):
            return "holds credentials and is protected"
        if self._is_in_hermes_home(path):
            return "holds the state of hermes-worker and is protected"
        if _is_in(path, _KERNEL_FOLDERS):
            return "belongs to the system and is protected"
        if for_write and _is_in(path, _SYSTEM_FILES):
            return "may be read but not changed"
        return None

    def _is_in_hermes_home(self, path: PurePosixPath) -> bool:
        home = self.hermes_home
        return home is not None and _is_in(path, (home,)) and not _is_in(path, (f"{home}/{_OPEN_IN_HERMES}",))


def _is_secret_name(path: PurePosixPath) -> bool:
    # Some file systems do not tell upper from lower case, so neither do we.
    parts = [part.casefold() for part in path.parts]
    if _SECRET_FOLDERS.intersection(parts) or not parts:
        return bool(parts)
    return parts[-1] in _SECRET_NAMES or is_env_file(parts[-1])


def is_env_file(name: str) -> bool:
    """Whether a file of this name holds variables with secrets: ``.env``, ``.env.local``, ``.envrc`` ..."""
    folded = name.casefold()
    return folded in (".env", ".envrc") or (folded.startswith(".env.") and folded not in _ENV_TEMPLATES)


def _join_below(folder: str | None, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names) if folder else ()


def _is_in(path: PurePosixPath, places: tuple[str, ...]) -> bool:
    # Compared as text: ``is_relative_to`` takes 50 times as long, and a search asks about every name it finds.
    text = f"{path}/"
    return any(text.startswith(f"{place.rstrip('/')}/") for place in places)
