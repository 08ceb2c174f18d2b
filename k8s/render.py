"""Render what follows from the Helm chart and from the tables of the product: ``python k8s/render.py``.

The chart is the one source. Base and components of kustomize are what it renders, without what is Helm's own; what the
chart knows of settings and secrets, and the table of secrets in docs/kubernetes.md, come from the product. Needs the
extra ``deploy-test``. A test compares the files with what this would write.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

from hermes_worker import __version__
from hermes_worker.channels.catalog import list_platforms
from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.extension import load_reference
from hermes_worker.models.catalog import list_provider_rows
from hermes_worker.plugins import list_addons
from hermes_worker.settings.composed import DECLARATIONS, RETIRED_VARIABLES
from hermes_worker.settings.kinds import SettingKind
from hermes_worker.settings.role_secrets import DELIVERY_SECRETS, PROVIDER_SECRETS, SECRET_SETTINGS, ProcessRole

K8S = Path(__file__).resolve().parent
CHART = K8S / "helm" / "hermes-worker"
PAGE = K8S.parent / "docs" / "kubernetes.md"
BASE: Mapping[str, Any] = {"namespace": {"create": True}, "migrate": {"jobName": "migrate"}}
PLACES: Mapping[str, Mapping[str, Any]] = {
    "base": {},
    "components/gateway": {"gateway": {"enabled": True}},
    "components/browser": {"browser": {"enabled": True}},
    "components/mcp-host": {"mcpHost": {"enabled": True}},
    "components/flower": {"flower": {"enabled": True}},
    "components/keda-postgresql": {"scaling": {"source": "postgresql"}},
    "components/keda-metrics-api": {"scaling": {"source": "metrics-api"}},
    "components/hpa-prometheus": {"scaling": {"source": "prometheus"}},
    "components/monitoring": {"monitoring": {"enabled": True}},
    "components/external-secrets": {"externalSecrets": {"enabled": True}},
    "components/ingress-tls": {"ingress": {"enabled": True}},
    "overlays/dev": {"devServers": {"enabled": True}},
}
"""The directories of kustomize, and the values that make their objects."""
BY_FILE = {
    "state": {"HERMES_DATABASE_URL": "database-url", "HERMES_BROKER_URL": "broker-url"},
    "server": {"HERMES_SERVER_KEY": "server-key"},
    "models": {"HERMES_API_KEY": "api-key"},
    "flower": {"HERMES_FLOWER_PASSWORD": "flower-password"},
}
"""Secrets without which a role does not start, and the key of each variable. The others may be missing, and have their
variables for keys."""
READERS = {
    "state": "every role",
    "encryption": "every role",
    "server": "API",
    "webhooks": "API",
    "models": "model workers",
    "providers": "model workers",
    "objects": "API, tools workers, delivery workers",
    "tools": "tools workers",
    "mcp": "hosts of MCP servers",
    "channels": "delivery workers",
    "gateway": "gateways",
    "scaler": "KEDA",
    "flower": "Flower",
}
_HELMS_OWN = re.compile(
    r"^ *(?:app\.kubernetes\.io/managed-by|app\.kubernetes\.io/version|helm\.sh/chart|checksum/\w+): .*\n"
    r"|^  namespace: hermes\n",
    re.MULTILINE,
)
_NOT_OF_GO = re.compile(r"\(\?!|\d{4}\}")
"""Look-ahead and more than a thousand repetitions, which Go's regular expressions do not have."""
_SECRET_OF = {ProcessRole.MODEL: "providers", ProcessRole.DELIVERY: "channels", ProcessRole.API: "webhooks"}
"""Where a secret of one role alone goes, unless a role does not start without it."""


def list_secrets() -> dict[str, frozenset[str]]:
    """The variables of each secret, in the order of ``READERS``."""
    given = {variable for keys in BY_FILE.values() for variable in keys}
    found: dict[str, set[str]] = {name: set() for name in READERS}
    for row in SECRET_SETTINGS:
        roles = set(row.roles)
        shared = "encryption" if ProcessRole.BEAT in roles else "objects"
        name = shared if len(roles) > 1 else _SECRET_OF[min(roles)] if roles else "flower"
        found[name].add(row.variables[0])
    named = {name for row in list_provider_rows().values() for name in row.key_variables}
    found["providers"] |= named | PROVIDER_SECRETS
    found["channels"] |= DELIVERY_SECRETS
    for platform in list_platforms().values():
        found["webhooks"] |= set(platform.webhook_secrets)
        if platform.receiving and set(platform.receiving.modes) != {InboundMode.WEBHOOK}:
            found["gateway"] |= set(platform.gateway_secrets)
    return {name: frozenset(BY_FILE.get(name, held - given)) for name, held in found.items()}


def build_settings_table() -> str:
    """What the chart knows of the product: which variables are settings, what they take, and which secret holds which
    secret."""
    secrets = {variable: name for name, held in reversed(list_secrets().items()) for variable in sorted(held)}
    addons = (load_reference(f"hermes_worker.addons.{found.name}:EXTENSION") for found in list_addons())
    plain = {row.home_variable for row in list_platforms().values() if row.home_variable}
    plain |= RETIRED_VARIABLES.union(item.variable for addon in addons for item in addon.settings if not item.is_secret)
    rules: dict[str, Mapping[str, Any]] = {name: {} for name in plain}
    for declaration in DECLARATIONS:
        rules |= dict.fromkeys(declaration.variables, _describe_rule(declaration.kind))
    return _dump({"secrets": secrets, "settings": {name: rules[name] for name in rules.keys() - secrets.keys()}})


def _describe_rule(kind: SettingKind[Any]) -> Mapping[str, Any]:
    """What a template judges a value by; nothing where only Python can."""
    if not kind.pattern or _NOT_OF_GO.search(kind.pattern):
        return {}
    return {"must": kind.allowed, "pattern": kind.pattern, "ranges": kind.ranges}


def build_values_rules() -> str:
    """What a template judges values by: the rules of values.schema.json, which it cannot read, and that no group of
    values.yaml may be taken out."""
    rules = _drop_descriptions(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["definitions"])
    _require_groups(rules["values"], yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))
    return _dump({"definitions": rules})


def _require_groups(schema: dict[str, Any], values: Mapping[str, Any]) -> None:
    groups = {name: value for name, value in values.items() if isinstance(value, dict) and value}
    parts = schema["properties"]
    schema["required"] = sorted(name for name in groups if "null" not in parts[name].get("type", ()))
    for name, value in groups.items():
        if "properties" in parts[name]:
            _require_groups(parts[name], value)


def _drop_descriptions(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return {
        name: _drop_descriptions(each)
        for name, each in schema.items()
        if name != "description" or isinstance(each, dict)
    }


def _dump(document: Any) -> str:
    """By way of JSON, because YAML would write what is there twice as a reference."""
    return "# Made by k8s/render.py.\n" + yaml.safe_dump(json.loads(json.dumps(document)), width=120)


def build_secrets_rows() -> str:
    """The table of secrets of docs/kubernetes.md. What goes by the names of providers and platforms is not listed."""
    more = {
        "providers": "keys of providers, `ANTHROPIC_API_KEY` and so on ([providers.md](providers.md))",
        "tools": "`HERMES_MCP_NAME_TOKEN` of MCP servers with an address, secrets of extensions",
        "mcp": "`HERMES_MCP_NAME_TOKEN` of MCP servers with a command",
        "channels": "`TELEGRAM_BOT_TOKEN` and so on ([deliveries.md](deliveries.md))",
        "gateway": "what accounts are listened to with, `TELEGRAM_BOT_TOKEN` and so on ([gateway.md](gateway.md))",
        "webhooks": "by which platforms are known, `SLACK_SIGNING_SECRET` and so on ([gateway.md](gateway.md))",
        "scaler": "`connection` (`postgresql` scaler) or `token` (`metrics-api`)",
    }
    lines = ["| secret | keys | may be missing | who mounts it |", "| --- | --- | --- | --- |"]
    for name, variables in list_secrets().items():
        ours = sorted(BY_FILE[name].values()) if name in BY_FILE else sorted(v for v in variables if v[:7] == "HERMES_")
        keys = ", ".join([f"`{key}`" for key in ours] + ([more[name]] if name in more else []))
        is_optional = name not in BY_FILE and name != "scaler"
        lines.append(f"| `hermes-{name}` | {keys} | {'yes' if is_optional else 'no'} | {READERS[name]} |")
    return "\n".join(lines) + "\n"


def render_chart(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """The objects of each template, as texts with their comments."""
    rendered = helm_python.Chart.load(str(CHART)).render(dict(values), name="hermes", namespace="hermes")
    found = {
        Path(path).name: text for path, text in rendered.items() if "/tests/" not in path and path.endswith(".yaml")
    }
    return {
        name: kept
        for name, text in sorted(found.items())
        if (kept := [_strip(part) for part in re.split(r"^---\n", text, flags=re.MULTILINE) if yaml.safe_load(part)])
    }


def _name(text: str) -> tuple[str, str]:
    manifest = yaml.safe_load(text)
    return manifest["kind"], manifest["metadata"]["name"]


def _strip(text: str) -> str:
    plain = _HELMS_OWN.sub("", text).replace("image: hermes-worker:" + __version__, "image: hermes-worker")
    return re.sub(r"^ *\n| +annotations:\n(?= {4}spec:)", "", plain, flags=re.MULTILINE)


def list_files() -> Iterator[tuple[Path, str]]:
    """Every file that this makes, and its text."""
    yield CHART / "files" / "settings.yaml", build_settings_table()
    yield CHART / "files" / "values.yaml", build_values_rules()
    ours = {_name(text) for texts in render_chart(BASE).values() for text in texts}
    for place, values in PLACES.items():
        for name, texts in render_chart({**BASE, **values}).items():
            kept = [text for text in texts if place == "base" or _name(text) not in ours]
            if kept:
                yield K8S / place / name, "---\n".join(kept)
    page = PAGE.read_text(encoding="utf-8")
    yield (
        PAGE,
        re.sub(
            r"(?<=<!-- secrets -->\n\n).*?(?=\n<!-- /secrets -->)",
            lambda _: build_secrets_rows(),
            page,
            flags=re.DOTALL,
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write what follows from the Helm chart and from the product's tables."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; name the files that differ and exit with 1"
    )
    is_check, stale = parser.parse_args().check, []
    for path, text in list_files():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(K8S.parent).as_posix())
            if not is_check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    sys.stdout.write("".join(f"{name}\n" for name in stale))
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
