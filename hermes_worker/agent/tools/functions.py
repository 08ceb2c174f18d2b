"""A tool from a typed function with a docstring: its schema from the annotations, its description from the docstring.

    @tool(replay="pure")
    def word_count(text: str) -> int:
        \"\"\"Count the words of a text.\"\"\"
        return len(text.split())

A parameter that is annotated with one of the types of this module is no argument of the model: the worker gives it
(``Stop``, ``Progress``, ``Deadline``, ``Key``, ``Values``, ``Workspace``, ``ToolContext``, or a group of settings).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NewType, Protocol, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from hermes_worker.agent.tools.base import Cancellation, ToolContext, ToolResult
from hermes_worker.agent.tools.interruptible import run_interruptibly
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.extension import SettingValue, ToolDeclaration, ToolSpec
from hermes_worker.setting_groups import fill_group, is_group
from hermes_worker.workspaces.base import Workspace

__all__ = ["Deadline", "FunctionTool", "Key", "Progress", "Stop", "ToolFailed", "Values", "tool"]

_LOOK_EVERY_S = 0.1
_PROBLEMS_MAX = 5


class ToolFailed(HermesError):
    """Raised by a tool's function: the message is what the model is told."""


class Stop(Cancellation, Protocol):
    """Set when the call is to end: the run was stopped, the time is over, the worker leaves. Look at it at least every
    0.2 s (``stop.is_set()``, ``stop.wait(0.1)``)."""


class Progress(Protocol):
    """Tells the run's watchers how far the call is."""

    def __call__(self, text: str) -> None: ...


Key = NewType("Key", str)
"""A text that every attempt of one call has, and no other call: it makes a ``keyed`` tool safe to repeat."""


class Values(dict[str, SettingValue]):
    """The extension's own settings, by the names it declared."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When the worker will cancel the call."""

    at: float
    """The deadline, by ``time.monotonic``."""

    @property
    def left_s(self) -> float:
        """Seconds that are left; never negative."""
        return max(0.0, self.at - time.monotonic())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredFunction(ToolDeclaration):
    """A function that is declared as a tool. It can still be called."""

    function: Callable[..., Any] = field(repr=False)
    given: tuple[Any, ...] = field(default=(), repr=False)
    """The types of what the worker gives it."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


def tool(
    *,
    replay: Replay | str,
    name: str | None = None,
    toolset: str = "",
    timeout_s: float = 120.0,
    is_untrusted: bool = True,
    is_parallel_safe: bool = False,
    result_chars_max: int | None = 100_000,
) -> Callable[[Callable[..., Any]], DeclaredFunction]:
    """Declare a function as a tool. ``replay`` says what may happen to a call whose worker vanished: ``pure`` runs
    again, ``keyed`` runs again with the same ``Key``, ``once`` never runs again.

    ``toolset`` is the extension's name when it is not given. Results count as text of strangers unless ``is_untrusted``
    is false. Raises ``TypeError`` for a function that cannot be a tool.
    """
    try:
        chosen = Replay(replay)
    except ValueError:
        raise TypeError(f"replay is {replay!r}: choose pure, keyed or once") from None

    def declare(function: Callable[..., Any]) -> DeclaredFunction:
        signature = _read_signature(function)
        if chosen is Replay.KEYED and not {Key, ToolContext} & set(signature.given.values()):
            raise TypeError(f"{function.__name__}: a keyed tool takes its key, as a parameter of the type Key")
        spec = ToolSpec(
            name=name or function.__name__,
            description=inspect.cleandoc(function.__doc__ or ""),
            parameters=_build_schema(signature.arguments),
            toolset=toolset,
            replay=chosen,
            is_untrusted=is_untrusted,
            timeout_s=timeout_s,
            result_chars_max=result_chars_max,
            is_parallel_safe=is_parallel_safe,
        )
        return DeclaredFunction(
            spec=spec,
            implementation=partial(FunctionTool, function, signature),
            needs=("spec", "values"),
            function=function,
            given=tuple(signature.given.values()),
        )

    return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSignature:
    """The parameters of a function: arguments of the model, and values that the worker gives."""

    arguments: type[BaseModel]
    given: Mapping[str, Any]
    """Type by parameter."""


_GIVEN = (Stop, Progress, Deadline, Key, Values, Workspace, ToolContext)


def _read_signature(function: Callable[..., Any]) -> FunctionSignature:
    """Read the parameters of a tool's function. Raises ``TypeError`` that names what is missing."""
    name = function.__name__
    if not (function.__doc__ or "").strip():
        raise TypeError(f"{name} has no docstring: it is what a model reads about the tool")
    hints = get_type_hints(function, include_extras=True)
    given: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a tool has no parameter like {parameter}")
        if parameter.name not in hints:
            raise TypeError(f"{name}: the parameter {parameter.name!r} has no type")
        kind = hints[parameter.name]
        if is_group(kind) or any(kind is one for one in _GIVEN):
            given[parameter.name] = kind
        else:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (_add_description(kind), default)
    config = ConfigDict(arbitrary_types_allowed=False, extra="ignore")
    return FunctionSignature(arguments=create_model(name, __config__=config, **fields), given=given)


def _add_description(kind: Any) -> Any:
    """The type with its description: ``Annotated[int, "what it is"]`` describes an argument, as
    ``Field(description=...)`` does.
    """
    if get_origin(kind) is not Annotated:
        return kind
    plain, *notes = get_args(kind)
    told = [Field(description=note) if isinstance(note, str) else note for note in notes]
    described: Any = Annotated[plain, *told] if all(isinstance(note, FieldInfo) for note in told) else kind
    return described


def _build_schema(arguments: type[BaseModel]) -> Mapping[str, Any]:
    schema = arguments.model_json_schema()
    schema.pop("description", None)
    untitled: Any = _drop_titles(schema)
    return {"type": "object", "properties": {}, "required": [], **untitled}


def _drop_titles(schema: Any) -> Any:
    """A schema without the titles that pydantic makes of names: they cost tokens and say nothing. An argument may be
    called ``title``; its schema is no string.
    """
    if isinstance(schema, dict):
        return {
            key: _drop_titles(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)
        }
    return [_drop_titles(one) for one in schema] if isinstance(schema, list) else schema


class FunctionTool:
    """A function, as a ``Tool``."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: FunctionSignature,
        *,
        spec: ToolSpec,
        values: Mapping[str, SettingValue],
    ) -> None:
        self.spec = spec
        self._function = function
        self._signature = signature
        self._values = Values(values)

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call the function. Raises what the function raises, except ``ToolFailed``, whose message becomes the
        result.
        """
        try:
            parsed = self._signature.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            return build_error_result(f"{self.spec.name} was not run: {_format_problems(error)}")
        given = {name: self._make_injected_value(kind, context) for name, kind in self._signature.given.items()}
        wanted = {name: getattr(parsed, name) for name in type(parsed).model_fields}
        work = partial(self._call_function, {**wanted, **given}, context.cancelled)
        try:
            # A call with an effect is waited for: otherwise it would be unknown whether it had it.
            return _build_result(
                run_interruptibly(work, context.cancelled) if self.spec.replay is Replay.PURE else work()
            )
        except ToolFailed as error:
            return build_error_result(str(error))

    def _call_function(self, arguments: Mapping[str, Any], cancelled: Cancellation) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return asyncio.run(_await_or_cancel(self._function(**arguments), cancelled))
        return self._function(**arguments)

    def _make_injected_value(self, kind: Any, context: ToolContext) -> Any:
        if kind is Stop:
            return context.cancelled
        if kind is Progress:
            return lambda text: context.progress(context.redactor.redact_text(str(text)))
        if kind is Deadline:
            return Deadline(time.monotonic() + self.spec.timeout_s)
        if kind is Key:
            return context.idempotency_key
        if kind is Workspace:
            return context.workspace
        if is_group(kind):
            return fill_group(kind, self._values)
        return Values(self._values) if kind is Values else context


async def _await_or_cancel(work: Any, cancelled: Cancellation) -> Any:
    """Run a coroutine and return its result; a stop cancels it, and then ``ToolFailed`` is raised."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=_LOOK_EVERY_S)
        if cancelled.is_set() and not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise ToolFailed("the call was interrupted")
    return task.result()


def _build_result(value: Any) -> ToolResult:
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, str):
        return ToolResult(text=value)
    return ToolResult(text=dump_canonical_json(to_jsonable_python(value)))


def _format_problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)[:_PROBLEMS_MAX]
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in found)
