"""The product in one process, for a test: real steps over real rows, done one by one on the caller's thread."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from hermes_worker import plugins
from hermes_worker.broker.queue import build_home_client
from hermes_worker.core.json_values import parse_json
from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.extension import Agent, Extension, ToolDeclaration
from hermes_worker.local.paths import build_embedded_database_url
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.services.submission import Submission, accept
from hermes_worker.settings import load_settings
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.rows import Hint
from hermes_worker.store.sweep import Sweeper, SweepPolicy
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultInjected, FaultPoint
from hermes_worker.tasks.build import WorkerOptions
from hermes_worker.tasks.context import WorkerContext, WorkerModels
from hermes_worker.tasks.driving import HintList, do_step, drive_steps
from hermes_worker.testing.models import MODEL, PROVIDER, ModelChainOfOne, ScriptedModel
from hermes_worker.wiring import Client, build_client, build_step_parts, open_database

_LEASE_S = 3600.0
_STEPS_MAX = 10_000
_PRICE = f"{PROVIDER}:{MODEL}=1/10"
"""US dollars for a million tokens, so that a test can look at costs."""
_TOOLSET = "tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCall:
    """A tool call of a run."""

    name: str
    arguments: Mapping[str, Any]
    status: CallStatus
    """``succeeded``, ``failed``, ``unknown`` (its worker vanished after it had begun) and so on."""
    attempt: int
    """How often it was begun."""
    result: str
    """What the model was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that nothing more can be done for: it has ended, or waits for a person."""

    run_id: str
    session_id: str
    status: RunStatus
    output: str | None
    error: str | None
    cost_usd: Decimal | None
    """At 1 US dollar for a million tokens in and 10 out, a token being four characters."""
    calls: Sequence[MadeCall]
    messages: Sequence[Mapping[str, Any]]
    """The transcript of its session, in the form of chat completions."""

    def require_completed(self) -> FinishedRun:
        """Return this run. Raises ``AssertionError`` with the reason when it did not complete."""
        assert self.status is RunStatus.COMPLETED, f"the run is {self.status.value}: {self.error}"
        return self

    def list_calls(self, name: str) -> Sequence[MadeCall]:
        """List the calls of one tool."""
        return [one for one in self.calls if one.name == name]

    def require_call(self, name: str, /, **arguments: Any) -> MadeCall:
        """Return the only call of the tool ``name`` whose arguments include these. Raises ``AssertionError``."""
        found = [one for one in self.list_calls(name) if arguments.items() <= one.arguments.items()]
        made = [(one.name, dict(one.arguments)) for one in self.calls]
        assert len(found) == 1, f"{len(found)} calls of {name} with {arguments}; the run made {made}"
        return found[0]


def _build_model(model: ScriptedModel | Iterable[Any] | Callable[..., Any]) -> ScriptedModel:
    return model if isinstance(model, ScriptedModel) else ScriptedModel(model)


class AgentStack:
    """One installation in a directory, without processes, threads and ports. A context manager.

    Nothing happens by itself: ``run`` and ``drive`` do all steps that are due, in the caller's thread. One stack at a
    time is in force in a process.
    """

    def __init__(
        self,
        home: Path,
        model: ScriptedModel | Iterable[Any] | Callable[..., Any],
        *,
        tools: Sequence[ToolDeclaration] = (),
        agents: Sequence[Agent] = (),
        extensions: Sequence[Extension] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``model`` is a ``ScriptedModel`` or what one is made of. ``tools`` are functions with the decorator ``tool``,
        ``agents`` what runs name as ``agent:NAME``, ``extensions`` values as an entry point gives them, and ``environ``
        settings as in the environment, of which the process's own are not read. Raises ``ConfigurationError``."""
        home.mkdir(parents=True, exist_ok=True)
        chosen = {
            "HERMES_HOME": str(home),
            "HERMES_MODEL": MODEL,
            "HERMES_PROVIDER": PROVIDER,
            "HERMES_BASE_URL": "http://127.0.0.1:9/v1",  # never asked
            "HERMES_MODEL_PRICES": _PRICE,
            "HERMES_LEASE_TTL_S": str(_LEASE_S),
            **(environ or {}),
        }
        settings = load_settings(chosen)
        database_file = Path(str(Database(build_embedded_database_url(home)).url.database))
        if not database_file.exists():
            shutil.copyfile(_make_template(), database_file)
        self._hints = HintList()
        client = build_client(settings, open_database(settings), build_home_client(lambda: None))
        self.client: Client = replace(client, publisher=self._hints)  # type: ignore[arg-type]
        own = Extension(name=_TOOLSET, version="0", tools=tuple(tools), agents=tuple(agents))
        plugins.use_extensions(settings, [*extensions, own])
        policy = SweepPolicy(interval_s=0.0, ttl_s=_LEASE_S, resend_grace_s=0.0)
        self._sweeper = Sweeper(client.database, policy)
        self._workers = 0
        self.model = _build_model(model)
        self._parts = self._start_worker()

    def __enter__(self) -> AgentStack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the database, and put the extensions of the stack out of force."""
        self.model.close()
        self.client.close()
        plugins.forget_extensions()

    def use_model(self, model: ScriptedModel | Iterable[Any] | Callable[..., Any]) -> None:
        """Go on with another model, or another script."""
        self.model.close()
        self.model = _build_model(model)
        self._parts = self._start_worker()

    def submit(self, text: str, **options: Any) -> str:
        """Accept a run without doing any step, and return its id. ``options`` are fields of
        ``services.submission.Submission``, such as ``session_id``, ``toolsets``, ``iterations_max``, ``cost_usd_max``.
        Raises what ``services.submission.submit`` raises."""
        created = accept(self.client, Submission(input=text, **options))
        self._hints.send(created.hints)
        return created.run_id

    def run(self, text: str, **options: Any) -> FinishedRun:
        """Submit a run, do everything that is due, and return what became of it."""
        run_id = self.submit(text, **options)
        self.drive()
        return self.load(run_id)

    def drive(self) -> None:
        """Do all steps that are due, of all runs, until nothing is left but waits for people and times. Raises
        ``AssertionError`` after 10,000 steps."""
        if not drive_steps(self._hints, self._sweeper, self._do_step, steps_max=_STEPS_MAX):
            raise AssertionError(f"the runs are not done after {_STEPS_MAX} steps")

    def load(self, run_id: str) -> FinishedRun:
        """Load what became of a run so far. Raises ``RunNotFound``."""
        view = self.client.views.load_run(run_id)
        rows = [json.loads(row.body) for row in self.client.views.load_transcript(run_id)]
        return FinishedRun(
            run_id=run_id,
            session_id=view.session.id,
            status=view.status,
            output=view.output,
            error=view.error,
            cost_usd=view.cost_usd,
            calls=self._list_calls(run_id, rows),
            messages=rows,
        )

    def answer(self, run_id: str, *, allow: bool) -> FinishedRun:
        """Answer the oldest question of a run about a dangerous call, do what is due, and return what became of it.
        Raises ``NothingAsked``."""
        choice = ApprovalChoice.ONCE if allow else ApprovalChoice.DENY
        self._hints.send(self.client.waits.approve(run_id, choice, by="cli:tester"))
        self.drive()
        return self.load(run_id)

    @contextmanager
    def killed_at(self, point: FaultPoint | str, *, hit: int = 1) -> Iterator[None]:
        """Kill the worker when it passes ``point`` for the ``hit``-th time inside the block: what it holds is lost, its
        lease ends, and the next worker goes on with what stands in the rows. ``FaultPoint`` lists the points; after
        ``CALL_TOOL_AFTER_RUN`` a tool has acted and its result is not stored. Raises ``AssertionError`` when the point
        was not passed."""
        before = self._workers
        faults.arm_faults(f"{FaultPoint(point).value}=raise@{hit}")
        try:
            yield
        finally:
            faults.disarm_faults()
        assert self._workers > before, f"no step passed {FaultPoint(point).value!r} {hit} times"

    def _start_worker(self) -> WorkerContext:
        self._workers += 1
        options = WorkerOptions(name=f"test-worker-{self._workers}")
        return build_step_parts(
            self.client, options, WorkerModels(chain=ModelChainOfOne(self.model), prices=_load_prices())
        )

    def _do_step(self, hint: Hint) -> None:
        try:
            do_step(self._parts, hint)
        except FaultInjected:
            self.client.workers.expire_leases(f"test-worker-{self._workers}")
            self._parts = self._start_worker()

    def _list_calls(self, run_id: str, transcript: Sequence[Mapping[str, Any]]) -> Sequence[MadeCall]:
        """List the calls in the order of the ledger. The transcript up to the run's end holds them last, in that
        order."""
        made_calls = self.client.views.list_calls(run_id)
        asked = [one for row in transcript for one in row.get("tool_calls") or ()][-len(made_calls) or None :]
        results = {row["tool_call_id"]: row.get("content") or "" for row in transcript if row["role"] == "tool"}
        return [
            MadeCall(
                name=made.name,
                arguments=_read_arguments(request["function"]["arguments"]),
                status=made.status,
                attempt=made.attempt,
                result=results.get(request["id"], ""),
            )
            for made, request in zip(made_calls, asked, strict=False)
        ]


@cache
def _make_template() -> Path:
    """Make a migrated file of SQLite to copy; it is gone when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-testing-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    database = Database(f"sqlite:///{directory / 'template.db'}")
    migrate(database)
    database.close()  # folds the write-ahead log into the file
    return directory / "template.db"


@cache
def _load_prices() -> Mapping[tuple[str, str], Any]:
    from hermes_worker.core.pricing import parse_own_price

    return dict([parse_own_price(_PRICE)])


def _read_arguments(text: str) -> Mapping[str, Any]:
    found = parse_json(text, text)
    return found if isinstance(found, dict) else {"": found}
