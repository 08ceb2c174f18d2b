"""Tenants, principals and scopes: who acts, for whom, and what they may do.

A *tenant* owns rows, which other tenants do not see. A *principal* is a person or a program that holds a key and acts
for a tenant. The principal of each action on a run (an answer, a stop, a message) is stored as text beside the action.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from hermes_worker.core.errors import HermesError

DEFAULT_TENANT: Final = "default"
"""The only tenant of an installation that has no other: it owns everything that the operator makes."""
TENANT_HEADER: Final = "Hermes-Tenant"
"""Header of requests with the installation's own key: the tenant that the request is for."""
USER_HEADER: Final = "Hermes-User"
"""Header of requests with the installation's own key: the person at the command line who sends it (percent-encoded
UTF-8)."""
CLI: Final = "cli"
"""The source of submissions at the command line."""
TENANT_CHARS_MAX: Final = 40
NAME_CHARS_MAX: Final = 200
TIMEOUT: Final = "timeout"
"""Stands in the place of a principal when the time for an answer was over."""
_TENANT = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_HOLDER = re.compile(r"(?=.*\S)[^\x00-\x1f\x7f/]{1,100}")


class InvalidName(HermesError):
    """The name is not allowed for a tenant or a holder of a key."""


class KeyScope(StrEnum):
    """The permissions of a key."""

    RUNS_READ = "runs:read"
    """See runs, their events and their deliveries."""
    RUNS_WRITE = "runs:write"
    """Submit, stop, pause and steer runs, and answer their questions."""
    APPROVE = "approve"
    """Allow and deny dangerous commands."""
    JOBS = "jobs"
    """See and change scheduled jobs."""
    MEMORY = "memory"
    """See and change what agents remember, change skills, and submit runs that may. Runs of other keys count as
    guests'."""
    OPS_READ = "ops:read"
    """For keys of the default tenant: see how much work waits in the whole installation."""
    ADMIN = "admin"
    """Everything. For keys of the default tenant, also what concerns the whole installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The sender of a request."""

    tenant: str = DEFAULT_TENANT
    name: str | None = None
    """The name that is recorded; ``None`` for the installation itself."""
    scopes: frozenset[KeyScope] = frozenset({KeyScope.ADMIN})
    source: str = "api"
    """The name space of the session names and request keys that they use (``core.sources``)."""
    operates: bool = False
    """They operate the installation, whichever tenant they act for."""

    def has_scope(self, scope: KeyScope) -> bool:
        return scope in self.scopes or KeyScope.ADMIN in self.scopes

    @property
    def display_name(self) -> str:
        """The recorded name, or a placeholder when there is none."""
        return self.name or "somebody"

    @property
    def is_of_operators(self) -> bool:
        """Whether they may see what concerns the whole installation, as far as their scopes go."""
        return self.operates or self.tenant == DEFAULT_TENANT


OPERATOR: Final = Principal()
"""The principal of work at the machine itself, for the default tenant."""


def find_tenant_home(home: Path, tenant: str) -> Path:
    """The directory with the skills, scripts and lists of a tenant."""
    return home if tenant == DEFAULT_TENANT else home / "tenants" / tenant


def require_tenant_name(name: str) -> str:
    """Return a valid name of a tenant, which becomes a directory and a part of addresses. Raises ``InvalidName``."""
    if not _TENANT.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be the name of a tenant: it must be 1 to {TENANT_CHARS_MAX} lower-case letters, digits "
            "and hyphens, with no hyphen at either end"
        )
    return name


def require_holder_name(name: str) -> str:
    """Return a valid name of a key's holder. Raises ``InvalidName``."""
    if not _HOLDER.fullmatch(name):
        raise InvalidName(f"{name!r} cannot be the name of a holder: it must be 1 to 100 characters without '/'")
    return name


def parse_scopes(words: Collection[str]) -> frozenset[KeyScope]:
    """Parse scopes; words that this version does not know are ignored."""
    known = {scope.value for scope in KeyScope}
    return frozenset(KeyScope(word) for word in words if word in known)


def format_machine_user(name: str) -> str:
    """The principal of a person at the command line, by the name of the system's user."""
    return _format_principal(CLI, name)


def format_key_holder(fingerprint: str) -> str:
    """The principal of a request with an API key, by the key's fingerprint."""
    return _format_principal("api", f"key-{fingerprint}")


def format_named_holder(name: str, key_id: str) -> str:
    """The principal of a request with a key that was given to a named holder."""
    return _format_principal("api", f"{name}/{key_id}")


def format_program(name: str) -> str:
    """The principal of a program that submits runs in its own transactions (``services.embedding``)."""
    return _format_principal("app", name)


def _format_principal(source: str, name: str) -> str:
    kept = "".join(char for char in name if char.isprintable())
    return f"{source}:{kept}"[:NAME_CHARS_MAX]


def build_author_field(by: str | None) -> dict[str, str]:
    """The field of an event that names its principal; empty when there is none."""
    return {"by": by} if by is not None else {}
