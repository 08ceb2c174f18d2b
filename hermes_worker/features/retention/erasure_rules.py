"""The subject of an erasure, and the receipt that says what was done. Pure: the store finds and deletes.

The product knows no persons: it knows holders of keys, users of machines, chats and addresses, and sessions. So a
*person* is what an operator names of these. A receipt names no person: it holds salted hashes, by which somebody who
knows the names can check that they were meant, and by which a replay finds them again in a restored database.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hermes_worker.core.errors import HermesError

RECEIPT_PREFIX: Final = "era_"
STAYS: Final[Mapping[str, str]] = {
    "statistics": "sums without ids, so that counters stay exact",
    "firings": "the ledger of slots, without texts and without the run, so that no slot is fired twice",
    "jobs": "the number of a job, because its slots name it; name, definition and texts are gone",
    "spending": "sums by day and by ids of keys that we drew, because money was spent",
    "deleted_runs": "ids that we drew, so that a deleted run answers 410; they go by the rule for tombstones",
    "audit_log": "who did what, with names of holders and no texts; nobody can change it; its rows go by their rule",
    "erasures": "this receipt",
}
"""What an erasure leaves in the database, by table, with the reason."""
OUTSIDE: Final = (
    "backups and archives of write-ahead logs that were made before: replay this receipt after a restore",
    "logs of processes, traces and metrics that were already collected",
    "providers of models, which have seen the prompts",
    "what was already delivered to chats, mailboxes and webhooks",
    "directories outside the home that a caller chose as a workspace, and workspaces on other hosts",
    "texts that other people's runs copied, and what hooks of extensions kept",
    "memory of workers that are running, until they evict it or end; they cannot write it back",
)
"""Data that no statement of ours reaches."""


class InvalidReceipt(HermesError):
    """A receipt cannot be read, or is not the one that was written."""


class NobodyNamed(HermesError):
    """An export or an erasure names no subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The subject: everything that any of these leads to, within one tenant."""

    sessions: tuple[str, ...] = ()
    """Ids of sessions."""
    named: tuple[tuple[str, str], ...] = ()
    """Sessions by the source and the name that a caller gave them: ``("webhook:chat", "4711")``."""
    principals: tuple[str, ...] = ()
    """Principals who submitted runs, as runs record them: ``cli:alice``."""
    holders: tuple[str, ...] = ()
    """Holders of keys, with all their keys."""
    targets: tuple[str, ...] = ()
    """Addresses: ``telegram:4711``."""
    is_everybody: bool = False
    """The whole tenant."""

    def require_named(self) -> None:
        """Require that something is named. Raises ``NobodyNamed``."""
        if not (self.sessions or self.named or self.principals or self.holders or self.targets or self.is_everybody):
            raise NobodyNamed("say whom: --session, --named, --principal, --holder, --target or --everybody")

    def is_principal(self, name: str | None) -> bool:
        """Whether the principal ``name`` of a run is one of the subject's."""
        if name is None:
            return False
        return name in self.principals or any(name.startswith(f"api:{holder}/") for holder in self.holders)

    def to_json(self) -> str:
        return json.dumps(
            {
                "sessions": self.sessions,
                "named": self.named,
                "principals": self.principals,
                "holders": self.holders,
                "targets": self.targets,
                "is_everybody": self.is_everybody,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Person:
        """Parse what ``to_json`` wrote."""
        read = json.loads(text)
        return cls(
            sessions=tuple(read["sessions"]),
            named=tuple((source, name) for source, name in read["named"]),
            principals=tuple(read["principals"]),
            holders=tuple(read["holders"]),
            targets=tuple(read["targets"]),
            is_everybody=bool(read["is_everybody"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedPerson:
    """The subject as a receipt holds it."""

    salt: str
    hashes: frozenset[str]
    is_everybody: bool = False

    def has_name(self, kind: str, *words: str) -> bool:
        """Whether this was one of the names; ``kind`` is ``named``, ``principal``, ``holder`` or ``target``."""
        return _hash_name(self.salt, kind, *words) in self.hashes


def create_receipt_id() -> str:
    return f"{RECEIPT_PREFIX}{secrets.token_hex(16)}"


def hash_subject(person: Person, salt: str | None = None) -> HashedPerson:
    """Hash the names of a subject; ``salt`` is drawn unless it is given. A guessable name can be tried, so receipts are
    confidential."""
    salt = salt or secrets.token_hex(16)
    words = [
        *(("session", each) for each in person.sessions),
        *(("named", *each) for each in person.named),
        *(("principal", each) for each in person.principals),
        *(("holder", each) for each in person.holders),
        *(("target", each) for each in person.targets),
    ]
    found = frozenset(_hash_name(salt, *each) for each in words)
    return HashedPerson(salt=salt, hashes=found, is_everybody=person.is_everybody)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """The record of an erasure. Times in epoch seconds."""

    receipt_id: str
    tenant: str
    by: str
    began_at: float
    ended_at: float
    person: HashedPerson
    sessions: tuple[str, ...]
    jobs: tuple[str, ...]
    erased: Mapping[str, int]
    """Counts of rows by table, and of ``workspaces``, ``documents`` and ``previews``, which are no rows."""
    not_reached: tuple[str, ...] = ()
    """What this process could not erase, as sentences."""
    replays: str | None = None
    """The receipt that this one repeats after a restore."""
    version: int = field(default=1)

    def build_document(self) -> dict[str, object]:
        """The JSON object, with its hash."""
        document = self._build_plain()
        return {**document, "sha256": _hash_document(document)}

    def _build_plain(self) -> dict[str, object]:
        return {
            "receipt": self.receipt_id,
            "version": self.version,
            "tenant": self.tenant,
            "by": self.by,
            "began_at": self.began_at,
            "ended_at": self.ended_at,
            "person": {
                "salt": self.person.salt,
                "sha256": sorted(self.person.hashes),
                "is_everybody": self.person.is_everybody,
            },
            "sessions": list(self.sessions),
            "jobs": list(self.jobs),
            "erased": dict(sorted(self.erased.items())),
            "stays": dict(STAYS),
            "outside": list(OUTSIDE),
            "not_reached": list(self.not_reached),
            "replays": self.replays,
        }


def parse_receipt(text: str) -> ErasureReceipt:
    """Parse and verify a receipt. Raises ``InvalidReceipt``."""
    try:
        document = json.loads(text)
        told = document.pop("sha256")
        person = HashedPerson(
            salt=str(document["person"]["salt"]),
            hashes=frozenset(map(str, document["person"]["sha256"])),
            is_everybody=document["person"]["is_everybody"] is True,
        )
        receipt = ErasureReceipt(
            receipt_id=str(document["receipt"]),
            tenant=str(document["tenant"]),
            by=str(document["by"]),
            began_at=float(document["began_at"]),
            ended_at=float(document["ended_at"]),
            person=person,
            sessions=tuple(map(str, document["sessions"])),
            jobs=tuple(map(str, document["jobs"])),
            erased={str(name): int(number) for name, number in document["erased"].items()},
            not_reached=tuple(map(str, document["not_reached"])),
            replays=document["replays"],
            version=int(document["version"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidReceipt("this is no receipt of an erasure: one JSON object a line is expected") from error
    if _hash_document(document) != told:
        raise InvalidReceipt(f"the receipt {receipt.receipt_id!r} was changed: its hash is another one")
    return receipt


def parse_receipts(lines: Iterable[str]) -> list[ErasureReceipt]:
    """Parse and verify the receipts in the lines of a file. Raises ``InvalidReceipt``."""
    return [parse_receipt(line) for line in lines if line.strip()]


def _hash_name(salt: str, *words: str) -> str:
    return hashlib.sha256("\0".join([salt, *words]).encode("utf-8", "surrogatepass")).hexdigest()


def _hash_document(document: Mapping[str, object]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def remove_author(data: Mapping[str, object], authors: Sequence[str]) -> dict[str, object] | None:
    """The data of an event without its author, if that was one of ``authors``; ``None`` when it was not."""
    return {key: value for key, value in data.items() if key != "by"} if data.get("by") in authors else None
