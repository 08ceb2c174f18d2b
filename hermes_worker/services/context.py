"""Ask the context sources for their blocks of a new session's system prompt.

Sources of extensions run in threads of their own, each for as long as its declaration says: never in the thread of an
event loop, and never inside a transaction, because a run is accepted after they were asked. A source that fails, hangs
or is busy leaves its block out; the session begins without it, and a line in the log says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

from hermes_worker import installed
from hermes_worker.agent.prompt.sources import ContextFacts, PromptBlock, build_block
from hermes_worker.extension import ContextSourceDeclaration, load_reference
from hermes_worker.observe import count, log

ASKED_AT_ONCE = 8
"""Most threads of one source in one process. A source that hangs keeps its threads, and more would not help it."""
_running: dict[str, int] = {}
_counting = threading.Lock()


def compute_pure_blocks(facts: ContextFacts) -> tuple[PromptBlock, ...]:
    """List the blocks of the sources that compute from the facts alone. Quick."""
    declared = (one for one in installed.get_installed().context_sources.values() if one.is_pure)
    found = (build_block(one, load_reference(one.implementation)(facts)) for one in declared)
    return tuple(block for block in found if block is not None)


def has_slow_sources() -> bool:
    """Whether there are sources that take time."""
    return any(not one.is_pure for one in installed.get_installed().context_sources.values())


def ask_for_blocks(facts: ContextFacts) -> tuple[PromptBlock, ...]:
    """Ask all other sources at the same time, and list their blocks. Takes as long as the slowest one may; raises
    nothing."""
    began = time.monotonic()
    asked = [
        (one, _begin_asking(one, replace(facts, values=found.values[extension.name])))
        for found in (installed.get_installed(),)
        for extension in found.list_bringing("context_sources")
        for one in extension.context_sources
        if not one.is_pure
    ]
    blocks = (_await_answer(one, answer, began) for one, answer in asked)
    return tuple(block for block in blocks if block is not None)


def sort_blocks(blocks: Sequence[PromptBlock]) -> tuple[PromptBlock, ...]:
    """Sort blocks in the order in which they stand in the prompt; equal ones as their extensions do."""
    return tuple(sorted(blocks, key=lambda block: block.order))


def _begin_asking(declared: ContextSourceDeclaration, facts: ContextFacts) -> Future[object] | None:
    """Begin to ask a source; ``None`` for one that is busy with too many others."""
    with _counting:
        if _running.get(declared.name, 0) >= ASKED_AT_ONCE:
            return None
        _running[declared.name] = _running.get(declared.name, 0) + 1
    answer: Future[object] = Future()

    def ask() -> None:
        try:
            answer.set_result(load_reference(declared.implementation)(facts))
        except BaseException as error:  # foreign code: any exception leaves its block out
            answer.set_exception(error)
        finally:
            with _counting:
                _running[declared.name] -= 1

    threading.Thread(target=ask, name=f"context-{declared.name}", daemon=True).start()
    return answer


def _await_answer(
    declared: ContextSourceDeclaration, answer: Future[object] | None, began: float
) -> PromptBlock | None:
    reason = "it is busy"
    if answer is not None:
        try:
            error = answer.exception(max(0.0, began + declared.timeout_s - time.monotonic()))
            if error is None:
                return build_block(declared, answer.result())
            reason = f"{type(error).__name__}: {error}"
        except FutureTimeout:
            reason = f"it took longer than {declared.timeout_s:g} s"
        except TypeError as no_text:
            reason = str(no_text)
    count("context.left_out")
    log.warning("context.left_out", context_source=declared.name, reason=reason)
    return None
