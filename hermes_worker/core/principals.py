"""Who asks, for whom, and what they may do.

A *tenant* is whose rows something is in: nobody sees those of another tenant. A *principal* is who acts for a tenant: a
person or a program that holds a key of it. What somebody did to a run (answered it, stopped it, said something to it)
is kept as text beside what was done.
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
"""Whose an installation is that has no other: everything that was made by whoever operates it."""
TENANT_HEADER: Final = "Hermes-Tenant"
USER_HEADER: Final = "Hermes-User"
"""With the installation's own key: which tenant a request is for, and which person at the command line sends it
(percent-encoded UTF-8)."""
CLI: Final = "cli"
"""The source of what people at the command line hand in."""
TENANT_CHARS_MAX: Final = 40
NAME_CHARS_MAX: Final = 200
TIMEOUT: Final = "timeout"
"""Nobody: the time for an answer was over."""
_TENANT = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_HOLDER = re.compile(r"(?=.*\S)[^\x00-\x1f\x7f/]{1,100}")


class InvalidName(HermesError):
    """A tenant or a holder of a key cannot be called so."""


class KeyScope(StrEnum):
    """What a key lets its holder do."""

    RUNS_READ = "runs:read"
    """See runs, their events and what was delivered."""
    RUNS_WRITE = "runs:write"
    """Submit, stop, pause and steer runs, and answer their questions."""
    APPROVE = "approve"
    """Allow and deny dangerous commands."""
    JOBS = "jobs"
    """See and change scheduled jobs."""
    MEMORY = "memory"
    """See and change what agents remember, change skills, and have runs that may. Runs of other keys are those of
    guests."""
    OPS_READ = "ops:read"
    """Of the default tenant: see how much work waits in the whole installation."""
    ADMIN = "admin"
    """All of it. Of the default tenant, also what concerns the whole installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks for something."""

    tenant: str = DEFAULT_TENANT
    name: str | None = None
    """As it is recorded; ``None`` for nobody in particular."""
    scopes: frozenset[KeyScope] = frozenset({KeyScope.ADMIN})
    source: str = "api"
    """Whose names of sessions and requests they say (``core.sources``)."""
    operates: bool = False
    """They operate the installation, whichever tenant they act for."""

    def may(self, scope: KeyScope) -> bool:
        return scope in self.scopes or KeyScope.ADMIN in self.scopes

    @property
    def known_as(self) -> str:
        """For what has to name somebody."""
        return self.name or "somebody"

    @property
    def is_of_operators(self) -> bool:
        """Whether what concerns the whole installation is theirs to see, as far as their scopes go."""
        return self.operates or self.tenant == DEFAULT_TENANT


OPERATOR: Final = Principal()
"""Whoever works at the machine itself, for the default tenant."""


def tenant_home(home: Path, tenant: str) -> Path:
    """Where the skills, scripts and lists of a tenant are."""
    return home if tenant == DEFAULT_TENANT else home / "tenants" / tenant


def checked_tenant(name: str) -> str:
    """The name of a tenant: it becomes a directory and a part of addresses. Raises ``InvalidName``."""
    if not _TENANT.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be the name of a tenant: it must be 1 to {TENANT_CHARS_MAX} lower-case letters, digits "
            "and hyphens, with no hyphen at either end"
        )
    return name


def checked_holder(name: str) -> str:
    """The name of who holds a key. Raises ``InvalidName``."""
    if not _HOLDER.fullmatch(name):
        raise InvalidName(f"{name!r} cannot be the name of a holder: it must be 1 to 100 characters without '/'")
    return name


def scopes_of(words: Collection[str]) -> frozenset[KeyScope]:
    """Scopes from their words; those that this version does not know give nothing."""
    known = {scope.value for scope in KeyScope}
    return frozenset(KeyScope(word) for word in words if word in known)


def user_of_machine(name: str) -> str:
    """Somebody at the command line, by the name of the system's user."""
    return _named(CLI, name)


def holder_of_key(fingerprint: str) -> str:
    """Somebody who sent an API key, by the key's fingerprint."""
    return _named("api", f"key-{fingerprint}")


def named_holder(name: str, key_id: str) -> str:
    """Somebody who sent a key that was given to them by name."""
    return _named("api", f"{name}/{key_id}")


def _named(source: str, name: str) -> str:
    kept = "".join(char for char in name if char.isprintable())
    return f"{source}:{kept}"[:NAME_CHARS_MAX]


def author(by: str | None) -> dict[str, str]:
    """The field of an event that says who did it; none when nobody in particular did."""
    return {"by": by} if by is not None else {}
