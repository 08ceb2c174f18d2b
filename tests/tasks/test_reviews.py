"""A run of its own looks back at a conversation: when, at what, for whose money, and who sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.fault_server import USAGE_CHUNK, FaultServer, Received, Reply, finish_chunk, text_chunk
from support.store import Store, check, opened
from support.turns import Turns, change_parts, do_calls

from hermes_worker.agent.tools.base import ToolPolicies
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.limits import Limit, LimitName, LimitReached
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.run import RunStatus
from hermes_worker.features.memory.review_rows import NewReview, Reviews, derive_review_id
from hermes_worker.features.memory.review_rules import ReviewPolicy
from hermes_worker.features.memory.review_work import ReviewStarter
from hermes_worker.features.memory.rows import Memories
from hermes_worker.features.memory.rules import MemoryPolicy, MemoryTarget
from hermes_worker.features.memory.work import AgentMemories
from hermes_worker.features.retention.erasure_rows import Erasures
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.skills.change_rules import SkillPolicy
from hermes_worker.features.spend.rows import SpendBy, SpendQuery, load_spend
from hermes_worker.store.runs.budgets import load_budget
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.listing import Listing, RunFilter
from hermes_worker.store.runs.trees import load_tree
from hermes_worker.store.runs.writers import RunWriters
from hermes_worker.store.search.finding import MessageSearch, Search
from hermes_worker.store.search.indexing import Indexer
from hermes_worker.store.sessions import SessionPage, Sessions
from hermes_worker.store.tables import runs, sessions, spending, tool_calls
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

_OPENING = OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, hermes_home="")
NAMES = ("memory", "skill_manage", "skill_view", "skills_list", "todo")
TOOLS = f"[{','.join(build_default_catalog().render_definitions(NAMES))}]"
FACT = "Ann likes short answers."


@dataclass
class Scene:
    store: Store
    turns: Turns
    asked: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What the reviewing model asks for first."""

    def model(self, request: Received, reply: Reply) -> None:
        document = request.document
        self.asked.append(document)
        is_review = "look back" in document["messages"][0]["content"]
        if is_review and self.calls:
            name, arguments = self.calls.pop(0)
            asked = {"index": 0, "id": "call_1", "function": {"name": name, "arguments": json.dumps(arguments)}}
            chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [asked]}}]}
            reply.sse(chunk, finish_chunk("tool_calls"), USAGE_CHUNK, "[DONE]")
        else:
            reply.sse(text_chunk("Nothing to keep." if is_review else "Well."), finish_chunk(), USAGE_CHUNK, "[DONE]")

    def says(self, text: str, session: str | None = None, **changes: Any) -> str:
        run_id = self.turns.submit(input=text, tools=TOOLS, session_id=session, **{"source": "cli", **changes})
        self.finish(run_id)
        return run_id

    def finish(self, run_id: str) -> None:
        while not self.store.status(run_id).is_terminal:
            due = self.store.due(run_id)
            if due and type(due[0]).__name__ == "RunTool":
                do_calls(self.turns.parts, self.store, run_id)
            else:
                self.turns.step(run_id)

    def reviews(self) -> list[str]:
        """All reviews, in order."""
        with self.store.database.read() as connection:
            found = connection.execute(runs.select().where(runs.c.cause_pk.is_not(None)).order_by(runs.c.pk))
            return [row.run_id for row in found]

    def policy(self, **changes: Any) -> None:
        reviewing = self.turns.parts.rules.reviewing
        assert reviewing is not None
        self.turns.parts = change_parts(self.turns.parts, reviewing=replace(reviewing, **changes))


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Scene]:
    with opened(database_url) as store:
        scene: Scene = None  # type: ignore[assignment]
        with FaultServer(lambda request, reply: scene.model(request, reply)) as server:
            turns, memories = Turns.over(store, server.base_url), Memories(store.database)
            asking = RunWriters(store.database)
            reviewing = ReviewStarter(
                policy=ReviewPolicy(turns=3),
                rows=Reviews(store.database),
                memories=memories,
                memory=MemoryPolicy(),
                skills=SkillPolicy(),
                spec_of=store.calls.load_spec,
                writers_of=asking.load_writers,
            )
            catalog = build_default_catalog(services={"memories": AgentMemories(memories, asking.load_writers)})
            place = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(tmp_path))
            turns.parts = change_parts(
                turns.parts, reviewing=reviewing, catalog=catalog, workspace=lambda _: open_workspace(place, _OPENING)
            )
            scene = Scene(store, turns)
            yield scene
            check(store)


def test_behind_so_many_turns_a_run_of_its_own_keeps_what_was_said(scene: Scene) -> None:
    first = scene.says("I am Ann. Short answers, please.", "talk")
    scene.says("Second.", "talk")
    assert scene.reviews() == []
    third = scene.says("Third.", "talk")
    [review] = scene.reviews()
    assert review == derive_review_id(third)

    scene.calls = [("memory", {"action": "add", "target": "user", "content": FACT})]
    scene.finish(review)
    [entry] = Memories(scene.store.database).load_entries(DEFAULT_TENANT, "default")[MemoryTarget.USER]
    assert entry.content == FACT
    prompt, record = (row["content"] for row in scene.asked[-1]["messages"][:2])
    assert "look back" in prompt and "# Skills" not in prompt
    assert "USER: I am Ann. Short answers, please." in record and "ASSISTANT: Well." in record
    assert [tool["function"]["name"] for tool in scene.asked[-1]["tools"]] == ["memory"]

    view = scene.store.views.load_run(review)
    assert (view.status, view.iteration) == (RunStatus.COMPLETED, 2)
    shape = load_tree(scene.store.database, first, limit=10)
    assert [node.run.run_id for node in load_tree(scene.store.database, third, limit=10).nodes] == [third, review]
    assert [node.run.run_id for node in shape.nodes] == [first]
    assert view.usage.total > 0
    tagged = Listing(scene.store.database).list_page(RunFilter(tags=("review:memory",)))
    assert [found.run_id for found in tagged.views] == [review]


def test_a_review_shows_the_next_one_only_what_is_new_and_what_is_remembered(scene: Scene) -> None:
    for text in ("One.", "Two.", "Three."):
        scene.says(text, "talk")
    scene.calls = [("memory", {"action": "add", "target": "user", "content": FACT})]
    scene.finish(scene.reviews()[0])
    for text in ("Four.", "Five.", "Six."):
        scene.says(text, "talk")
    [_, second] = scene.reviews()
    scene.finish(second)
    prompt, record = (row["content"] for row in scene.asked[-1]["messages"][:2])
    assert FACT in prompt
    assert "USER: Four." in record and "Three." not in record


def test_a_call_of_the_tool_is_as_good_as_a_review(scene: Scene) -> None:
    scene.says("One.", "talk")
    used = scene.says("Two.", "talk")
    with scene.store.database.write() as connection:
        pk = connection.execute(runs.select().where(runs.c.run_id == used)).one().pk
        connection.execute(
            tool_calls.insert().values(
                run_pk=pk,
                iteration=1,
                position=0,
                segment=0,
                name="memory",
                replay="keyed",
                status="succeeded",
                result_seq=2,
                timeout_s=1.0,
                settled_at=1.0,
            )
        )
    scene.says("Three.", "talk")
    scene.says("Four.", "talk")
    assert scene.reviews() == []


def test_a_review_has_a_budget_of_its_own_and_stands_in_the_bill_of_its_chain(scene: Scene) -> None:
    scene.policy(policy=ReviewPolicy(turns=1, tokens_max=1))
    asked = scene.says("One.", "talk", tokens_max=1_000_000)
    [review] = scene.reviews()
    scene.calls = [("memory", {"action": "add", "target": "user", "content": FACT})]
    scene.finish(review)
    assert scene.store.views.load_run(review).iteration == 1, "and behind it a summary, which is not counted"
    assert "tools" in scene.asked[-2] and "tools" not in scene.asked[-1]
    for run_id in (asked, review):
        with scene.store.database.read() as connection:
            pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one()
            assert load_budget(connection, pk).spent.tokens == scene.store.views.load_run(run_id).usage.total > 0


def test_a_review_counts_into_the_totals_and_limits_of_its_tenant(scene: Scene) -> None:
    limits, limit = TenantLimits(scene.store.database), Limit(name=LimitName.TOKENS_PER_MONTH, value=10**9)
    limits.set_limit(DEFAULT_TENANT, limit)
    scene.policy(policy=ReviewPolicy(turns=1))
    scene.says("One.", "talk")
    [review] = scene.reviews()
    scene.store.sweep()
    total, spent = totalled(scene.store), spent_of_month(scene.store)
    scene.finish(review)
    scene.store.sweep()

    took = scene.store.views.load_run(review).usage.total
    assert took > 0
    assert totalled(scene.store) == total + took
    assert spent_of_month(scene.store) == spent + took
    limits.set_limit(DEFAULT_TENANT, replace(limit, value=spent + took))
    with pytest.raises(LimitReached, match="tokens_per_month"):
        scene.turns.submit(input="Two.", tools=TOOLS, session_id="talk", source="cli")


def totalled(store: Store) -> int:
    """Tokens of all runs, as ``GET /v1/spend`` adds them up."""
    asked = SpendQuery(by=SpendBy.MODEL, after=0.0, before=1e11, tenant=DEFAULT_TENANT)
    return sum(row.usage.total for row in load_spend(store.database, asked))


def spent_of_month(store: Store) -> int:
    """Tokens that count against the tenant's limit of a month."""
    with store.database.read() as connection:
        rows = connection.execute(sa.select(spending.c.period, spending.c.tokens)).all()
    return max((row.tokens for row in rows if len(row.period) == len("2026-11")), default=0)


def test_a_review_has_the_settings_of_the_turn_that_it_follows(scene: Scene) -> None:
    """So that it cannot keep more than the turn might."""
    said = {"memory.write_approval": "true"}
    scene.policy(policy=ReviewPolicy(turns=1))
    staged = ToolPolicies(of_features=(MemoryPolicy(is_staged=True),))
    scene.turns.parts = replace(
        scene.turns.parts,
        overridden_by=lambda parts, found: change_parts(parts, policies=staged) if json.loads(found) == said else parts,
    )
    scene.says("I am Ann.", "talk", overrides=said)
    [review] = scene.reviews()
    scene.calls = [("memory", {"action": "add", "target": "user", "content": FACT})]
    scene.finish(review)
    memories = Memories(scene.store.database)
    assert not memories.load_entries(DEFAULT_TENANT, "default")[MemoryTarget.USER]
    assert [view.state for view in memories.list_current(DEFAULT_TENANT, "default")] == ["staged"]
    assert RunWriters(scene.store.database).load_requester(review).overrides == said


@pytest.mark.parametrize("changes", [{"source": "cron"}, {"source": "webhook:w"}, {"principal": "api:bob/key_1"}])
def test_who_may_not_write_is_not_reviewed(scene: Scene, changes: dict[str, Any]) -> None:
    scene.policy(policy=ReviewPolicy(turns=1, iterations=1))
    scene.says("Remember me.", "talk", **changes)
    assert scene.reviews() == []


def test_a_review_is_not_reviewed_and_not_found_among_conversations(scene: Scene) -> None:
    scene.policy(policy=ReviewPolicy(turns=1, iterations=1))
    asked = scene.says("About herons.", "talk")
    [review] = scene.reviews()
    scene.finish(review)
    assert scene.reviews() == [review]
    assert "# Skills" in scene.asked[-1]["messages"][0]["content"]
    scene.store.sweep()
    while Indexer(scene.store.database).index_batch() is not None:
        pass
    found = Search(scene.store.database).find(MessageSearch(text="herons")).found
    assert [message.session.id for message in found] == [asked]
    listed = Sessions(scene.store.database).list_page(SessionPage())
    assert [session.label.id for session in listed] == [asked]


def test_what_says_stop_to_the_turn_says_it_to_its_review(scene: Scene) -> None:
    scene.policy(policy=ReviewPolicy(turns=1))
    asked = scene.says("One.", "talk")
    [review] = scene.reviews()
    scene.store.runs.request_stop(asked)
    scene.store.sweep()
    assert scene.store.status(review) is RunStatus.CANCELLED


def test_two_workers_make_one_review_of_a_turn(scene: Scene) -> None:
    scene.policy(policy=ReviewPolicy(turns=1))
    asked = scene.says("One.", "talk")
    [review] = scene.reviews()
    reviewing, again = scene.turns.parts.rules.reviewing, Reviews(scene.store.database)
    assert reviewing is not None
    with scene.store.database.read() as connection:
        pk = connection.execute(runs.select().where(runs.c.run_id == asked)).one().pk
    new = NewReview(spec=replace(scene.store.calls.load_spec(pk), tags=["review:memory"]), system_prompt="", tools="[]")
    assert again.begin(pk, new) == [] and scene.reviews() == [review]


def test_a_conversation_is_deleted_with_its_reviews(scene: Scene) -> None:
    scene.policy(policy=ReviewPolicy(turns=1))
    asked = scene.says("One.", "talk")
    [review] = scene.reviews()
    scene.finish(review)
    erasures = Erasures(scene.store.database)
    erasure = erasures.begin(DEFAULT_TENANT, Person(sessions=(asked,)), by="ann", takes_shared=True)
    for _ in erasures.delete_stepwise(erasure):
        pass
    with scene.store.database.read() as connection:
        left = set(connection.execute(sa.select(runs.c.run_id)).scalars())
        left |= set(connection.execute(sa.select(sessions.c.session_id)).scalars())
    assert not left & {asked, review}
