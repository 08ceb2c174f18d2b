"""Tools that ask models beside the conversation: over a real server each, and paid for with the call."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
import sqlalchemy as sa
from PIL import Image
from support.fault_server import FaultServer, Received, Reply, finish_chunk, text_chunk
from support.inside import inside
from support.store import Store, opened
from support.turns import Turns, change_parts, do_call, do_calls

from hermes_worker.agent.fetching import AddressFetcher
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.messages import ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.core.pricing import parse_own_price
from hermes_worker.core.run import RunStatus
from hermes_worker.models.chain import ModelChoice, ProviderChain
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.store.tables import budgets
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.tasks.leases import AbortReason
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

USAGE = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}}

_OPENING = OpeningOptions(base_env={}, hermes_home="")


@dataclass
class Scene:
    store: Store
    turns: Turns
    folder: Path
    own: list[Received]
    main: list[Received]
    pages: str
    meanwhile: list[Callable[[], None]]
    """What happens when a model is asked next, which then never answers."""

    def call(self, name: str, **arguments: object) -> str:
        """A run that makes one call; the text of its result."""
        self.begin(name, **arguments)
        do_calls(self.turns.parts, self.store, self.run_id)
        return self.store.results(self.run_id)[0]

    def begin(self, name: str, limits: Mapping[str, int] | None = None, **arguments: object) -> None:
        """A run that is to make one call."""
        parts = self.turns.parts
        workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self.folder)).to_json()
        definitions = f"[{','.join(parts.catalog.render_definitions([name]))}]"
        self.run_id = self.store.submit(tools=definitions, workspace=workspace, **(limits or {})).run_id
        request = ToolRequest(id="c1", name=name, arguments=dump_canonical_json(arguments))
        reply, calls = plan_calls(ModelReply(text="", tool_requests=(request,)), parts.catalog)
        self.store.runs.commit_reply(self.store.turn(self.run_id), reply, calls)

    def image(self) -> str:
        """The name of an image in the workspace."""
        out = io.BytesIO()
        Image.new("RGB", (5, 5), "red").save(out, "PNG")
        (self.folder / "a.png").write_bytes(out.getvalue())
        return "a.png"


def _answering(seen: list[Received], text: str, meanwhile: list[Callable[[], None]]) -> FaultServer:
    def answer(request: Received, reply: Reply) -> None:
        seen.append(request)
        if meanwhile:
            meanwhile.pop()()
            reply.block()
            return
        if request.head.startswith("GET"):
            reply.document(200, f"<p>{'word ' * 500}</p>".encode(), content_type="text/html")
            return
        reply.sse(text_chunk(text), finish_chunk(), USAGE, "[DONE]")

    return FaultServer(answer)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    folder = tmp_path / "workspace"
    folder.mkdir()
    own: list[Received] = []
    main: list[Received] = []
    meanwhile: list[Callable[[], None]] = []
    with (
        opened(f"sqlite:///{tmp_path / 'test.db'}") as store,
        _answering(own, "from the task's own", meanwhile) as first,
        _answering(main, "from the conversation's", meanwhile) as second,
    ):
        chain = ProviderChain(ModelChoice(base_url=first.base_url, api_key="k", model="eyes"))
        turns = Turns.over(store, second.base_url, aside={AuxTask.VISION: chain})
        turns.parts = change_parts(
            turns.parts,
            catalog=build_default_catalog(services={"fetching": AddressFetcher(policy=UrlPolicy(allows_private=True))}),
            prices=dict([parse_own_price("custom:eyes=10/20"), parse_own_price("custom:scripted=1/2")]),
            workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), _OPENING),
        )
        pages = second.base_url.removesuffix("/v1")
        yield Scene(store=store, turns=turns, folder=folder, own=own, main=main, pages=pages, meanwhile=meanwhile)


def test_an_image_is_looked_at_by_the_models_that_are_meant_for_it(scene: Scene) -> None:
    result = scene.call("vision_analyze", image_url=scene.image(), question="colour?")

    assert json.loads(inside(result))["analysis"] == "from the task's own"
    [asked] = scene.own
    assert asked.document["model"] == "eyes"
    assert asked.document["messages"][0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert scene.main == []
    view = scene.store.views.load_run(scene.run_id)
    # 100 tokens in at $10 and one out at $20 for a million.
    assert (view.usage.total, view.cost_usd) == (101, Decimal("0.00102"))


def test_long_pages_are_summed_up_by_the_conversations_model_and_all_are_paid_for(scene: Scene) -> None:
    urls = [f"{scene.pages}/{number}" for number in range(2)]
    result = json.loads(inside(scene.call("web_extract", urls=urls, char_limit=500)))

    assert [page["content"] for page in result["results"]] == ["from the conversation's"] * 2
    assert all((scene.folder / page["full_text"]).exists() for page in result["results"])
    view = scene.store.views.load_run(scene.run_id)
    assert (view.usage.total, view.cost_usd) == (202, Decimal("0.000204"))


def test_a_tool_goes_on_with_what_it_put_aside_and_reads_nothing_again(scene: Scene) -> None:
    scene.begin("vision_analyze", image_url=scene.image(), question="colour?")
    [due] = scene.store.due(scene.run_id)
    do_call(scene.turns.parts, scene.store, due)
    assert scene.own == [], "who runs the tool asks nobody"
    (scene.folder / "a.png").unlink()
    do_calls(scene.turns.parts, scene.store, scene.run_id)
    assert json.loads(inside(scene.store.results(scene.run_id)[0]))["analysis"] == "from the task's own"


def test_a_budget_that_is_used_up_answers_for_the_model(scene: Scene) -> None:
    scene.begin("vision_analyze", {"tokens_max": 100}, image_url=scene.image(), question="colour?")
    with scene.store.database.write() as connection:
        connection.execute(sa.update(budgets).values(tokens_spent=100))
    do_calls(scene.turns.parts, scene.store, scene.run_id)
    assert "budget_exhausted" in scene.store.results(scene.run_id)[0]
    assert scene.own == scene.main == []


@pytest.mark.parametrize("reason", [AbortReason.DRAIN, AbortReason.STOP])
def test_a_question_is_let_go_of_when_its_worker_leaves_or_its_run_is_stopped(
    scene: Scene, reason: AbortReason
) -> None:
    scene.begin("vision_analyze", image_url=scene.image(), question="colour?")
    parts = scene.turns.parts
    do_call(parts, scene.store, scene.store.due(scene.run_id)[0])
    asked = scene.own

    def give_up() -> None:
        if reason is AbortReason.STOP:
            scene.store.runs.request_stop(scene.run_id)
        parts.leases.abort_run(scene.run_id, reason)

    scene.meanwhile.append(give_up)
    do_call(parts, scene.store, scene.store.due(scene.run_id)[0])

    assert len(asked) == 1
    if reason is AbortReason.STOP:
        assert scene.store.status(scene.run_id) is RunStatus.CANCELLED
        return
    assert scene.store.views.load_run(scene.run_id).usage.unknown_attempts == 1
    do_calls(parts, scene.store, scene.run_id)
    assert len(asked) == 2
    assert json.loads(inside(scene.store.results(scene.run_id)[0]))["analysis"] == "from the task's own"
