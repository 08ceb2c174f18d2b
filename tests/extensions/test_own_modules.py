"""Tools and agents of the operator's own modules: HERMES_TOOLS names them, and runs name the agents."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_worker import installed
from hermes_worker.agent.tools.catalog import build_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extending import Agent, AgentBudget, ToolContext, tool
from hermes_worker.extension import Extension
from hermes_worker.plugins import begin_extensions
from hermes_worker.services.agents import apply_agent, list_agent_names
from hermes_worker.services.submission import InvalidSubmission, Submission
from hermes_worker.services.submission_rules import make_fingerprint
from hermes_worker.settings import load_settings
from hermes_worker.testing import AgentStack, call

SHOP = '''
from dataclasses import dataclass

from hermes_worker.extending import Agent, AgentBudget, Key, Progress, Stop, Workspace, setting, tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    token: str = setting("SHOP_TOKEN", "What the shop knows you by.", is_secret=True)


@tool(replay="keyed", is_untrusted=False)
def refund(order: int, key: Key, stop: Stop, progress: Progress, workspace: Workspace, shop: Shop) -> str:
    """Refund an order."""
    workspace.write_bytes("refund.txt", str(order).encode())
    return f"{order} {len(key) > 0} {stop.is_set()} {shop.token}"


@tool(replay="pure", toolset="reading")
def find_order(number: int) -> str:
    """Find an order."""
    return f"order {number}"


SUPPORT = Agent("support", "You help customers.", tools=(refund, "find_order"), budget=AgentBudget(iterations=5))
'''
Import = Callable[[str, str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Writes a module of the operator's, below a package ``myapp``."""
    package = tmp_path / "code" / "myapp"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))

    def write(name: str, text: str) -> str:
        (package / f"{name}.py").write_text(text, encoding="utf-8")
        for known in ("myapp", f"myapp.{name}"):
            monkeypatch.delitem(sys.modules, known, raising=False)
        return f"myapp.{name}"

    return write


def begin(tmp_path: Path, *modules: str) -> Any:
    chosen = {"HERMES_HOME": str(tmp_path), "HERMES_TOOLS": ",".join(modules), "SHOP_TOKEN": "s3"}
    return begin_extensions(load_settings(chosen))


def test_a_module_brings_tools_with_all_that_a_worker_gives(
    tmp_path: Path, module: Import, context: ToolContext
) -> None:
    found = begin(tmp_path, module("tools", SHOP))
    assert {name: found.tools[name].spec.toolset for name in ("refund", "find_order")} == {
        "refund": "myapp-tools",
        "find_order": "reading",
    }
    assert list(found.tools["refund"].spec.parameters["properties"]) == ["order"]
    assert found.secret_variables["SHOP_TOKEN"] == ("tools",)
    told = run_tool(build_catalog(found).get("refund"), '{"order": 17}', context)
    assert told.text == "17 True False s3"
    assert (tmp_path / "refund.txt").read_text() == "17"


WRONG = {
    "import no_such_thing": "cannot be imported: ModuleNotFoundError",
    "raise SystemExit": "cannot be imported: SystemExit",
    "x = 1": "has neither a tool nor an agent",
    "from hermes_worker.extending import Agent\nA = Agent('Big Name', 'x')": "'Big Name' is no name for an agent",
    SHOP.replace('"SHOP_TOKEN"', '"SHOP_THING"'): "SHOP_THING of the extension 'myapp-wrong' holds a secret",
}


def test_what_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path, module: Import) -> None:
    for text, sentence in WRONG.items():
        with pytest.raises(ConfigurationError, match=sentence):
            begin(tmp_path, module("wrong", text))
    with pytest.raises(ConfigurationError, match="PYTHONPATH"):
        begin(tmp_path, "not_there.tools")


# --- agents ----------------------------------------------------------------------------------------------------------


@tool(replay="pure", is_untrusted=False)
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: a fruit"


READER = Agent(
    "reader",
    "You read. You never guess.",
    tools=(look_up,),
    model="small",
    budget=AgentBudget(iterations=7, tokens=900),
)


def use(*agents: Agent) -> None:
    found = installed.get_installed()
    installed.put_in_force(
        installed.fold_extensions(
            (*found.extensions, Extension(name="mine", version="1", agents=agents, tools=(look_up,)))
        )
    )


def test_an_agent_stands_for_prompt_tools_model_and_limits() -> None:
    use(READER)
    assert list(list_agent_names()) == ["agent:reader"]
    asked = Submission(input="What is a fig?", model="agent:reader", instructions="In French.", iterations_max=3)
    run = apply_agent(asked)
    assert (run.model, run.toolsets) == ("small", ("look_up",))
    assert run.instructions == "You read. You never guess.\n\nIn French."
    assert (run.iterations_max, run.tokens_max, run.cost_usd_max) == (3, 900, None)
    assert apply_agent(Submission(input="x", model="agent:reader", iterations_max=99)).iterations_max == 7
    plain = Submission(input="x", model="small")
    assert apply_agent(plain) is plain


def test_a_repetition_after_a_change_of_the_agent_is_the_same_request() -> None:
    asked = Submission(input="What is a fig?", model="agent:reader", idempotency_key="fig")
    use(READER)
    before = make_fingerprint(apply_agent(asked))
    installed.put_in_force(None)
    use(Agent("reader", "You sing."))
    assert make_fingerprint(apply_agent(asked)) == before
    assert make_fingerprint(apply_agent(Submission(input="y", model="agent:reader", idempotency_key="fig"))) != before


def test_an_unknown_agent_is_refused_and_the_known_ones_named() -> None:
    use(READER)
    with pytest.raises(InvalidSubmission, match=r"no agent 'agent:writer'; there are agent:reader"):
        apply_agent(Submission(input="x", model="agent:writer"))


def test_a_run_of_an_agent_has_its_tools_alone(hermes_stack: Callable[..., AgentStack]) -> None:
    stack = hermes_stack(
        [call("look_up", word="fig"), "A fruit."], tools=[look_up], agents=[Agent("r", "Read.", (look_up,))]
    )
    run = stack.run("What is a fig?", model="agent:r").require_completed()
    assert run.require_call("look_up", word="fig").result == "fig: a fruit"
    assert list(stack.model.requests[0].tools) == ["look_up"]
    assert "Read." in str(stack.model.requests[0].messages[0])
