"""Write the secrets of one ``.env`` as files for each role, so that no service has a secret in its environment and
none sees those of another. The job ``secrets`` of compose.yaml runs it, before anything else starts.

Why a job: Compose mounts a secret that comes from ``.env`` by copying it into the container, and refuses to do that
where the root is read-only (https://github.com/docker/compose/issues/12031). A volume can be mounted there.

It may be repeated; every file is replaced as a whole. A secret that is not set becomes an empty file, which counts as
not set (docs/settings.md, "Secrets from files").
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from hermes_worker.broker.rights import USER, build_acl_rules
from hermes_worker.channels.catalog import list_platforms
from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.settings.role_secrets import DELIVERY_SECRETS, PROVIDER_SECRETS, SECRET_SETTINGS, ProcessRole

PROVIDER_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")
"""Keys that need no ``HERMES_PROVIDER`` beside them. Any other provider's key is given as ``HERMES_API_KEY``, or by
``MODEL_SECRETS`` where a fallback names it."""
REQUIRED = ("POSTGRES_PASSWORD", "VALKEY_PASSWORD", "HERMES_SERVER_KEY", "HERMES_FLOWER_PASSWORD")
_VALKEY_VERSION = (8, 0)
"""The oldest that the rights are written for; later ones know the same commands."""
_BY_COMPOSE = ("HERMES_DATABASE_URL", "HERMES_BROKER_URL")
"""Made here from the passwords of the two servers."""


def files_of(environ: Mapping[str, str]) -> dict[str, str]:
    """What each volume holds, as paths below ``/secrets``. Raises ``ValueError``: one sentence."""
    missing = [name for name in REQUIRED if not environ.get(name)]
    if missing:
        raise ValueError(f"{', '.join(missing)} must be set in .env; compose/.env.example says how.")
    database = f"postgresql://hermes:{_quoted(environ['POSTGRES_PASSWORD'])}@postgres:5432/hermes"
    broker = f"redis://{USER}:{_quoted(environ['VALKEY_PASSWORD'])}@valkey:6379/0"
    state = {"HERMES_DATABASE_URL": database, "HERMES_BROKER_URL": broker}
    files = {
        "postgres/password": environ["POSTGRES_PASSWORD"],
        "valkey/users.acl": _valkey_users(environ["VALKEY_PASSWORD"]),
        "grafana/password": environ.get("GRAFANA_PASSWORD", ""),
        "grafana/database_password": environ.get("GRAFANA_DATABASE_PASSWORD", ""),
    }
    for volume, names in VOLUMES.items():
        files |= {f"{volume}/{name}": state.get(name, environ.get(name, "")) for name in sorted(names)}
    for volume, variable in CHOSEN.items():
        files |= {f"{volume}/{name}": environ[name] for name in _list_chosen(variable, environ)}
    unneeded = [name for name, needs in ALSO_SENT_WITH.items() if not all(environ.get(need) for need in needs)]
    return files | {f"api/{name}": "" for name in unneeded}


def _list_chosen(variable: str, environ: Mapping[str, str]) -> list[str]:
    """The names of secrets that ``variable`` lists. Raises ``ValueError`` for one that is not set, or that is kept for
    other roles."""
    chosen = environ.get(variable, "").replace(",", " ").split()
    for name in chosen:
        if name in GIVEN:
            raise ValueError(f"{variable} names {name}, which is a secret of another role.")
        if not environ.get(name):
            raise ValueError(f"{variable} names {name}, which is not set in .env.")
    return chosen


def _secrets_of(*roles: ProcessRole) -> frozenset[str]:
    """The variables of the settings that these roles need, each by the first of its names."""
    return frozenset(row.variables[0] for row in SECRET_SETTINGS if not row.roles.isdisjoint(roles))


def _listening() -> frozenset[str]:
    """What a gateway needs of the platforms that it listens to itself. The secret of their webhooks is with it: where
    that is set, the platform is not asked."""
    rows = [row for row in list_platforms().values() if row.receiving is not None]
    held = [row for row in rows if row.receiving and set(row.receiving.modes) != {InboundMode.WEBHOOK}]
    return frozenset(variable for row in held for variable in row.gateway_secrets)


def _brought() -> frozenset[str]:
    """What the API knows requests of platforms by."""
    return frozenset(variable for row in list_platforms().values() for variable in row.webhook_secrets)


ALSO_SENT_WITH: Mapping[str, tuple[str, ...]] = {
    variable: row.webhook_needs
    for row in list_platforms().values()
    for variable in set(row.webhook_secrets).intersection(row.secret_variables)
}
"""Secrets of webhooks that answers are sent with as well, and what is set where the platform brings messages: only
then the API gets them."""

VOLUMES: Mapping[str, frozenset[str]] = {
    "state": _secrets_of(ProcessRole.BEAT),
    "tools": _secrets_of(ProcessRole.TOOLS),
    "mcp": _secrets_of(ProcessRole.MCP),
    "flower": frozenset({"HERMES_BROKER_URL", "HERMES_FLOWER_PASSWORD"}),
    "api": _secrets_of(ProcessRole.API).union(_brought()),
    "gateway": _secrets_of(ProcessRole.GATEWAY).union(_listening()),
    "model": _secrets_of(ProcessRole.MODEL, ProcessRole.DELIVERY).union(
        PROVIDER_KEYS, PROVIDER_SECRETS, DELIVERY_SECRETS
    ),
}
"""Which secrets each volume of our own roles holds; ``state`` is that of the scheduler, the hosts of browsers and the
migration."""
CHOSEN: Mapping[str, str] = {"model": "MODEL_SECRETS", "tools": "TOOLS_SECRETS", "mcp": "MCP_SECRETS"}
"""Volumes that hold what a variable of ``.env`` names beside that: keys of other providers, secrets of extensions,
tokens of MCP servers."""
GIVEN = (
    frozenset((*REQUIRED, "GRAFANA_PASSWORD", "GRAFANA_DATABASE_PASSWORD", *CHOSEN.values()))
    .union(*VOLUMES.values(), *ALSO_SENT_WITH.values())
    .difference(_BY_COMPOSE)
)
"""All that the job reads from its environment."""


def _quoted(password: str) -> str:
    return quote(password, safe="")


def _valkey_users(password: str) -> str:
    """Our user with the rights that the product needs, and one for the health check, which may only ask for a sign of
    life. The password itself does not stand in the file."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return (
        "user default off resetpass resetkeys resetchannels -@all\n"
        f"user {USER} on #{digest} {build_acl_rules(_VALKEY_VERSION)}\n"
        "user probe on nopass resetkeys resetchannels -@all +ping\n"
    )


def write(files: Mapping[str, str], directory: Path) -> None:
    """Each file at once, readable by every user of the services that mount its volume and by nobody else: other
    people's images run under users of their own. What is named no more goes."""
    for volume in CHOSEN:
        for path in (directory / volume).iterdir():
            if f"{volume}/{path.name}" not in files:
                path.unlink()
    for name, content in files.items():
        target = directory / name
        fresh = target.with_name(f".{target.name}")
        fresh.write_text(content, encoding="utf-8")
        fresh.chmod(0o444)
        fresh.replace(target)


def main() -> int:
    try:
        files = files_of(os.environ)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    write(files, Path("/secrets"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
