"""``execute_code`` in real sandboxes: scripts that work, and scripts that try to get more than tool calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.confined import SECRET, machine, working

from hermes_worker.agent.tools import code as code_module
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_inner, run_tool
from hermes_worker.core.replay import Replay
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.network import Network

CATALOG = build_default_catalog()


@dataclass
class RealTools:
    """The real tools, without a store behind them."""

    names: tuple[str, ...] = ("read_file", "write_file", "search_files", "patch", "terminal")
    made: list[str] = field(default_factory=list)
    gone: bool = False
    begun: threading.Event = field(default_factory=threading.Event)

    @property
    def parameters(self) -> Mapping[str, Sequence[str]]:
        return {name: tuple(CATALOG.get_spec(name).parameters["properties"]) for name in self.names}

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.made.append(name)
        self.begun.set()
        if self.gone:
            return ToolResult(text="{}", is_error=True, is_unknown=True)
        return run_inner(CATALOG.get(name), json.dumps(dict(arguments)), context, gate=lambda tool, given: None)


@dataclass
class Scripts:
    workspace: LocalWorkspace
    tools: RealTools = field(default_factory=RealTools)
    documents: dict[str, Any] = field(default_factory=dict)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def result(self, code: str) -> ToolResult:
        context = ToolContext(
            run_id="run",
            session_id="session",
            idempotency_key="key",
            attempt=1,
            workspace=self.workspace,
            session=self.documents,
            cancelled=self.cancelled,
            inner=self.tools,
        )
        return run_tool(CATALOG.get("execute_code"), json.dumps({"code": code}), context)

    def __call__(self, code: str) -> Any:
        return json.loads(self.result(code).text)

    def output(self, code: str) -> str:
        document = self(code)
        assert document["status"] == "success", document
        return str(document["output"])

    @property
    def root(self) -> Path:
        return Path(self.workspace.root)


@pytest.fixture(params=["bubblewrap", "landlock", "nothing"])
def scripts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scripts]:
    rung = None if request.param == "nothing" else working(request.param)
    with machine(tmp_path, rung, network=Network.NONE if rung else Network.OPEN) as here:
        yield Scripts(here.workspace)


@pytest.fixture
def bare(workspace: LocalWorkspace) -> Scripts:
    return Scripts(workspace)


def test_a_script_calls_tools_without_a_network(scripts: Scripts) -> None:
    (scripts.root / "notes.txt").write_text("one\ntwo\n")
    document = scripts(
        "from hermes_tools import read_file, write_file, terminal, json_parse, shell_quote\n"
        "page = read_file('notes.txt', limit=1)\n"
        "write_file(path='out.txt', content=page['content'].upper())\n"
        "print(terminal('cat ' + shell_quote('out.txt'))['output'], json_parse('[1]'), __name__)\n"
    )
    assert document["status"] == "success", document
    assert (document["output"], document["tool_calls_made"]) == ("1|ONE [1] __main__\n", 3)
    assert (scripts.root / "out.txt").read_text() == "1|ONE"
    assert scripts.tools.made == ["read_file", "write_file", "terminal"]


def test_its_commands_are_confined_as_any_others(scripts: Scripts, tmp_path: Path) -> None:
    if (
        scripts.workspace.execute(
            "true", cwd=None, env={}, timeout_s=9, output_bytes_max=9, should_stop=lambda: False
        ).sandbox
        == "none"
    ):
        pytest.skip("nothing confines commands here")
    secret = tmp_path / "home" / ".hermes-worker" / ".env"
    assert SECRET in secret.read_text()
    document = scripts(f"print(open({str(secret)!r}).read())")
    assert document["status"] == "error" and SECRET not in json.dumps(document)
    refused = scripts.output(f"from hermes_tools import read_file\nprint(read_file({str(secret)!r}))")
    assert "outside the workspace" in refused and SECRET not in refused


def test_errors_of_a_script_name_its_lines_and_nothing_of_ours(bare: Scripts) -> None:
    document = bare("x = 1\nprint('before')\nprint(1 / 0)\n")
    assert (document["status"], document["output"]) == ("error", "before\n")
    assert 'File "<script>", line 3' in document["error"] and "print(1 / 0)" in document["error"]
    assert "exec(" not in document["error"]
    assert "SyntaxError" in bare("print(")["error"]
    assert bare("import sys; sys.exit(3)")["error"] == "the script exited with code 3"
    assert bare("import sys; print('warn', file=sys.stderr)")["stderr"] == "warn\n"


def test_a_refused_call_is_a_result_and_no_exception(bare: Scripts) -> None:
    said = bare.output("from hermes_tools import read_file\nprint(read_file('gone')['error'])")
    assert said == "'gone' does not exist\n"


def test_positions_are_parameters_and_mistakes_are_the_scripts(bare: Scripts) -> None:
    assert "takes path, content" in bare("from hermes_tools import write_file\nwrite_file('a', 'b', 'c')")["error"]
    assert "got path twice" in bare("from hermes_tools import write_file\nwrite_file('a', path='b')")["error"]
    assert bare.tools.made == []


def test_fifty_calls_are_made_and_no_more(bare: Scripts) -> None:
    said = bare.output(
        "from hermes_tools import search_files\n"
        "found = [search_files('x') for _ in range(60)]\n"
        "print(len([one for one in found if 'error' in one]), found[-1]['error'])\n"
    )
    assert said == "10 a script may call 50 tools; this call was not made\n"
    assert len(bare.tools.made) == 50


def test_only_tools_of_scripts_can_be_called(bare: Scripts) -> None:
    said = bare.output(
        "import hermes_tools\nbrought = hermes_tools.read_file.__closure__\n"
        "channel = next(cell.cell_contents for cell in brought if hasattr(cell.cell_contents, 'call'))\n"
        "print(channel.call('delegate_task', {'goal': 'more'})['error'])\n"
        "print(channel.call('execute_code', {'code': '1'})['error'])\n"
        "print(channel.call(['read_file'], {})['error'])\n"
    )
    assert said.count("a script cannot call") == 2 and "this is no call" in said
    assert bare.tools.made == []


@pytest.mark.parametrize(
    "bytes_sent",
    [
        "b'\\xff\\xff\\xff\\xff'",
        "b'\\x00\\x00\\x00\\x02{]'",
        "b'\\x00\\x00\\x00\\x04null' * 2000",
        "(20000).to_bytes(4, 'big') + b'[' * 20000",
        "b'\\x00\\x00\\x00\\x00'",
    ],
)
def test_nonsense_over_the_channel_ends_the_conversation_and_not_the_worker(bare: Scripts, bytes_sent: str) -> None:
    document = bare(
        "import os, hermes_tools\n"
        "cells = [cell.cell_contents for cell in hermes_tools.read_file.__closure__]\n"
        "number = next(one for one in cells if hasattr(one, 'call'))._descriptor\n"
        f"data = {bytes_sent}\n"
        "try:\n    os.write(number, data)\nexcept OSError:\n    pass\n"
        "print('alive')\n"
    )
    assert (document["status"], document["output"]) == ("success", "alive\n")
    assert len(bare.tools.made) == 0


def test_children_of_a_script_cannot_speak_for_it(bare: Scripts) -> None:
    document = bare(
        "import os\nfrom hermes_tools import terminal\npid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n        terminal('true')\n"
        "    except RuntimeError as error:\n        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\nprint(terminal('echo parent')['output'])\n"
    )
    assert "own process only" in document["output"] and "parent" in document["output"]
    assert bare.tools.made == ["terminal"]


def test_a_module_of_the_workspace_does_not_stand_in_for_ours(bare: Scripts) -> None:
    for name in ("json", "struct", "hermes_tools", "traceback"):
        (bare.root / f"{name}.py").write_text("raise SystemExit('taken over')\n")
    (bare.root / "mine.py").write_text("VALUE = 7\n")
    assert bare.output("from hermes_tools import search_files\nimport mine\nprint(mine.VALUE)") == "7\n"


def test_a_stop_ends_the_script_and_the_call_that_it_makes(bare: Scripts) -> None:
    def stop() -> None:
        bare.tools.begun.wait(30)
        bare.cancelled.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    document = bare("from hermes_tools import terminal\nprint('on')\nterminal('sleep 600; touch late')\nprint('after')")
    stopper.join()
    assert (document["status"], document["output"]) == ("interrupted", "on\n")
    assert not (bare.root / "late").exists()


def test_time_ends_the_script_and_the_call_that_it_makes(bare: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_module, "SCRIPT_S_MAX", 1.0)
    document = bare("from hermes_tools import terminal\nterminal('sleep 600; touch late')\nterminal('touch late')")
    assert document["status"] == "timeout" and not (bare.root / "late").exists()


def test_a_lost_claim_ends_the_script(bare: Scripts) -> None:
    bare.tools.gone = True
    document = bare("import time\nfrom hermes_tools import terminal\nterminal('true')\ntime.sleep(600)")
    assert (document["status"], document["tool_calls_made"]) == ("interrupted", 1)


def test_output_is_cut_and_secrets_in_it_are_hidden(bare: Scripts) -> None:
    bare.documents["env"] = {"DEPLOY_TOKEN": "quite-an-unusual-value-77"}
    document = bare("import os\nprint('x' * 200_000)\nprint(os.environ['DEPLOY_TOKEN'])")
    assert "bytes omitted" in document["output"] and len(document["output"]) < 60_000
    assert "quite-an-unusual-value-77" not in document["output"]
    hidden = bare.result("key = 'AKIAIOSFODNN7EXAMPLE'\nprint('ghp_' + 'a1B2c3D4' * 5)")
    assert "a1B2c3D4a1B2" not in hidden.text


def test_documents_that_inner_calls_change_reach_the_next_one_and_the_session(bare: Scripts) -> None:
    (bare.root / "below").mkdir()
    result = bare.result("from hermes_tools import terminal\nterminal('cd below')\nprint(terminal('pwd')['output'])")
    assert json.loads(result.text)["output"].strip().endswith("/below")
    assert result.session_updates["cwd"] == "below"


def test_what_strangers_wrote_is_marked_as_theirs(bare: Scripts) -> None:
    made = bare.tools.call
    bare.tools.call = lambda *given: replace(made(*given), is_untrusted=True)  # type: ignore[method-assign]
    assert "untrusted" in bare.result("from hermes_tools import terminal\nprint(terminal('echo ' + 'w' * 80))").text
    assert "untrusted" not in bare.result("print('w' * 80)").text


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("  \n", "empty"),
        ("x" * 100_001, "more than 100000"),
        ("print('\0')", "NUL"),
        ("print('«redacted:x»')", "marker"),
    ],
)
def test_what_is_no_script_is_not_run(bare: Scripts, code: str, said: str) -> None:
    assert said in json.loads(bare.result(code).text)["error"]


def test_where_a_workspace_cannot_speak_with_its_commands_the_tool_says_so(bare: Scripts) -> None:
    context = ToolContext(
        run_id="run",
        session_id="session",
        idempotency_key="key",
        attempt=1,
        workspace=bare.workspace,
        session={},
        cancelled=bare.cancelled,
    )
    said = run_tool(CATALOG.get("execute_code"), json.dumps({"code": "1"}), context)
    assert said.is_error and "write the program to a file" in said.text


def test_a_script_is_never_run_again() -> None:
    assert CATALOG.get_spec("execute_code").replay is Replay.ONCE
