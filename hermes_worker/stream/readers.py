"""Limits of readers that all kinds of streams share."""

from __future__ import annotations

from enum import StrEnum


class ReadersOf(StrEnum):
    """What has as many readers as it may have."""

    RUN = "run"
    TENANT = "tenant"
    SERVER = "server"


class TooManyReaders(Exception):
    """A run, a tenant, or this process has as many readers as it may have."""

    def __init__(self, whose: ReadersOf) -> None:
        super().__init__(f"this {whose} has too many readers")
        self.whose = whose
