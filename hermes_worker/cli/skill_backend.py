"""What the verbs of ``skills`` need, as typed calls, and how a database and a server answer them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.server import read, server_client
from hermes_worker.core.skills import SkillFile, content_hash
from hermes_worker.services.skills import SkillSheet, skill_sheet
from hermes_worker.wiring import shelf_of

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSkill:
    """A skill or bundle that a run can be given."""

    name: str
    category: str | None
    description: str


class SkillBackend(Protocol):
    """The skills of one tenant. Each call raises ``HermesError``s that say what is wrong."""

    def listed(self) -> Sequence[ListedSkill]: ...
    def sheet(self, name: str, path: str | None) -> SkillSheet: ...
    def keep(self, name: str, files: Sequence[SkillFile], category: str | None) -> str:
        """The hash of the version."""

    def remove(self, name: str) -> None: ...


def open_skills(home: Path | None) -> SkillBackend:
    """The server that was chosen, or the database of a home. Raises ``ConfigurationError``, ``UnavailableError``."""
    client = server_client()
    return LocalSkills(open_records(home)) if client is None else RemoteSkills(client)


class LocalSkills:
    """Asks a database, and the folders of this machine."""

    def __init__(self, records: Records) -> None:
        self._tenant = records.tenant
        self._shelf = shelf_of(records.settings, records.database)

    def listed(self) -> Sequence[ListedSkill]:
        found = self._shelf.usable(self._tenant)
        return [
            ListedSkill(name=each.name, category=each.category or None, description=each.facts.description)
            for each in found
        ]

    def sheet(self, name: str, path: str | None) -> SkillSheet:
        return skill_sheet(self._shelf, self._tenant, name, path)

    def keep(self, name: str, files: Sequence[SkillFile], category: str | None) -> str:
        self._shelf.keep(self._tenant, name, lambda _: files, by="people", category=category)
        return content_hash(files)

    def remove(self, name: str) -> None:
        self._shelf.remove(self._tenant, name)


class RemoteSkills:
    """Asks a server."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def listed(self) -> Sequence[ListedSkill]:
        found = self._client.skills()
        return [
            ListedSkill(name=each["name"], category=each.get("category"), description=each["description"])
            for each in found
        ]

    def sheet(self, name: str, path: str | None) -> SkillSheet:
        told: dict[str, Any] = self._client.skill(name, file=path)
        sheet: SkillSheet = read(SkillSheet, told)
        return sheet

    def keep(self, name: str, files: Sequence[SkillFile], category: str | None) -> str:
        told = self._client.keep_skill(name, [_sent(file) for file in files], category=category)
        return str(told["hash"])

    def remove(self, name: str) -> None:
        self._client.remove_skill(name)


def _sent(file: SkillFile) -> dict[str, object]:
    text = file.text
    body = {"text": text} if text is not None else {"base64": base64.b64encode(file.body).decode("ascii")}
    return {"path": file.path, "is_executable": file.is_executable, **body}
