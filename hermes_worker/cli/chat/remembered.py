"""What a chat keeps on the person's machine: the last conversation, by server, the directories that
agents may work in, and the lines typed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from hermes_worker.observe import log

_PLACES_MAX = 100
_DIRECTORIES_MAX = 1_000


class ChatFolder:
    """A directory in the home, for its owner alone. A file that cannot be read or written is done without."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "chat"

    def read_last_session(self, place: str) -> str | None:
        """Read the last conversation at a server; ``None`` where it is unknown."""
        found = self._read("sessions.json").get(place)
        return found if isinstance(found, str) else None

    def note_session(self, place: str, session_id: str) -> None:
        """Note the last conversation at a server. Idempotent."""
        sessions = self._read("sessions.json")
        if sessions.get(place) == session_id:
            return
        sessions.pop(place, None)
        newest = dict(list({**sessions, place: session_id}.items())[-_PLACES_MAX:])
        self._write("sessions.json", newest)

    def read_choice(self, directory: Path) -> bool | None:
        """Read whether the person lets agents work in a directory; ``None`` where they were not asked yet."""
        found = self._read("directories.json").get(str(directory))
        return found if isinstance(found, bool) else None

    def note_choice(self, directory: Path, is_allowed: bool) -> None:
        """Note whether the person lets agents work in a directory. Idempotent."""
        others = {name: said for name, said in self._read("directories.json").items() if name != str(directory)}
        self._write("directories.json", dict(list({**others, str(directory): is_allowed}.items())[-_DIRECTORIES_MAX:]))

    def find_history(self) -> Path | None:
        """The file of the lines typed; ``None`` where it cannot be kept."""
        path = self._folder / "history"
        try:
            self._prepare()
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        except OSError as error:
            log.debug("chat.not_remembered", error=repr(error))
            return None
        return path

    def _prepare(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _read(self, name: str) -> dict[str, object]:
        try:
            document = json.loads((self._folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def _write(self, name: str, document: Mapping[str, object]) -> None:
        draft = self._folder / f"{name}.{os.getpid()}"
        try:
            self._prepare()
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file)
            draft.rename(self._folder / name)
        except OSError as error:
            log.debug("chat.not_remembered", error=repr(error))
