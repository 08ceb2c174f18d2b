"""What the tools of ``/mcp`` do: the same as the API's routes, for the same callers and with the same scopes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import require_scope
from hermes_worker.api.bodies import validate_body
from hermes_worker.api.context import ApiContext
from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.api.mcp.definitions import NAMES, RUN_ARGUMENTS, WAIT_S_MAX
from hermes_worker.api.mcp.envelope import INVALID_PARAMS, MISSING_CAPABILITY, TASKS, RpcRequest
from hermes_worker.api.mcp.runs_as_tasks import build_result, build_task, describe_in_words, describe_run, wait_id_of
from hermes_worker.api.routes.runs import build_submission
from hermes_worker.api.schema import RequestBody
from hermes_worker.api.stopping import stop
from hermes_worker.core.limits import LimitReached
from hermes_worker.core.principals import KeyScope, Principal
from hermes_worker.core.run_views import RunView, WaitView
from hermes_worker.safety.approvals import ApprovalChoice, parse_choice
from hermes_worker.safety.redaction import redact
from hermes_worker.services import answers as answering
from hermes_worker.services.submission import InvalidSubmission, accept, announce
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.control import STEER_CHARS_MAX, Control, NotAtWork
from hermes_worker.store.runs.runs import RunDeleted, RunNotFound, SessionActive, SessionBusy
from hermes_worker.store.runs.waits import NothingAsked, NotOffered, NotWaiting
from hermes_worker.stream.live import Live

_KEY_META = "hermes-worker/idempotency-key"
"""A key of ``_meta``: the same idempotency key with the same arguments names the same run, as with the header of ``POST
/v1/runs``."""
_KEY = re.compile(schema.KEY_FORM)
_RESPONSES_MAX = 100
_DECLINED = "The person who was asked declined to answer."
_REFUSALS = (
    ApiError,
    InvalidSubmission,
    IdempotencyConflict,
    SessionActive,
    SessionBusy,
    LimitReached,
    NotAtWork,
    NotWaiting,
    NothingAsked,
    NotOffered,
    answering.InvalidAnswer,
    RunNotFound,
    RunDeleted,
)
"""Exceptions that a caller can do something about; the result of the call says what."""


class _RunArguments(RequestBody):
    run_id: str = Field(min_length=1, max_length=80)


class _LookArguments(_RunArguments):
    wait_s: float = Field(0.0, ge=0, le=WAIT_S_MAX)


class _AnswerArguments(_RunArguments):
    text: str | None = Field(None, max_length=100_000)
    choice: str | None = None
    reason: str | None = Field(None, max_length=10_000)
    wait_id: int | None = Field(None, ge=1, le=2**53 - 1)


class _SteerArguments(_RunArguments):
    text: str = Field(min_length=1, max_length=STEER_CHARS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcCaller:
    """A caller of ``/mcp``, with what it takes to answer it."""

    context: ApiContext
    principal: Principal

    async def call(self, asked: RpcRequest) -> dict[str, Any]:
        """Run ``tools/call`` and build its result. Raises ``RpcRefusal``, ``UnavailableError``."""
        name, arguments = asked.params.get("name"), asked.params.get("arguments", {})
        if not isinstance(name, str) or name not in NAMES:
            raise asked.refusal(INVALID_PARAMS, f"Unknown tool: {str(name)[:80]!r}.")
        if not isinstance(arguments, dict):
            raise asked.refusal(INVALID_PARAMS, "'arguments' must be an object.")
        try:
            match name:
                case "run_agent":
                    return await self._run_agent(asked, arguments)
                case "get_run":
                    return await self._get_run(validate_body(arguments, _LookArguments))
                case "answer":
                    return await self._answer(validate_body(arguments, _AnswerArguments))
                case "steer":
                    return await self._steer(validate_body(arguments, _SteerArguments))
                case _:
                    return await self._stop(validate_body(arguments, _RunArguments))
        except _REFUSALS as refused:
            return build_result(_explain_refusal(refused, arguments), is_error=True)

    async def call_task_method(self, asked: RpcRequest) -> dict[str, Any]:
        """Run ``tasks/get``, ``tasks/update`` or ``tasks/cancel`` and build its result. Raises ``RpcRefusal``,
        ``UnavailableError``."""
        if not asked.takes_tasks:
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise asked.refusal(MISSING_CAPABILITY, "This needs the extension Tasks.", needed)
        task_id = asked.params.get("taskId")
        if not isinstance(task_id, str):
            raise asked.refusal(INVALID_PARAMS, "'taskId' must be a text.")
        try:
            run_id = await self._require_own(task_id)
            match asked.method:
                case "tasks/get":
                    view, waits = await self._load_run(run_id)
                    return build_task(view, waits, takes_questions=asked.takes_questions) | {"resultType": "complete"}
                case "tasks/update":
                    await self._take_responses(asked, run_id)
                case _:
                    require_scope(self.principal, KeyScope.RUNS_WRITE)
                    await stop(self.context, run_id, by=self.principal.display_name)
        except _REFUSALS as refused:
            raise asked.refusal(INVALID_PARAMS, _explain_refusal(refused, {"run_id": task_id})) from None
        return {"resultType": "complete"}

    # --- the tools ---------------------------------------------------------------------------------------------------

    async def _run_agent(self, asked: RpcRequest, arguments: Mapping[str, Any]) -> dict[str, Any]:
        require_scope(self.principal, KeyScope.RUNS_WRITE)
        if unknown := sorted(arguments.keys() - RUN_ARGUMENTS):
            raise invalid(unknown[0][:80], f"Unknown parameter: {unknown[0][:80]!r}.", "unknown_parameter")
        body = validate_body(dict(arguments), schema.CreateRun)
        key = asked.meta.get(_KEY_META)
        if key is not None and not (isinstance(key, str) and _KEY.fullmatch(key)):
            raise invalid(_KEY_META, f"Invalid {_KEY_META!r}: it must be 1 to 256 printable characters.")
        submission = build_submission(body, self.principal, key)
        created = await self.context.call_store(accept, self.context.client, submission)
        if not created.was_replayed:
            self.context.spawn(self.context.tell_broker(announce, self.context.client, created))
        if asked.takes_tasks:
            view, waits = await self._load_run(created.run_id)
            # A task that is over when it is made is found so by the first look at it.
            seed = build_task(view, waits, takes_questions=False)
            seed.pop("result", None)
            return seed | {"resultType": "task", "status": "working"}
        document = {"run_id": created.run_id, "session_id": created.session_id, "status": "queued"}
        said = f"The run {created.run_id} was accepted. Ask get_run with this run_id for its answer."
        return build_result(said, document)

    async def _get_run(self, look: _LookArguments) -> dict[str, Any]:
        run_id = await self._require_own(look.run_id)
        if look.wait_s:
            await self.context.waiting.wait_until_ended(self.context, [run_id], is_any=True, timeout_s=look.wait_s)
        view, waits = await self._load_run(run_id)
        return build_result(describe_in_words(view, waits), describe_run(view, waits))

    async def _answer(self, given: _AnswerArguments) -> dict[str, Any]:
        run_id = await self._require_own(given.run_id)
        if (given.text is None) is (given.choice is None):
            raise invalid("text", "Give either 'text', for a question, or 'choice', for an approval.")
        if given.wait_id is None:
            raise invalid("wait_id", "Missing 'wait_id': an answer names the question seen, by its 'id' in get_run.")
        if given.choice is None:
            await self._reply(run_id, str(given.text), given.wait_id)
        else:
            await self._approve(run_id, given.choice, given.reason, given.wait_id)
        return build_result("The answer was taken.", {"run_id": run_id})

    async def _steer(self, words: _SteerArguments) -> dict[str, Any]:
        require_scope(self.principal, KeyScope.RUNS_WRITE)
        run_id = await self._require_own(words.run_id)
        if not words.text.strip():
            raise invalid("text", "Invalid 'text': it is empty.")
        control = Control(self.context.client.database)
        await self.context.call_store(control.steer, run_id, words.text, by=self.principal.display_name)
        self._tell(run_id, ())
        return build_result("The agent reads it with its next tool result.", {"run_id": run_id})

    async def _stop(self, which: _RunArguments) -> dict[str, Any]:
        require_scope(self.principal, KeyScope.RUNS_WRITE)
        run_id = await self._require_own(which.run_id)
        stopped = await stop(self.context, run_id, by=self.principal.display_name)
        document = {"run_id": run_id, "status": stopped.status.value}
        return build_result(f"The run is {stopped.status.value.replace('_', ' ')}.", document)

    # --- what they share ---------------------------------------------------------------------------------------------

    async def _require_own(self, run_id: str) -> str:
        """Raise ``RunNotFound`` for an unknown run, and for a run of another tenant."""
        if not run_id.isprintable():
            raise RunNotFound(run_id)
        return await self.context.call_store(self.context.tenants.require_run, self.principal.tenant, run_id)

    async def _load_run(self, run_id: str) -> tuple[RunView, Sequence[WaitView]]:
        client = self.context.client
        view = await self.context.call_store(client.views.load_run, run_id)
        if view.status.is_terminal:
            return view, ()
        return view, await self.context.call_store(client.waits.list_open, run_id=run_id)

    async def _take_responses(self, asked: RpcRequest, run_id: str) -> None:
        """Give each answer to its question if the question is open; the specification has the others ignored."""
        given = asked.params.get("inputResponses")
        if not isinstance(given, dict) or len(given) > _RESPONSES_MAX:
            raise invalid("inputResponses", f"'inputResponses' must be an object of up to {_RESPONSES_MAX} answers.")
        _, waits = await self._load_run(run_id)
        asks = {wait.wait_id: wait for wait in waits}
        for key, response in given.items():
            wait = asks.get(wait_id_of(key) or 0)
            if wait is None or not isinstance(response, dict):
                continue
            content = response.get("content") if response.get("action") == "accept" else None
            filled = content if isinstance(content, dict) else {}
            try:
                if wait.kind.value == "approval":
                    await self._approve(run_id, str(filled.get("choice", "deny")), None, wait.wait_id)
                else:
                    await self._reply(run_id, str(filled.get("text", _DECLINED)), wait.wait_id)
            except (NotWaiting, NothingAsked):
                continue  # another answer was first

    async def _reply(self, run_id: str, text: str, wait_id: int) -> None:
        require_scope(self.principal, KeyScope.RUNS_WRITE)
        waits, by = self.context.client.waits, self.principal.display_name
        self._tell(run_id, await self.context.call_store(answering.reply, waits, run_id, text, by=by, wait_id=wait_id))

    async def _approve(self, run_id: str, word: str, reason: str | None, wait_id: int) -> None:
        require_scope(self.principal, KeyScope.APPROVE)
        try:
            choice: ApprovalChoice = parse_choice(word)
        except ValueError:
            raise invalid("choice", "Invalid 'choice': it must be one of once, session, always, deny.") from None
        waits, by = self.context.client.waits, self.principal.display_name
        hints = await self.context.call_store(
            answering.approve, waits, run_id, choice, by=by, reason=reason, wait_id=wait_id
        )
        self._tell(run_id, hints)

    def _tell(self, run_id: str, hints: Sequence[Hint]) -> None:
        client = self.context.client

        def tell() -> None:
            if hints:
                client.publisher.send(list(hints))
            Live(client.redis).nudge(run_id)

        self.context.spawn(self.context.tell_broker(tell))


def _explain_refusal(refused: Exception, arguments: Mapping[str, Any]) -> str:
    match refused:
        case RunNotFound():
            return f"Run not found: {str(arguments.get('run_id'))[:80]}"
        case RunDeleted():
            return f"Run was deleted: {str(arguments.get('run_id'))[:80]}"
        case IdempotencyConflict():
            return "This idempotency key was used with other arguments."
        case _:
            return redact(str(refused))[:1_000]
