"""Work that only computes, and may take long: a stop is heard while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from hermes_worker.agent.tools.base import Cancellation

_LOOK_EVERY_S = 0.05
_T = TypeVar("_T")


class ToolInterrupted(Exception):
    """The call was cancelled while it computed; nothing was done."""


def run_interruptibly(work: Callable[[], _T], cancelled: Cancellation) -> _T:
    """Return what ``work`` returns, or raise what it raises. Raises ``ToolInterrupted`` within moments of a stop.

    The work then goes on for nothing until it ends by itself, so it must have no effect and a bounded input. It runs on
    a thread of its own: code that compares texts or shrinks an image cannot be interrupted. Only a single regular
    expression that runs for long delays even this.
    """
    found: list[_T] = []
    raised: list[BaseException] = []
    is_done = threading.Event()
    context = copy_context()

    def run() -> None:
        try:
            found.append(context.run(work))
        except BaseException as error:  # handed to the caller
            raised.append(error)
        finally:
            is_done.set()

    threading.Thread(target=run, name="compute", daemon=True).start()
    while not is_done.wait(_LOOK_EVERY_S):
        if cancelled.is_set():
            raise ToolInterrupted("the call was interrupted; nothing was done")
    if raised:
        raise raised[0]
    return found[0]
