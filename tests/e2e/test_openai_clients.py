"""The quick-starts in docs/openai.md, played with the stock clients against a service with real workers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import CommandLine, Running
from support.samples import leave_to_the_night

pytestmark = pytest.mark.e2e
DOCUMENT = (Path(__file__).parents[2] / "docs" / "openai.md").read_text(encoding="utf-8")
Shared = tuple[CommandLine, Running]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def environment(shared: Shared, tmp_path: Path) -> dict[str, str]:
    hermes, up = shared
    url = up.wait_for_line(r"API +(http://\S+)")[1]
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": (hermes.home / "api.key").read_text().strip(),
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }


def played(command: list[str], shared: Shared, tmp_path: Path) -> str:
    done = subprocess.run(
        command, env=environment(shared, tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needed(script: str) -> str:
    """The package that a script imports beside Python's own."""
    found = re.findall(r"^(?:from|import) (\w+)", script, re.MULTILINE)
    return next(name for name in found if name not in sys.stdlib_module_names)


@pytest.mark.parametrize("script", leave_to_the_night(blocks("python"), but=1))
def test_a_quick_start_for_python_runs_unmodified(shared: Shared, tmp_path: Path, script: str) -> None:
    if importlib.util.find_spec(needed(script)) is None:
        pytest.skip(f"{needed(script)} is not installed: pip install -e '.[sdk-test]'")
    said = played([sys.executable, "-c", script], shared, tmp_path)
    assert len(said.strip()) > 10


def prepare_ai_sdk(tmp_path: Path) -> None:
    """``HERMES_TEST_AI_SDK`` names a directory in which somebody has said ``npm install ai @ai-sdk/openai``."""
    modules = Path(os.environ.get("HERMES_TEST_AI_SDK", ".")) / "node_modules"
    if not (modules / "@ai-sdk" / "openai").is_dir() or shutil.which("node") is None:
        pytest.skip("HERMES_TEST_AI_SDK names no directory with 'ai' and '@ai-sdk/openai', or there is no node")
    (tmp_path / "node_modules").symlink_to(modules.resolve())


def test_the_ai_sdk_runs_unmodified(shared: Shared, tmp_path: Path) -> None:
    prepare_ai_sdk(tmp_path)
    (script,) = blocks("js")
    (tmp_path / "start.mjs").write_text(script, encoding="utf-8")
    assert len(played(["node", "start.mjs"], shared, tmp_path).strip()) > 10


def test_llm_runs_unmodified(shared: Shared, tmp_path: Path) -> None:
    if importlib.util.find_spec("llm") is None:
        pytest.skip("llm is not installed: pip install -e '.[sdk-test]'")
    (command,) = re.findall(r"^llm .*$", DOCUMENT, re.MULTILINE)
    assert len(played(["sh", "-c", command], shared, tmp_path).strip()) > 10


# --- tools of the client ---------------------------------------------------------------------------------------------

CHAT_LOOP = """
import json
import sys

from openai import OpenAI

client = OpenAI()
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def get_weather(city):
    return f"{city}: rain"


messages = [{"role": "user", "content": sys.argv[1]}]
rounds = 0
while True:
    if sys.argv[2] == "stream":
        with client.chat.completions.stream(model="gpt-5.5", messages=messages, tools=[TOOL]) as stream:
            completion = stream.get_final_completion()
    else:
        completion = client.chat.completions.create(model="gpt-5.5", messages=messages, tools=[TOOL])
    choice = completion.choices[0]
    messages.append(choice.message.to_dict())
    if choice.finish_reason != "tool_calls":
        break
    rounds += 1
    for call in choice.message.tool_calls:
        result = get_weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(json.dumps({"rounds": rounds, "said": choice.message.content, "messages": messages}))
"""
RESPONSES_LOOP = """
import json
import sys

from openai import OpenAI

client = OpenAI()
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
items = [{"role": "user", "content": sys.argv[1]}]
known, previous, rounds, ids = list(items), None, 0, []
while True:
    asked = {"input": items, "previous_response_id": previous} if sys.argv[3] == "stored" else {"input": known}
    if sys.argv[2] == "stream":
        with client.responses.stream(model="gpt-5.5", tools=[TOOL], **asked) as stream:
            response = stream.get_final_response()
    else:
        response = client.responses.create(model="gpt-5.5", tools=[TOOL], **asked)
    ids.append(response.id)
    previous, items = response.id, []
    known += [item.to_dict() for item in response.output]
    for call in response.output:
        if call.type == "function_call":
            city = json.loads(call.arguments)["city"]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": f"{city}: rain"})
    if not items:
        break
    known += items
    rounds += 1
again = [client.responses.retrieve(name) for name in ids]
kinds = [[item.type for item in one.output] for one in again]
print(json.dumps({"rounds": rounds, "said": response.output_text, "ids": ids, "kinds": kinds}))
"""


def weather(*cities: str) -> list[dict[str, object]]:
    return [{"name": "get_weather", "arguments": {"city": city}} for city in cities]


def scripted(*steps: dict[str, object]) -> str:
    return f"scripted: {json.dumps({'steps': steps, 'final': 'Take an umbrella.'})}"


MIXED = scripted(
    {
        "text": "Let me look.",
        "calls": [*weather("Paris", "Oslo"), {"name": "search_files", "arguments": {"pattern": "x"}}],
    },
    {"calls": weather("Rome")},
)


AGENT_WITH_TOOLS = """
import asyncio
import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIConversationsSession, Runner, function_tool
from openai import AsyncOpenAI

asked = []


@function_tool
def get_weather(city: str) -> str:
    'The weather of a city.'
    asked.append(city)
    return f"{city}: rain"


model = OpenAIChatCompletionsModel("gpt-5.5", AsyncOpenAI()) if sys.argv[2] == "chat" else "gpt-5.5"
agent = Agent(name="Assistant", instructions="Be brief.", tools=[get_weather], model=model)


async def main():
    session = OpenAIConversationsSession() if sys.argv[2] == "session" else None
    result = await Runner.run(agent, sys.argv[1], session=session)
    said = {"said": result.final_output, "asked": asked}
    if session is not None:
        said["kept"] = [item.get("type") for item in await session.get_items()]
        said["popped"] = (await session.pop_item())["content"][0]["text"]
        said["left"] = len(await session.get_items())
        await session.clear_session()
    print(json.dumps(said))


asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["responses", "chat", "session"])
def test_functions_of_the_agents_sdk_are_called(shared: Shared, tmp_path: Path, way: str) -> None:
    if importlib.util.find_spec("agents") is None:
        pytest.skip("agents is not installed: pip install -e '.[sdk-test]'")
    task = scripted({"text": "Let me look.", "calls": weather("Paris", "Oslo")})
    said = json.loads(played([sys.executable, "-c", AGENT_WITH_TOOLS, task, way], shared, tmp_path))
    assert (said["said"], sorted(said["asked"])) == ("Take an umbrella.", ["Oslo", "Paris"])
    if way == "session":
        calls = ["function_call", "function_call_output"] * 2
        assert said["kept"] == ["message", "message", *calls, "message"]
        assert (said["popped"], said["left"]) == ("Take an umbrella.", len(said["kept"]) - 1)


@pytest.mark.parametrize("way", ["whole", "stream"])
def test_the_stock_loop_of_chat_completions_calls_its_own_tools(shared: Shared, tmp_path: Path, way: str) -> None:
    said = json.loads(played([sys.executable, "-c", CHAT_LOOP, MIXED, way], shared, tmp_path))
    assert (said["rounds"], said["said"]) == (2, "Take an umbrella.")
    asked = [call["function"]["arguments"] for one in said["messages"] for call in one.get("tool_calls") or ()]
    assert [json.loads(text)["city"] for text in asked] == ["Paris", "Oslo", "Rome"]


@pytest.mark.parametrize("memory", ["stored", "sent"])
@pytest.mark.parametrize("way", ["whole", "stream"])
def test_the_stock_loop_of_responses_calls_its_own_tools(shared: Shared, tmp_path: Path, way: str, memory: str) -> None:
    said = json.loads(played([sys.executable, "-c", RESPONSES_LOOP, MIXED, way, memory], shared, tmp_path))
    assert (said["rounds"], said["said"]) == (2, "Take an umbrella.")
    assert len(set(said["ids"])) == 3
    first, second, last = said["kinds"]
    assert first == ["message", "function_call", "function_call", "mcp_call"]
    assert (second, last) == (["function_call"], ["message"])


# --- structured output by a forced tool ------------------------------------------------------------------------------

CITY = """
import sys

from pydantic import BaseModel


class City(BaseModel):
    'A city.'

    name: str
    country: str


"""
FORCING = {
    "pydantic_ai": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

model = OpenAIChatModel("hermes-agent") if sys.argv[2] == "chat" else OpenAIResponsesModel("hermes-agent")
print(Agent(model, output_type=City).run_sync(sys.argv[1]).output.model_dump_json())
""",
    "langchain_openai": """
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="hermes-agent", use_responses_api=sys.argv[2] != "chat")
print(model.with_structured_output(City, method="function_calling").invoke(sys.argv[1]).model_dump_json())
""",
    "instructor": """
import instructor
from openai import OpenAI

client = instructor.from_openai(OpenAI())
asked = [{"role": "user", "content": sys.argv[1]}]
print(client.chat.completions.create(model="hermes-agent", response_model=City, messages=asked).model_dump_json())
""",
}
AI_SDK_FORCING = """
import { openai } from '@ai-sdk/openai';
import { generateText, jsonSchema, tool } from 'ai';

const text = { type: 'string' };
const inputSchema = jsonSchema({ type: 'object', properties: { name: text, country: text }, required: ['name'] });
const model = process.argv[3] === 'chat' ? openai.chat('hermes-agent') : openai('hermes-agent');
const tools = { City: tool({ description: 'A city.', inputSchema }) };
const { toolCalls } = await generateText({ model, prompt: process.argv[2], tools, toolChoice: 'required' });
console.log(JSON.stringify(toolCalls[0].input));
"""
OSLO = {"name": "Oslo", "country": "Norway"}


def stock_python(package: str) -> str:
    """``HERMES_TEST_STOCK`` names virtual environments, separated by colons, with clients that want other versions of
    libraries than the product."""
    for place in os.environ.get("HERMES_TEST_STOCK", "").split(":"):
        if place and any(Path(place).glob(f"lib/python*/site-packages/{package}")):
            return f"{place}/bin/python"
    pytest.skip(f"HERMES_TEST_STOCK names no virtual environment with {package}")


@pytest.mark.parametrize(
    ("package", "way"),
    [(name, way) for name in FORCING for way in ("chat", "responses") if name != "instructor"]
    + [("instructor", "chat")],
)
def test_structured_output_by_a_forced_tool(shared: Shared, tmp_path: Path, package: str, way: str) -> None:
    python = stock_python(package)
    task = scripted({"calls": [{"name": "final_result" if package == "pydantic_ai" else "City", "arguments": OSLO}]})
    assert json.loads(played([python, "-c", CITY + FORCING[package], task, way], shared, tmp_path)) == OSLO


@pytest.mark.parametrize("way", ["chat", "responses"])
def test_the_ai_sdk_forces_a_tool(shared: Shared, tmp_path: Path, way: str) -> None:
    prepare_ai_sdk(tmp_path)
    (tmp_path / "force.mjs").write_text(AI_SDK_FORCING, encoding="utf-8")
    task = scripted({"calls": [{"name": "City", "arguments": OSLO}]})
    assert json.loads(played(["node", "force.mjs", task, way], shared, tmp_path)) == OSLO
