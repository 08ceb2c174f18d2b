"""The files of ``hermes-worker init``, as texts and paths. ``init`` asks and writes."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from hermes_worker.cli.init_gateway import CHANNELS_SECRET, GATEWAY_SECRET, WEBHOOKS_SECRET, FleetAccount, merge_values
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.config_editing import set_value
from hermes_worker.settings.dotenv import set_variable

COMPOSE_PASSWORDS = (
    "POSTGRES_PASSWORD",
    "VALKEY_PASSWORD",
    "HERMES_SERVER_KEY",
    "HERMES_FLOWER_PASSWORD",
    "GRAFANA_PASSWORD",
)
"""The passwords that ``compose/.env`` must have beside the model."""
_COMPOSE_HEAD = """\
# Written by 'hermes-worker init --compose'. README.md beside compose.yaml says what else can stand here.
"""
_IMAGE = re.compile(
    r"(?P<name>[^\s@:]+(?::\d+(?=/))?[^\s@:]*)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    """The model of runs that name none."""

    provider: str
    name: str | None
    """``None`` leaves it to the provider's default."""
    base_url: str | None = None
    api_key: str | None = None
    """``None`` where none is needed, or where it is set elsewhere already."""

    @property
    def settings(self) -> Mapping[str, str | None]:
        """The settings by their keys in ``config.yaml``."""
        return {"model.provider": self.provider, "model.default": self.name, "model.base_url": self.base_url}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file to be written."""

    path: Path
    text: str
    is_secret: bool = False
    """Whether only its owner may read it."""


def set_model(before: str, model: ChosenModel) -> tuple[str, list[str]]:
    """Write the text of ``config.yaml`` with a model, and list the values that change. Raises ``ValueError``."""
    after, otherwise = before, []
    said = yaml.safe_load(before) or {}
    group = said.get("model") if isinstance(said, dict) else None
    if isinstance(group, str):
        group = {"default": group}
    for key, value in model.settings.items():
        old = group.get(key.partition(".")[2]) if isinstance(group, dict) else None
        if old == value:
            continue
        if old is not None:
            otherwise.append(f"config.yaml says {key}: {str(old)[:80]}")
        after = set_value(after, key, value)
    return after, otherwise


def build_compose_file(
    directory: Path, before: str, model: ChosenModel, accounts: Sequence[FleetAccount] = ()
) -> tuple[WrittenFile, list[str]]:
    """Write ``.env`` for Compose, and list the values that change. A stored password stays: that of PostgreSQL is set
    when its volume is made. Raises ``ConfigurationError``."""
    given = {
        "HERMES_PROVIDER": model.provider,
        "HERMES_MODEL": model.name,
        "HERMES_BASE_URL": model.base_url,
        "HERMES_API_KEY": model.api_key,
        **merge_values(accounts),
    }
    otherwise, text = [], before or _COMPOSE_HEAD
    for name, value in given.items():
        old = read_value(text, name)
        if old and old != (value or ""):
            otherwise.append(f".env has another {name}")
        if value or old:
            text = set_variable(text, name, value or "")
    if any(account.is_held for account in accounts):
        text = _add_profile(text, "gateway")
    for name in COMPOSE_PASSWORDS:
        if not read_value(text, name):
            text = set_variable(text, name, secrets.token_urlsafe(24))
    return WrittenFile(path=directory / ".env", text=text, is_secret=True), otherwise


def _add_profile(dotenv: str, profile: str) -> str:
    """Add a profile to those that Compose starts when none is named."""
    started = [name for name in (read_value(dotenv, "COMPOSE_PROFILES") or "").split(",") if name]
    return dotenv if profile in started else set_variable(dotenv, "COMPOSE_PROFILES", ",".join([*started, profile]))


def read_value(dotenv: str, name: str) -> str | None:
    """Read the value in the last line of a variable, without its quotes; ``None`` where there is none."""
    found = re.findall(rf"^[ \t]*(?:export[ \t]+)?{re.escape(name)}[ \t]*=[ \t]*(.*?)[ \t]*$", dotenv, re.MULTILINE)
    return found[-1].strip("'\"") if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What an overlay of Kubernetes sets beside the model."""

    directory: Path
    database_url: str
    broker_url: str
    image: str | None = None
    """``None`` for the name that ``base`` has."""
    accounts: Sequence[FleetAccount] = ()


def build_overlay(plan: ClusterPlan, model: ChosenModel) -> list[WrittenFile]:
    """Write an overlay of kustomize with its secrets as files. The server's key is generated where there is none yet.
    Raises ``ConfigurationError``."""
    folder = plan.directory / "secrets"
    key_file = folder / "server-key"
    server_key = key_file.read_text(encoding="utf-8") if key_file.exists() else secrets.token_urlsafe(32)
    secret_texts = {
        "database-url": plan.database_url,
        "broker-url": plan.broker_url,
        "server-key": server_key,
        "api-key": model.api_key or "",
        **{f"{name}/{key}": value for name, given in _collect_secrets(plan).items() for key, value in given.items()},
    }
    return [
        WrittenFile(path=plan.directory / "kustomization.yaml", text=_build_kustomization(plan)),
        WrittenFile(path=plan.directory / "settings.yaml", text=_build_settings_patch(plan, model)),
        WrittenFile(path=plan.directory / ".gitignore", text="/secrets/\n"),
        *(WrittenFile(path=folder / name, text=text, is_secret=True) for name, text in secret_texts.items()),
    ]


def _collect_secrets(plan: ClusterPlan) -> Mapping[str, Mapping[str, str]]:
    """Collect the values of the accounts' secrets, by the secrets' names; none is empty."""
    found: dict[str, dict[str, str]] = {GATEWAY_SECRET: {}, WEBHOOKS_SECRET: {}, CHANNELS_SECRET: {}}
    for account in plan.accounts:
        for secret, given in account.split_secrets().items():
            found[secret] |= given
    return {secret: given for secret, given in found.items() if given}


def _build_kustomization(plan: ClusterPlan) -> str:
    base = find_base(plan.directory)
    gateway = [os.path.relpath(base.parent / "components" / "gateway", plan.directory)]
    document: dict[str, object] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "hermes",
        "resources": [os.path.relpath(base, plan.directory)],
        **({"components": gateway} if any(account.is_held for account in plan.accounts) else {}),
        "generatorOptions": {
            "disableNameSuffixHash": True,
            "labels": {"app.kubernetes.io/name": "hermes-worker"},
        },
        "secretGenerator": [
            {"name": "hermes-state", "files": ["secrets/database-url", "secrets/broker-url"]},
            {"name": "hermes-server", "files": ["secrets/server-key"]},
            {"name": "hermes-models", "files": ["secrets/api-key"]},
            *(
                {"name": name, "files": [f"secrets/{name}/{key}" for key in given]}
                for name, given in _collect_secrets(plan).items()
            ),
        ],
        "patches": [{"path": "settings.yaml"}],
    }
    if plan.image is not None:
        document["images"] = [_parse_image(plan.image)]
    head = "# Written by 'hermes-worker init --k8s'; docs/kubernetes.md says what a cluster needs beside it.\n"
    return head + yaml.safe_dump(document, sort_keys=False)


def _parse_image(written: str) -> dict[str, str]:
    found = _IMAGE.fullmatch(written)
    if found is None:
        raise ConfigurationError(
            f"--image {written[:120]!r} is no image; write registry.example.com/hermes-worker:0.2.0"
        )
    parts = {"newName": found["name"], "newTag": found["tag"], "digest": found["digest"]}
    return {"name": "hermes-worker", **{name: part for name, part in parts.items() if part}}


def _build_settings_patch(plan: ClusterPlan, model: ChosenModel) -> str:
    """Write the patch that replaces all that ``base/settings.yaml`` sets of the model: null removes a value."""
    data = {"HERMES_PROVIDER": model.provider, "HERMES_BASE_URL": model.base_url, "HERMES_MODEL": model.name}
    data |= {"HERMES_GATEWAY": "true"} if plan.accounts else {}
    for account in plan.accounts:
        data |= account.plain_values
    patch = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hermes-settings"}, "data": data}
    return yaml.safe_dump(patch, sort_keys=False)


def find_base(directory: Path) -> Path:
    """Find the manifests on which an overlay in ``directory`` builds. Raises ``ConfigurationError``."""
    for above in directory.absolute().parents:
        if (above / "base" / "kustomization.yaml").is_file():
            return above / "base"
    raise ConfigurationError(
        f"{str(directory)!r} is not below the k8s directory of a checkout, where base/kustomization.yaml is; "
        "name a new directory there, such as k8s/overlays/mine"
    )
