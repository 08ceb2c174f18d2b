from __future__ import annotations

from collections.abc import Callable, Iterator

from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.settings import Settings
from support.greetings.rules import render_greeting


def list_checks(settings: Settings) -> Iterator[tuple[str, Callable[[], tuple[Grade, str]]]]:
    yield "greetings", lambda: (Grade.OK, render_greeting("doctor"))
