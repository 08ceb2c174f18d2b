"""Write the table of replay classes in ``docs/dispatch.md``: ``python docs/make_replay_table.py``.

The classes are those of the declarations. Why each is right stands here and nowhere else; a tool without a line is an
error, and so is a line without a tool. A new tool of the product, of an addon or of the browser needs its line in
``WHY`` before the table can be made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hermes_worker.agent.source_tools import build_bridge_specs
from hermes_worker.browser.declarations import build_browser_extension
from hermes_worker.extension import ToolSpec, load_reference
from hermes_worker.installed import load_built_in
from hermes_worker.plugins import list_addons

PAGE: Final = Path(__file__).with_name("dispatch.md")
BEGIN, END = "<!-- replay classes: made by docs/make_replay_table.py -->", "<!-- end of replay classes -->"
_LOOKS = "it only looks"
_SPENDS = "the same question again costs a request and changes nothing"
_FURTHER = "a second time it would be further"
WHY: Final[Mapping[str, str]] = {
    "browser_back": _FURTHER,
    "browser_cdp": "a DevTools command may do anything",
    "browser_click": "a click may buy something",
    "browser_console": "an expression may do anything",
    "browser_get_images": _LOOKS,
    "browser_navigate": "opening a link may use it up",
    "browser_press": "Enter sends forms",
    "browser_scroll": _FURTHER,
    "browser_snapshot": _LOOKS,
    "browser_type": "pages act on what is typed",
    "browser_vision": "it only looks, and the question to the model is a row of its own",
    "clarify": "the call says what is asked for; the question is a row that the parking transaction writes",
    "cronjob": "a job that is made or run twice is two jobs, or two runs",
    "delegate_task": "the call says what is asked for; the parking transaction makes the children",
    "execute_code": "a program may do anything, and so may the tools that it calls",
    "ha_call_service": "a switch that is toggled twice is where it was",
    "ha_get_state": _LOOKS,
    "ha_list_entities": _LOOKS,
    "ha_list_services": _LOOKS,
    "hindsight_recall": _LOOKS,
    "honcho_search": _LOOKS,
    "image_generate": "each picture is paid for and is another one",
    "mem0_search": _LOOKS,
    "memory": "the store knows a change by the key of its call",
    "patch": "a change that was made is not found again, or is made twice",
    "process": "a program that reads a line twice acts twice",
    "process kill": "an id is given to one process ever, and one that has ended stays so",
    "process list": _LOOKS,
    "process log": "that the end was seen is written twice with the same effect",
    "process poll": "that the end was seen is written twice with the same effect",
    "process wait": "that the end was seen is written twice with the same effect",
    "read_file": _LOOKS,
    "search_files": _LOOKS,
    "send_message": "the outbox knows a message by the key of its call",
    "session_search": _LOOKS,
    "skill_manage": "the store knows a change by the key of its call",
    "skill_view": "a run's skills never change, and a file that it lays out has their hash in its path",
    "skills_list": "a run's skills never change",
    "terminal": "a command may do anything",
    "text_to_speech": "each recording is paid for, and is a file",
    "todo": "the transaction that settles the call writes the list",
    "tool_call": "what it names is called, with the class of that tool",
    "tool_describe": "it looks at what the session stores",
    "tool_search": "it looks at what the session stores",
    "vision_analyze": _SPENDS,
    "web_extract": "it fetches with GET, which changes nothing",
    "web_search": _SPENDS,
    "write_file": "the same content in the same place",
}


def specs() -> Iterator[ToolSpec]:
    """Of all tools that come with the product, whatever is enabled."""
    for extension in load_built_in():
        yield from (tool.spec for tool in extension.tools)
    for found in list_addons():
        yield from (tool.spec for tool in load_reference(f"hermes_worker.addons.{found.name}:EXTENSION").tools)
    yield from (tool.spec for tool in build_browser_extension(has_cdp=True).tools)
    yield from build_bridge_specs(1)


def classes() -> dict[str, str]:
    """The replay class of each tool, and of a value that has another one (``process kill``)."""
    found: dict[str, str] = {}
    for spec in specs():
        found[spec.name] = spec.replay.value
        if spec.replay_by is not None:
            found |= {f"{spec.name} {value}": replay.value for value, replay in spec.replay_by[1].items()}
    return found


def table(of: Mapping[str, str], why: Mapping[str, str] = WHY) -> str:
    """Raises ``LookupError`` with a sentence for whoever added a tool."""
    if lacking := sorted(of.keys() - why.keys()):
        raise LookupError(
            f"{', '.join(lacking)}: say in WHY of docs/make_replay_table.py why the replay class is right, then run "
            "python docs/make_replay_table.py"
        )
    if surplus := sorted(why.keys() - of.keys()):
        raise LookupError(f"{', '.join(surplus)}: WHY of docs/make_replay_table.py names what is no tool any more")
    rows = [f"| `{name}` | `{of[name]}` | {why[name]} |" for name in sorted(of)]
    return "\n".join([BEGIN, "", "| call | class | why |", "|---|---|---|", *rows, "", END])


def page(text: str) -> str:
    """The page with the table of today."""
    before, begins, rest = text.partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not begins or not ends:
        raise LookupError(f"{PAGE.name} has no place for the table: {BEGIN} ... {END}")
    return before + table(classes()) + after


if __name__ == "__main__":
    try:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    except LookupError as error:
        sys.exit(str(error))
