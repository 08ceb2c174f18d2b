"""The scripts of the crash lab's runs: every step calls one sink of each replay class, each with a mark of its own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from hermes_worker.core.delegation import DELEGATE_TOOL
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.lab.duels import DuelKind

MODEL_DELAY_S = 0.02
"""Seconds that a model call takes: long enough for a kill to fall into it."""
CHILDREN = 4
CHILD_STEPS = 3
_LONG = 200
"""Steps of a child that is there to be stopped."""


class ScriptPart(StrEnum):
    """The purpose of a run, beside its steps."""

    WORKS = "works"
    DELEGATES = "delegates"
    """It begins with children, whose steps count like its own."""
    ASKS = "asks"
    """It begins with a command that a person has to allow."""
    IS_STOPPED = "is_stopped"
    """Its children would work for ever; it is stopped in the middle of that."""


def choose_part(number: int, *, has_trees: bool) -> ScriptPart:
    return list(ScriptPart)[number % len(ScriptPart)] if has_trees else ScriptPart.WORKS


def build_prompt(number: int, steps: int, part: ScriptPart = ScriptPart.WORKS) -> str:
    """The prompt of run ``number``: a script for the scripted model."""
    own = {"calls": _build_sink_calls(f"{number}.{{i}}"), "repeat": steps}
    return _render_script([*_build_opening(number, part), own])


def build_duel_prompt(number: int, kind: DuelKind, processes: str) -> str:
    """The prompt of a duel: one call, of the kind that the duel is about. ``processes`` is the file of the
    workspace to which background processes write their marks."""
    match kind:
        case DuelKind.HELD_MEMORY:
            remember = {"target": "memory", "action": "add", "content": f"duel {number}"}
            return _render_script([_build_step("memory", remember)])
        case DuelKind.HELD_PROCESS:
            command = {"command": f"echo duel-{number} >> {processes}", "background": True}
            return _render_script([_build_step("terminal", command)])
        case DuelKind.HELD_BEGIN | DuelKind.HELD_ONCE | DuelKind.DOUBLED_CALL:
            replay = Replay.ONCE
        case _:
            replay = Replay.KEYED
    return _render_script([_build_step(f"sink_{replay.value}", {"mark": f"duel-{number}.{replay.value}"})])


def build_answer_prompt(mark: str) -> str:
    """The prompt of a run that answers at once."""
    return f"{_render_script([])} ({mark})"


def build_line_prompt(mark: str, steps: int) -> str:
    """The prompt of a run that works for ``steps`` steps while others wait for its session."""
    return _render_script([{"calls": _build_sink_calls(f"{mark}.{{i}}"), "repeat": steps}])


def build_gated_prompt(mark: str, file: str) -> str:
    """The prompt of a run whose one command a person has to allow; it writes ``mark`` to ``file`` in
    the workspace."""
    return _render_script([_build_step("terminal", {"command": f"rm -rf not-there && echo {mark} >> {file}"})])


def count_expected_iterations(steps: int, part: ScriptPart = ScriptPart.WORKS) -> int:
    """Model replies of a run that goes undisturbed: one for each step, and the answer."""
    return steps + 1 + int(part is not ScriptPart.WORKS)


def _build_opening(number: int, part: ScriptPart) -> list[dict[str, Any]]:
    match part:
        case ScriptPart.WORKS:
            return []
        case ScriptPart.ASKS:
            return [_build_step("terminal", {"command": f"rm -rf not-there-{number}"})]
        case ScriptPart.DELEGATES:
            goals = [_build_child(number, child, CHILD_STEPS) for child in range(CHILDREN)]
        case ScriptPart.IS_STOPPED:
            goals = [_build_child(number, child, _LONG) for child in range(CHILDREN)]
    return [_build_step(DELEGATE_TOOL, {"tasks": [{"goal": goal} for goal in goals]})]


def _build_child(number: int, child: int, steps: int) -> str:
    # Written out step by step: a placeholder in here would be filled by the parent's script.
    return _render_script([{"calls": _build_sink_calls(f"{number}.{child}.{step}")} for step in range(steps)])


def _build_step(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"calls": [{"name": tool, "arguments": dict(arguments)}]}


def _build_sink_calls(mark: str) -> list[dict[str, Any]]:
    return [{"name": f"sink_{replay.value}", "arguments": {"mark": f"{mark}.{replay.value}"}} for replay in Replay]


def _render_script(steps: list[dict[str, Any]]) -> str:
    return f"scripted: {dump_canonical_json({'steps': steps, 'final': 'done', 'delay_s': MODEL_DELAY_S})}"
