"""The quick ring: tests that start no process and no server, for the time between two edits.

``pytest -m quick`` takes about a minute on two cores. Which tests belong to it is said here and nowhere else, by folder
and file. A test that is marked ``slow``, ``nightly`` or ``machine``, or asks for a server's fixture, never does. When
the ring runs by itself, a test that starts a process or listens on a socket fails with a sentence.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

QUICK = (
    "api/test_merge.py",
    "core",
    "delivery/test_email.py",
    "delivery/test_markup.py",
    "delivery/test_media.py",
    "delivery/test_send_errors.py",
    "delivery/test_signature.py",
    "delivery/test_splitting.py",
    "delivery/test_targets.py",
    "prompt",
    "providers/test_anthropic_conversion.py",
    "providers/test_catalog.py",
    "providers/test_chat_reply.py",
    "providers/test_framing.py",
    "providers/test_provider_errors.py",
    "providers/test_responses_conversion.py",
    "providers/test_sse.py",
    "redaction",
    "scheduler/test_cron_fields.py",
    "scheduler/test_jobtext.py",
    "scheduler/test_lifecycle_guard.py",
    "scheduler/test_schedule_grammar.py",
    "scheduler/test_schedule_slots.py",
    "scheduler/test_silence.py",
    "scheduler/test_slot_policy.py",
    "simulation",
    "tasks/test_turnstile.py",
    "test_settings.py",
    "tools/test_command_output.py",
    "tools/test_fuzzy.py",
    "tools/test_network_rules.py",
    "tools/test_textfile.py",
    "tools/test_tool_arguments.py",
    "tools/test_tool_catalog.py",
    "tools/test_tool_results.py",
    "tools/test_tool_todo.py",
    "tools/test_v4a.py",
    "tools/test_webpage.py",
    "tools/test_workspace_paths.py",
    "tools/test_workspace_ref.py",
    "webhooks/test_webhook_pure.py",
)
"""Folders and files below ``tests``."""

_NOT_QUICK = ("core/test_shell_against_bash.py", "simulation/test_hooks_simulation.py")
"""Files in those folders that start processes or servers."""
_DEAR = re.compile(
    r"redaction/test_false_alarms.py::test_the_standard_library_stays_as_it_is"
    r"|simulation/test_simulation.py::test_(whatever_goes|however_much|the_real_store|a_store_that|the_store_that)"
    r"|api/test_merge.py::test_any_interleaving"
    r"|scheduler/test_schedule_slots.py::test_(every_matching_wall_time|no_slot_before_the_start)"
    r"|test_(hostile_text|the_time_grows|no_text_makes|no_rule_takes|a_clean_megabyte|the_same_piece_thousands)"
)
"""Tests in those folders that take seconds each, and those that measure time, which want a processor for themselves."""

_SERVERS = {"shared_valkey", "own_valkey", "shared_postgres_farm", "database_url"}
_FORBIDDEN = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "socket.bind"}
"""Audit events of a process that is started and of a socket that gets an address."""


@cache
def holds_quick_tests(path: Path) -> bool:
    """Whether a folder or file below ``tests`` is in the ring, or leads to something that is."""
    if path == TESTS or not path.is_relative_to(TESTS):
        return True
    place = f"{path.relative_to(TESTS).as_posix()}/"
    return not place.startswith(_NOT_QUICK) and any(
        place.startswith(f"{each}/") or f"{each}/".startswith(place) for each in QUICK
    )


def is_quick(item: pytest.Item) -> bool:
    if not _is_quick_file(item.path) or _DEAR.search(item.nodeid):
        return False
    if any(item.get_closest_marker(name) for name in ("slow", "machine", "nightly")):
        return False
    return _SERVERS.isdisjoint(getattr(item, "fixturenames", ()))


@cache
def _is_quick_file(path: Path) -> bool:
    return path.is_relative_to(TESTS) and holds_quick_tests(path)


def refuse_processes_and_servers() -> None:
    """From now on, for as long as this process lives."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in _FORBIDDEN:
        raise RuntimeError(f"a quick test may not do this: {event} (see tests/support/quick.py)")
