"""The bill of materials of a release, as CycloneDX: what is installed here and needed by the package."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME = "hermes-worker"
EXTRAS = ("apprise", "bedrock", "documents", "flower", "gateway", "gemini", "kubernetes", "otel", "ssh")
"""What users may install beside, and the image has; the SBOM names what they bring."""


def sbom(version: str, archives: list[Path], epoch: int) -> str:
    """What the installed environment brings with this version, as CycloneDX 1.6, the same for the same environment."""
    bom = Bom()
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    ours = _component(NAME, version, ComponentType.APPLICATION)
    for archive in archives:
        digest = HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(archive.read_bytes()).hexdigest())
        url = XsUri(archive.name)
        ours.external_references.add(
            ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=url, hashes=[digest])
        )
    bom.metadata.component = ours
    needed = _requirements(NAME, frozenset(EXTRAS))
    components = {NAME: ours}
    for name in needed:
        if name != NAME:
            components[name] = _component(name, importlib.metadata.version(name), ComponentType.LIBRARY)
            bom.components.add(components[name])
    for name, wanted in needed.items():
        bom.register_dependency(components[name], [components[each] for each in sorted(wanted)])
    bom.serial_number = uuid.uuid5(
        uuid.NAMESPACE_URL, "\n".join(sorted(str(each.purl) for each in components.values()))
    )
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the SBOM is not CycloneDX 1.6: {error}")
    return text


def _component(name: str, number: str, kind: ComponentType) -> Component:
    metadata = importlib.metadata.metadata(name)
    made = Component(name=name, version=number, type=kind, bom_ref=f"{name}@{number}")
    made.purl = PackageURL(type="pypi", name=name, version=number)
    if written := metadata.json.get("license_expression"):
        made.licenses.add(LicenseFactory().make_from_string(str(written)))
    return made


def _requirements(first: str, extras: frozenset[str]) -> dict[str, set[str]]:
    """Every distribution that ``first`` needs here, with what it needs in turn."""
    found: dict[str, set[str]] = {}
    waiting, seen = [(first, extras)], set()
    while waiting:
        name, wanted = waiting.pop()
        found.setdefault(name, set())
        for requirement in _direct(name, wanted):
            needed = canonicalize_name(requirement.name)
            found[name].add(needed)
            if (key := (needed, frozenset(requirement.extras))) not in seen:
                seen.add(key)
                waiting.append(key)
    return {name: needs - {name} for name, needs in sorted(found.items())}


def _direct(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement
