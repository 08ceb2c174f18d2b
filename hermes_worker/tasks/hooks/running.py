"""Call a hook without depending on it: a thread of its own, a time limit, an answer that is plain JSON.

Python cannot end a thread. One that outstays its limit is abandoned: nothing waits for it, and what it answers later is
lost. A hook that was abandoned three times in a process is switched off there, so that hung threads cannot add up. It
is called again when they have ended after all and some minutes are over: a service may have been away.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from hermes_worker.core.hooks import ANSWER_CHARS_MAX, HookEvent, expand_events
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.extension import HookDeclaration, Installed, Reference, SettingValue, load_reference
from hermes_worker.observe import count, log
from hermes_worker.safety.redaction import redact

ABANDONED_MAX = 3
"""How many calls of one hook may outstay their time in one process before the hook is switched off."""
REST_S: Final = 300.0
"""How long a hook that was switched off is left alone at least, in seconds."""
_LOOK_EVERY_S = 0.05
_FAILURE_CHARS_MAX = 300


class HookAbort(Protocol):
    """Set when the caller of a hook has to leave."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedHook:
    """A hook that can be called here."""

    name: str
    events: frozenset[str]
    call: Reference
    """The function that the declaration names, imported."""
    timeout_s: float
    values: Mapping[str, SettingValue] = field(default_factory=dict, repr=False)
    """The settings of its extension, as far as this process has them."""
    is_handler: bool = False
    of_memory: bool = False
    """Called only about runs that may write memories; what it answers is judged as recalled memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOutcome:
    """The outcome of calling a hook. At most one of ``answer`` and ``failure`` is set."""

    answer: str | None = None
    """The hook's answer as JSON; ``None`` when it answered nothing."""
    failure: str | None = None
    """Why it counts as not called, in words that hold no secret."""
    was_broken_off: bool = False
    """The caller had to leave while it ran."""
    duration_s: float = 0.0


class HookRunner:
    """The hooks of one process. Thread-safe."""

    def __init__(self, hooks: Sequence[LoadedHook] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """``hooks`` stand in the order in which they are asked."""
        found: dict[str, list[LoadedHook]] = {}
        for hook in hooks:
            for event in hook.events:
                found.setdefault(event, []).append(hook)
        self._by_event: Mapping[str, Sequence[LoadedHook]] = MappingProxyType(found)
        self._by_name = {hook.name: hook for hook in hooks}
        self._abandoned: dict[str, list[_CallOnThread]] = {}
        self._off_at: dict[str, float] = {}
        self._clock = clock
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._by_event)

    def select_hooks(self, event: str) -> Sequence[LoadedHook]:
        """The hooks for an event, in their order; empty for most events."""
        return self._by_event.get(event, ())

    def find_hook(self, name: str) -> LoadedHook | None:
        return self._by_name.get(name)

    def is_off(self, hook: LoadedHook) -> bool:
        """Whether the hook hung so often that it is not called here, for now or as long as one of its calls hangs."""
        with self._lock:
            off_at = self._off_at.get(hook.name)
            if off_at is None:
                return False
            if self._clock() - off_at < REST_S or not all(work.is_done.is_set() for work in self._abandoned[hook.name]):
                return True
            del self._off_at[hook.name], self._abandoned[hook.name]
        log.info("hook.returned", hook=hook.name)
        return False

    def call(self, hook: LoadedHook, event_id: str, event: str, payload: str, stopping: HookAbort) -> HookOutcome:
        """Call ``hook`` with a copy of ``payload``, which is JSON. Never raises, and returns soon after the hook's time
        limit or when ``stopping`` is set."""
        if self.is_off(hook):
            return HookOutcome(failure=f"it is switched off in this process: it hung {ABANDONED_MAX} times")
        work = _CallOnThread(hook, event_id, event, payload)
        began = time.monotonic()
        work.start()
        while not work.is_done.wait(min(_LOOK_EVERY_S, hook.timeout_s)):
            if stopping.is_set():
                return HookOutcome(was_broken_off=True, duration_s=time.monotonic() - began)
            if time.monotonic() - began >= hook.timeout_s:
                return self._abandon(work, hook, event, time.monotonic() - began)
        return work.get_outcome(time.monotonic() - began)

    def _abandon(self, work: _CallOnThread, hook: LoadedHook, event: str, duration_s: float) -> HookOutcome:
        with self._lock:
            left_behind = self._abandoned.setdefault(hook.name, [])
            left_behind.append(work)
            is_off = len(left_behind) >= ABANDONED_MAX
            if is_off:
                self._off_at[hook.name] = self._clock()
        count("hook.abandoned")
        log.warning("hook.abandoned", hook=hook.name, hook_event=event, is_off=is_off)
        why = f"it had not answered after {hook.timeout_s:g} s"
        if is_off:
            why += " and is switched off in this process"
        return HookOutcome(failure=why, duration_s=duration_s)


class _CallOnThread:
    """One call of a hook, on a thread of its own."""

    def __init__(self, hook: LoadedHook, event_id: str, event: str, payload: str) -> None:
        self._hook = hook
        self._event_id = event_id
        self._event = event
        self._payload = payload
        self._answer: str | None = None
        self._failure: str | None = None
        self.is_done = threading.Event()

    def start(self) -> None:
        context = copy_context()
        threading.Thread(target=lambda: context.run(self._run), name=f"hook {self._hook.name}", daemon=True).start()

    def get_outcome(self, duration_s: float) -> HookOutcome:
        return HookOutcome(answer=self._answer, failure=self._failure, duration_s=duration_s)

    def _run(self) -> None:
        try:
            answer = self._call_hook()
            # Written here: what it returned is others' code too, and may hang or raise when it is looked at.
            written = None if answer is None else dump_canonical_json(answer)
            if written is not None and len(written) > ANSWER_CHARS_MAX:
                self._failure = f"its answer has {len(written):,} characters; at most {ANSWER_CHARS_MAX:,} are read"
            else:
                self._answer = written
        except BaseException as error:  # others wrote it, and it may even try to end the process
            self._failure = _format_error(error)
        finally:
            self.is_done.set()

    def _call_hook(self) -> Any:
        hook, payload = self._hook, json.loads(self._payload)
        if hook.is_handler:
            answer = hook.call(self._event, payload)  # type: ignore[operator]
        else:
            told = HookEvent(id=self._event_id, name=self._event, payload=payload, values=hook.values)
            answer = hook.call(told)  # type: ignore[operator]
        if not inspect.isawaitable(answer):
            return answer

        async def await_answer() -> Any:
            return await asyncio.wait_for(answer, hook.timeout_s)

        return asyncio.run(await_answer())


def _format_error(error: BaseException) -> str:
    """Format the error of a foreign function for an event: short, and without what looks like a secret."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return redact(text[: 4 * _FAILURE_CHARS_MAX])[:_FAILURE_CHARS_MAX].rstrip(": ")


def load_hooks(found: Installed, events: Collection[str]) -> list[LoadedHook]:
    """The hooks of ``found`` for any of ``events``, imported. Raises ``ConfigurationError`` for one that cannot be."""
    values = {hook.name: found.values[one.name] for one in found.extensions for hook in one.hooks}
    return [
        _load_hook(hook, mine, values[hook.name])
        for hook in found.hooks.values()
        if (mine := frozenset(expand_events(hook.events)) & frozenset(events))
    ]


def _load_hook(hook: HookDeclaration, events: Iterable[str], values: Mapping[str, SettingValue]) -> LoadedHook:
    return LoadedHook(
        name=hook.name,
        events=frozenset(events),
        call=load_reference(hook.implementation),
        timeout_s=hook.timeout_s,
        values=values,
        is_handler=hook.is_handler,
        of_memory=hook.of_memory,
    )
