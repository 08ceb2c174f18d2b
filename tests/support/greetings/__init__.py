"""A small feature, whole: a rule, a table and its SQL, a schema, a tool, a route, a verb and upkeep, in one folder
(tests/test_whole_feature.py)."""

from __future__ import annotations

from hermes_worker.core.replay import Replay
from hermes_worker.extension import (
    CommandDeclaration,
    Extension,
    RouterDeclaration,
    ToolDeclaration,
    ToolSpec,
    UpkeepDeclaration,
)

GREET = ToolSpec(
    name="greet",
    description="Greet somebody by name.",
    parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    toolset="greetings",
    is_untrusted=False,
    replay=Replay.PURE,
)

EXTENSION = Extension(
    name="hermes-greetings",
    version="1",
    summary="Greetings",
    tools=(ToolDeclaration(spec=GREET, implementation="support.greetings.tool:GreetTool"),),
    routers=(
        RouterDeclaration(
            name="greetings", implementation="support.greetings.routes:router", paths=("/v1/greetings/{name}",)
        ),
    ),
    commands=(
        CommandDeclaration(name="greet", summary="Greet somebody.", implementation="support.greetings.verbs:greet"),
    ),
    upkeep=(
        UpkeepDeclaration(
            name="greetings",
            sweep_rows="support.greetings.rows:sweep_rows",
            resend_rows="support.greetings.rows:resend_rows",
            prune_rows="support.greetings.rows:prune_rows",
            forget_sessions="support.greetings.work:forget_sessions",
            begin_serving="support.greetings.work:begin_serving",
            list_checks="support.greetings.checks:list_checks",
        ),
    ),
    tables=("support.greetings.tables:greetings",),
)
