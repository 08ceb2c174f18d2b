"""How many may read at a time, as far as all kinds of streams have it in common."""

from __future__ import annotations

from enum import StrEnum


class ReadersOf(StrEnum):
    """Who has as many readers as it may have."""

    RUN = "run"
    TENANT = "tenant"
    SERVER = "server"


class TooManyReaders(Exception):
    """A run, a tenant, or this process has as many readers as it may have."""

    def __init__(self, whose: ReadersOf) -> None:
        super().__init__(f"this {whose} has too many readers")
        self.whose = whose
