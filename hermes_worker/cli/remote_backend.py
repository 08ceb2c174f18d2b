"""How a server answers the verbs about runs: over the HTTP API, with the client that other programs use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from hermes_worker.cli.follow import Notice
from hermes_worker.cli.run_backend import PAGE, StopOutcome
from hermes_worker.client import HermesClient, operations
from hermes_worker.client.exchange import ApiRequest
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.explaining import Because, Explanation
from hermes_worker.core.run import RunStatus
from hermes_worker.services.results import TurnResult
from hermes_worker.services.sheets import RunSheet
from hermes_worker.store.runs.views import RunView
from hermes_worker.store.short_ids import AmbiguousId
from hermes_worker.stream.sse import WireEvent

_T = TypeVar("_T")
_PREFIX = "run_"
_ID_CHARS = len(_PREFIX) + 32
_LOOKED_THROUGH = 1_000
"""Of the newest runs, for one that begins as was written."""
_PARAMS = {
    "statuses": "status",
    "tags": "tag",
    "cost_usd_min": "min_cost_usd",
    "cost_usd_max": "max_cost_usd",
}
"""Where the API calls a filter otherwise."""


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(kind)

    def read(document: Any) -> Any:
        try:
            return adapter.validate_python(document)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))[:80]
            raise UnavailableError(
                f"the server's answer cannot be read ({where}: {first['msg']}): use the same version on both sides"
            ) from None

    return read


class RemoteBackend:
    """Asks a server."""

    source = "api"

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def run_id(self, written: str) -> str:
        digits = written.strip().removeprefix(_PREFIX).lower()
        if len(written) == _ID_CHARS or not digits or not set(digits) <= set("0123456789abcdef"):
            return written
        begins = f"{_PREFIX}{digits}"
        newest = (view.run_id for _, view in zip(range(_LOOKED_THROUGH), self._views({}), strict=False))
        found = [run_id for run_id in newest if run_id.startswith(begins)]
        if len(found) > 1:
            raise AmbiguousId(f"{written!r} is the beginning of several ids: {', '.join(found[:5])}; write more of it")
        if not found:
            raise ConfigurationError(
                f"none of the newest {_LOOKED_THROUGH:,} runs begins with {written[:80]!r}; write the whole id"
            )
        return found[0]

    def _views(self, params: Mapping[str, Any]) -> Iterator[RunView]:
        request: ApiRequest[operations.Portion[Any]] | None = operations.sheets(**params)
        while request is not None:
            page = self._client.send(request)
            yield from _reader(list[RunView])(page.items)
            request = page.following

    def runs(self, said: Mapping[str, Any], *, before: str | None = None, page: int = PAGE) -> Iterator[RunView]:
        params = {_PARAMS.get(name, name): value for name, value in said.items() if value not in (None, ())}
        return self._views({**params, "limit": min(page, PAGE), **({"before": before} if before else {})})

    def sheet(self, run_id: str) -> RunSheet:
        sheet: RunSheet = _reader(RunSheet)(self._client.sheet(run_id))
        return sheet

    def idle_notice(self, run_id: str) -> str | None:
        return None  # who works there is the operators' business

    def status(self, run_id: str) -> RunStatus:
        return RunStatus(self._client.run(run_id)["status"])

    def result(self, run_id: str) -> TurnResult:
        result: TurnResult = _reader(TurnResult)(self._client.result(run_id))
        return result

    def sample(self, run_id: str) -> dict[str, Any]:
        raise ConfigurationError("--trajectories reads the database itself; call it where the installation is")

    def explain(self, run_id: str) -> Explanation:
        found = self._client.explain(run_id)
        return Explanation(
            because=Because(found["because"]),
            text=found["text"],
            since=found.get("since"),
            until=found.get("until"),
            facts=found["facts"],
        )

    def follow(self, run_id: str) -> Iterator[WireEvent | Notice]:
        for told in self._client.told_events(run_id):
            fields = dict(told.document)
            name, at = str(fields.pop("event", "")), fields.pop("timestamp", 0.0)
            fields.pop("run_id", None)
            yield WireEvent(id=told.id, name=name, at=float(at), fields=fields)

    def stop(self, run_id: str) -> StopOutcome:
        stopped = self._client.stop(run_id)
        return StopOutcome(status=stopped["status"], caused=stopped.get("caused", []))

    def pause(self, run_id: str) -> RunStatus:
        return RunStatus(self._client.pause(run_id)["status"])

    def resume(self, run_id: str) -> RunStatus:
        return RunStatus(self._client.resume(run_id)["status"])

    def steer(self, run_id: str, text: str) -> None:
        self._client.steer(run_id, text)

    def approve(self, run_id: str, choice: str, *, reason: str | None, wait_id: int | None) -> None:
        self._client.approve(run_id, choice, reason=reason, wait_id=wait_id)

    def answer(self, run_id: str, text: str, *, wait_id: int | None) -> None:
        self._client.answer(run_id, text, wait_id=wait_id)

    def retry(self, run_id: str) -> str:
        return self._client.retry(run_id)

    def join(self, run_ids: Sequence[str], *, is_any: bool, timeout_s: float | None) -> Mapping[str, RunStatus]:
        found = self._client.join(run_ids, mode="any" if is_any else "all", timeout_s=timeout_s)["runs"]
        return {end["run_id"]: RunStatus(str(end.get("status"))) for end in found if end["ended"]}
