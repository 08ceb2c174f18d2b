"""``up --reload``: tools of the operator's own module, which changes while the stack is at work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import CommandLine, call, script, wait_for

pytestmark = pytest.mark.e2e

KEY = "key-of-a-stack-that-is-started-anew"
"""Without it the commands could ask no stack: its secrets reach the stack through the process that watches."""
TOOLS = '''
from hermes_worker.extending import Agent, tool


@tool(replay="pure", is_untrusted=False)
def greet(name: str) -> str:
    """Greet somebody."""
    return f"WORD, {name}"


GREETER = Agent("greeter", "You greet.", tools=(greet,))
'''


def test_a_changed_module_is_used_by_the_next_run(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    module = code / "greeting.py"
    module.write_text(TOOLS.replace("WORD", "Hello"))
    environ = {"HERMES_TOOLS": "greeting", "PYTHONPATH": str(code), "HERMES_SERVER_KEY": KEY}
    hermes = CommandLine(tmp_path / "home", environ)
    installed = CommandLine(tmp_path / "home", environ, is_installed=True)

    def status_of(run_id: str) -> str:
        """As a process of its own says, which finds the module."""
        return str(json.loads(hermes("runs", "show", run_id, "--json").out)["status"])

    def greeted() -> str:
        """What a run of the agent was told by the tool."""
        said = hermes("submit", script(call("greet", name="Ada")), "--model", "agent:greeter", "--json")
        assert said.code == 0, said.err
        run_id = json.loads(said.out)["run_id"]
        wait_for(lambda: status_of(run_id) == "completed", saying="the run to end")
        exported = hermes("sessions", "export", run_id)
        assert exported.code == 0, exported.err
        return exported.out

    with installed.started("up", "--port", "0", "--reload") as up:
        up.wait_for_line(r"API +(http://\S+)")
        assert "Hello, Ada" in greeted()

        module.write_text("def broken(:\n")
        up.wait_for_line(r"greeting.py changed and cannot be used: SyntaxError")

        module.write_text(TOOLS.replace("WORD", "Good day"))
        up.wait_for_line(r"greeting.py changed; starting anew")
        wait_for(lambda: up.output.count("Hermes worker is up") > 1 or None, saying="it is up again")
        assert "Good day, Ada" in greeted()
