"""Answers that have to fit a schema, over each wire: taken, sent back twice at most, and then the end."""

from __future__ import annotations

import json

from dialects import Said, ToolUse
from strict_server import StrictServer
from support.turns import Turns
from test_ladder import chat, finished, turns, wire  # noqa: F401  (fixtures)

from hermes_worker.core.run import RunStatus
from hermes_worker.core.structured_output import REPAIRS_MAX

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TODO = ToolUse(id="call_1", name="todo", arguments='{"todos": []}')


def test_an_answer_that_fits_is_the_output(turns: Turns, server: StrictServer) -> None:  # noqa: F811
    server.says(Said(text='```json\n{"n": 3}\n```'))
    view = finished(turns, server, output_schema=SCHEMA)
    assert (view.status, view.output) == (RunStatus.COMPLETED, '{"n": 3}')
    assert '"n":{"type":"integer"}' in json.dumps(server.accepted[0]).replace("\\", "").replace(" ", "")


def test_an_answer_is_sent_back_with_what_is_wrong(turns: Turns, server: StrictServer) -> None:  # noqa: F811
    server.says(Said(text="three"), Said(calls=(TODO,)), Said(text='{"n": "three"}'), Said(text='{"n": 3}'))
    view = finished(turns, server, output_schema=SCHEMA)
    assert (view.status, view.output, view.iteration) == (RunStatus.COMPLETED, '{"n": 3}', 4)
    assert "it is not one JSON value" in json.dumps(server.accepted[1])
    assert "'n' must be of type integer, not string" in json.dumps(server.accepted[3])
    # The rounds of correction are in no transcript.
    rows = [json.loads(row.body) for row in turns.store.views.load_transcript(view.run_id)]
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]


def test_the_third_answer_that_does_not_fit_is_the_end(turns: Turns, server: StrictServer) -> None:  # noqa: F811
    server.says(*[Said(text=f"no {number}") for number in range(REPAIRS_MAX + 1)])
    view = finished(turns, server, output_schema=SCHEMA)
    assert (view.status, view.exit_reason, len(server.accepted)) == (RunStatus.FAILED, "output_invalid", 3)
    assert view.error is not None
    assert "it is not one JSON value" in view.error
    assert view.error.endswith(f" The last answer was: no {REPAIRS_MAX}"), "it stands nowhere else"
    assert view.output is None


def test_corrections_stay_within_the_budget(chat: Turns, server: StrictServer) -> None:  # noqa: F811
    server.says(Said(text="no"), Said(text="Out of steps."))
    view = finished(chat, server, output_schema=SCHEMA, iterations_max=1)
    assert view.exit_reason == "max_iterations_reached"
    assert not view.is_completed
