"""Try the object storage that the settings name."""

from __future__ import annotations

import secrets

from hermes_worker.features.object_storage.build import build_bucket
from hermes_worker.features.object_storage.rules import parse_place
from hermes_worker.settings import Settings
from hermes_worker.workspaces.base import WorkspaceAway


def try_bucket(settings: Settings) -> str | None:
    """Write, read, list and delete an object; return what went wrong, else ``None``."""
    place, bucket = parse_place(settings.object_storage.url or ""), build_bucket(settings)
    folder = f"{place.prefix}doctor-{secrets.token_hex(8)}/"
    key, content = f"{folder}probe", secrets.token_bytes(64)
    try:
        bucket.put(key, content)
        is_right = bucket.get(key) == content and [each.key for each in bucket.list_objects(folder)] == [key]
        bucket.delete([key])
        is_right = is_right and bucket.get(key) is None
    except WorkspaceAway as error:
        return str(error)
    return None if is_right else "object storage does not give back what was written, or does not list or delete it"
