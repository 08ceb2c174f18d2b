"""Choose the directory that the agent of a chat works in: one that the person named, or said yes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hermes_worker.cli.chat.remembered import ChatFolder
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.paths import holds_state
from hermes_worker.settings import Settings

_REMOTE = "the agent works on the server and cannot see this directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenDirectory:
    """The directory of new conversations."""

    path: Path | None = None
    """``None`` where each conversation gets a directory of its own, where its workers are."""
    why_not: str = ""
    """Why the agent cannot see the current directory; empty where that is as the person said."""


def choose_directory(
    settings: Settings | None,
    folder: ChatFolder,
    *,
    named: Path | None,
    is_declined: bool,
    confirm: Callable[[Path], bool] | None,
) -> ChosenDirectory:
    """Choose the directory that the agent of a new conversation works in. ``settings`` is the home's configuration,
    ``None`` over ``--server``; ``confirm`` asks the person, ``None`` where nobody is there to be asked. The person's
    answer is kept in ``folder``. Raises ``ConfigurationError`` for a directory that is ``named`` and cannot be
    used."""
    if named is not None and is_declined:
        raise ConfigurationError("--workspace names a directory and --no-workspace wants none; give one of them")
    if is_declined:
        return ChosenDirectory()
    if settings is None:
        if named is not None:
            raise ConfigurationError("--workspace names a directory of this machine, and the run works on the server's")
        return ChosenDirectory(why_not=_REMOTE)
    if named is not None:
        return ChosenDirectory(path=_require_usable(named, settings.home))
    directory = _find_current_directory()
    if directory is None:
        return ChosenDirectory(why_not="the current directory is gone")
    if why := _find_objection(directory, settings):
        return ChosenDirectory(why_not=why)
    is_allowed = folder.read_choice(directory)
    if is_allowed is None and confirm is not None:
        is_allowed = confirm(directory)
        folder.note_choice(directory, is_allowed)
    return ChosenDirectory(path=directory if is_allowed else None)


def _require_usable(named: Path, home: Path) -> Path:
    directory = named.resolve()
    if not directory.is_dir():
        raise ConfigurationError(f"--workspace {str(named)!r} is not a directory")
    if holds_state(home, directory):
        raise ConfigurationError(f"--workspace {str(named)!r} holds the state of hermes-worker; choose another")
    return directory


def _find_current_directory() -> Path | None:
    try:
        return Path.cwd().resolve()
    except OSError:
        return None


def _find_objection(directory: Path, settings: Settings) -> str:
    """Say why a directory is not offered by itself; empty where it may be. A person can still name most of them."""
    kind = settings.terminal.workspace
    if kind != "local":
        return f"the agent works in a workspace of the kind {kind} and cannot see this directory"
    if holds_state(settings.home, directory):
        return "this directory holds the state of hermes-worker, so the agent does not work here"
    wide = {Path.home().resolve(): "your home directory", Path("/"): "the root of this machine"}
    is_above = directory in settings.home.resolve().parents
    what = wide.get(directory) or ("above the home of hermes-worker" if is_above else "")
    return f"this directory is {what}, so the agent does not work here; --workspace . lets it" if what else ""
