"""The API's operations on skills, as typed calls for the verbs of ``skills``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_worker.cli.reaching import api_client
from hermes_worker.cli.server import read
from hermes_worker.features.skills.rules import SkillFile
from hermes_worker.features.skills.service import SkillSheet

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSkill:
    """A skill or bundle that a run can be given."""

    name: str
    category: str | None
    description: str


def open_skills(home: Path | None) -> SkillRows:
    """Open the skills of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return SkillRows(api_client(home))


class SkillRows:
    """The skills of one tenant."""

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
