"""``doctor``'s finding about object storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.settings import Settings


def list_checks(settings: Settings) -> Iterator[tuple[str, Callable[[], tuple[Grade, str]]]]:
    """List the check of the bucket, where one is set."""
    if settings.object_storage.url is not None:
        yield "object storage", partial(check_bucket, settings)


def check_bucket(settings: Settings) -> tuple[Grade, str]:
    """Try every operation on the bucket."""
    from hermes_worker.features.object_storage.service import try_bucket

    wrong = try_bucket(settings)
    where = settings.object_storage.url or ""
    if wrong is not None:
        return Grade.BROKEN, f"{where}: {wrong}; see HERMES_OBJECT_STORAGE and its credentials (docs/object-storage.md)"
    return Grade.OK, f"{where} takes, gives, lists and deletes objects"
