"""Name objects in a bucket: which key belongs to what, and what a row says of an object. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote, urlsplit

from hermes_worker.core.principals import DEFAULT_TENANT

KIND: Final = "objects"
"""The kind of workspaces whose files are kept in object storage."""
PART_BYTES: Final = 16 * 1024**2
"""Larger files are kept in parts of this size: a worker holds one of them in memory at a time."""
WORKSPACES: Final = "workspaces"
ARTIFACTS: Final = "artifacts"
_OWN_TENANTS: Final = "tenants"
_POINTER: Final = re.compile(r"hermes-object:1:([0-9a-f]{64})")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """A bucket, and where in it the keys of an installation begin."""

    bucket: str
    prefix: str = ""
    """Empty, or ending in a slash."""


def parse_place(url: str) -> BucketPlace:
    """Read ``s3://bucket/prefix``, which the setting has checked."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    return BucketPlace(bucket=parts.netloc, prefix=f"{prefix}/" if prefix else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotName:
    """The workspace whose files a snapshot holds."""

    tenant: str
    name: str
    """The name of the workspace's directory: that of the session for which it was made."""


def find_snapshot_name(root: str, workspaces_dir: str) -> SnapshotName:
    """The name of the workspace at ``root``, wherever the home is. Raises ``ValueError`` for a root elsewhere."""
    match PurePosixPath(root).relative_to(workspaces_dir).parts:
        case (name,):
            return SnapshotName(tenant=DEFAULT_TENANT, name=name)
        case (own, tenant, name) if own == _OWN_TENANTS:
            return SnapshotName(tenant=tenant, name=name)
    raise ValueError(f"{root!r} is no workspace below {workspaces_dir!r}")


def find_root(name: SnapshotName, workspaces_dir: str) -> str:
    """The directory of a workspace in a home."""
    own = () if name.tenant == DEFAULT_TENANT else (_OWN_TENANTS, name.tenant)
    return str(PurePosixPath(workspaces_dir, *own, name.name))


def build_folder(place: BucketPlace, tenant: str, *names: str) -> str:
    """The beginning of the keys of a tenant's objects, with a slash at its end. No two tenants share one."""
    return "".join((place.prefix, *(f"{_encode_name(name)}/" for name in (tenant, *names))))


def _encode_name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"%{quote(name, safe='').replace('.', '%2E')}"


def name_object(secret: bytes, sha: str) -> str:
    """The last part of an object's key. Who does not have the secret cannot tell whether a content is stored."""
    return hmac.new(secret, b"name:" + sha.encode(), hashlib.sha256).hexdigest()


def derive_seal_key(secret: bytes) -> bytes:
    """The key that seals the contents."""
    return hmac.new(secret, b"seal", hashlib.sha256).digest()


def write_pointer(secret: str) -> str:
    """The text in the place of a content that is in object storage. Base64 has no such text."""
    return f"hermes-object:1:{secret}"


def read_pointer(body: str) -> bytes | None:
    """The secret of the object that has the content; ``None`` for a content that the row has itself."""
    found = _POINTER.fullmatch(body)
    return bytes.fromhex(found[1]) if found else None


def name_artifact(tenant: str, content: bytes) -> str:
    """The hash under which a tenant's row about a content stands; the key of the object begins with it."""
    return hashlib.sha256(f"object\n{tenant}\n{hashlib.sha256(content).hexdigest()}".encode()).hexdigest()
