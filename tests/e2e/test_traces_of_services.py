"""A trace over the services of one machine: the API, both workers, the scheduler, a delivery."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from support.collector import collecting
from support.commandline import CommandLine, script, wait_for

from hermes_worker.core.trace_ids import derive_trace_id

pytestmark = pytest.mark.e2e

CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_what_one_request_causes_is_one_trace(tmp_path: Path) -> None:
    with collecting() as collector:
        hermes = CommandLine(
            tmp_path / "home", {"HERMES_TRACING_ENDPOINT": collector.url, "HERMES_TRACING_TEXTS": "true"}
        )
        with hermes.up() as up:
            url = up.wait_for_line(r"API +(http://\S+)")[1]
            asked = {
                "input": script({"calls": [{"name": "list_files", "arguments": {}}]}, final="Done."),
                "deliver": "local",
            }
            headers = {
                "Content-Type": "application/json",
                "traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01",
                "tracestate": "shop=basket",
                "Authorization": f"Bearer {(hermes.home / 'api.key').read_text().strip()}",
            }
            request = urllib.request.Request(f"{url}/v1/runs", json.dumps(asked).encode(), headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                run_id = json.load(answer)["run_id"]
            for name in ("invoke_agent", "submit", "chat scripted", "execute_tool", "deliver local"):
                wait_for(lambda name=name: collector.spans(name), saying=f"for {name}")
        assert {span.trace_id for span in collector.spans()} == {derive_trace_id(run_id).to_bytes(16, "big")}
        assert collector.orphans() == []
        assert {"hermes-worker-api", "hermes-worker-model", "hermes-worker-tools"} <= collector.services()
        chat = {each.key: each.value for each in collector.spans("chat scripted")[-1].attributes}
        assert chat["gen_ai.provider.name"].string_value == "custom"
        assert chat["gen_ai.response.model"].string_value == "scripted"
        assert chat["server.address"].string_value == "127.0.0.1"
        assert [each.string_value for each in chat["gen_ai.response.finish_reasons"].array_value.values] in (
            ["stop"],
            ["tool_calls"],
        )
        conversations = {
            each.value.string_value
            for name in ("invoke_agent", "submit", "chat scripted", "execute_tool", "deliver local")
            for span in collector.spans(name)
            for each in span.attributes
            if each.key == "gen_ai.conversation.id"
        }
        assert len(conversations) == 1
        [submit] = collector.spans("submit")
        [link] = submit.links
        assert (link.trace_id.hex(), link.span_id.hex()) == (CALLER_TRACE, CALLER_SPAN)
        assert [each.value.string_value for each in link.attributes] == ["shop=basket"]
        tool = {each.key: each.value.string_value for each in collector.spans("execute_tool")[0].attributes}
        assert tool["gen_ai.tool.call.arguments"] == "{}"
        assert tool["gen_ai.tool.call.result"] and tool["gen_ai.tool.call.id"]
        said = [
            each.value.string_value
            for span in collector.spans("chat")
            for each in span.attributes
            if each.key == "gen_ai.output.messages"
        ]
        assert any("Done." in each for each in said)
