"""Directories with a HOOK.yaml: listed without being imported, off until enabled, called as the original calls them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_worker import installed
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.hooks import HOOK_EVENTS
from hermes_worker.extension import ExtensionConflict
from hermes_worker.plugins import begin_extensions, list_available
from hermes_worker.settings import Settings, load_settings
from hermes_worker.tasks.hooks.running import HookRunner, load_hooks

HOOK = "name: ring-bell\ndescription: Rings a bell.\nevents: [agent:end, 'session:*', 'gateway:startup']\n"
HANDLER = """
from pathlib import Path

Path(__file__).with_name("imported").touch()


async def handle(event_type, context):
    Path(__file__).with_name("rung").write_text(f"{event_type} {context['session_id']}")
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("hermes_hooks")]:
        del sys.modules[name]


def directory(home: Path, hook: str = HOOK, handler: str | None = HANDLER) -> Path:
    folder = home / "hooks" / "ring-bell"
    folder.mkdir(parents=True)
    (folder / "HOOK.yaml").write_text(hook)
    if handler is not None:
        (folder / "handler.py").write_text(handler)
    for place in (folder.parent, folder):
        place.chmod(0o755)
    return folder


def settings(home: Path, *enabled: str) -> Settings:
    return load_settings({"HERMES_EXTENSIONS": ",".join(enabled)}, home=home)


def test_it_is_listed_and_neither_enabled_nor_imported(home: Path) -> None:
    folder = directory(home)
    [found] = [one for one in list_available(home) if one.name == "ring-bell"]
    assert found.manifest is not None and found.problem == ""
    assert found.manifest.summary == "Rings a bell."
    assert found.manifest.brings["events"] == ("agent:end", "session:*", "gateway:startup")
    assert begin_extensions(settings(home)).hooks == {}
    assert not (folder / "imported").exists()


def test_its_handler_is_called_with_the_name_and_the_context(home: Path) -> None:
    folder = directory(home)
    hooks = begin_extensions(settings(home, "ring-bell")).hooks
    assert hooks["ring-bell"].events == ("agent:end", "session:start", "session:compress")
    assert not (folder / "imported").exists()  # only a worker that calls it imports it
    [loaded] = load_hooks(installed.get_installed(), HOOK_EVENTS)
    called = HookRunner([loaded]).call(loaded, "e", "agent:end", '{"session_id":"s"}', AbortSignal())
    assert (called.answer, called.failure) == (None, None)
    assert (folder / "rung").read_text() == "agent:end s"


@pytest.mark.parametrize(
    ("hook", "handler", "sentence"),
    [
        ("name: other\nevents: [agent:end]\n", HANDLER, "must be a mapping with name: ring-bell"),
        ("name: ring-bell\n", HANDLER, "must be a list of names"),
        ("name: ring-bell\nevents: [gateway:startup, pre_tool_call]\n", HANDLER, "none of the events"),
        ("{{{", HANDLER, "cannot be read as YAML"),
        (HOOK, None, "holds no handler.py"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(home: Path, hook: str, handler: str | None, sentence: str) -> None:
    directory(home, hook, handler)
    with pytest.raises(ExtensionConflict, match=sentence):
        begin_extensions(settings(home, "ring-bell"))


def test_a_directory_that_others_can_change_is_not_used(home: Path) -> None:
    directory(home).chmod(0o777)
    with pytest.raises(ExtensionConflict, match="can be changed by others"):
        begin_extensions(settings(home, "ring-bell"))
