"""The OpenAPI document, judged by linters and by generators of clients that people use. ``HERMES_TEST_OPENAPI`` names a
directory in which somebody has said ``npm install @stoplight/spectral-cli @redocly/cli @hey-api/openapi-ts orval
typescript``; ``HERMES_TEST_STOCK`` a virtual environment with openapi-python-client."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
from pathlib import Path

import pytest
from serving import Served

pytestmark = pytest.mark.slow
PROGRAMS = Path(os.environ.get("HERMES_TEST_OPENAPI", ".")) / "node_modules"


@pytest.fixture
def place(api: Served, tmp_path: Path) -> Path:
    """A directory with the document in both versions."""
    for name, query in (("3.1", ""), ("3.2", "?openapi=3.2")):
        document = api.http.get(f"/openapi.json{query}").json()
        assert document["openapi"].startswith(name)
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


def play(place: Path, program: str, *arguments: str, **environ: str) -> str:
    if not (PROGRAMS / ".bin" / program).exists():
        pytest.skip(f"HERMES_TEST_OPENAPI names no directory with the program {program}")
    if not (place / "node_modules").exists():
        (place / "node_modules").symlink_to(PROGRAMS.resolve())
    done = subprocess.run(
        [str(PROGRAMS / ".bin" / program), *arguments], cwd=place, capture_output=True, text=True, timeout=200,
        env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    return done.stdout


def test_spectral_finds_nothing(place: Path) -> None:
    (place / ".spectral.yaml").write_text('extends: ["spectral:oas"]\n')
    play(place, "spectral", "lint", "3.1.json", "--fail-severity", "warn")


@pytest.mark.parametrize("version", ["3.1", "3.2"])
def test_redocly_finds_no_error(place: Path, version: str) -> None:
    play(place, "redocly", "lint", f"{version}.json")


_SUBMITTING = """
const { client } = require("./js/hey/client.gen.js");
const hey = require("./js/hey/sdk.gen.js");
const orval = require("./js/orval/api.js");
const headers = { Authorization: `Bearer ${process.env.KEY}` };
client.setConfig({ baseUrl: process.env.URL, headers });
const plain = fetch; // orval's asks for paths, as in a page
globalThis.fetch = (place, options) =>
  plain(typeof place === "string" ? new URL(place, process.env.URL) : place, options);
(async () => {
  const made = await hey.createRun({ body: { input: "hello" } });
  const seen = await orval.getRun(made.data.run_id, { headers });
  console.log(JSON.stringify({ status: seen.status, run: seen.data.run_id === made.data.run_id }));
})();
"""


def test_clients_for_typescript_compile_strictly_and_submit(api: Served, place: Path) -> None:
    play(place, "openapi-ts", "-i", "3.1.json", "-o", "hey")
    play(place, "orval", "--input", "3.1.json", "--output", "orval/api.ts", "--client", "fetch")
    options = {
        "strict": True,
        "outDir": "js",
        "skipLibCheck": True,
        "module": "CommonJS",
        "moduleResolution": "node10",
        "target": "ES2022",
        "lib": ["ES2022", "DOM", "DOM.Iterable"],
    }
    (place / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["hey", "orval"]}))
    play(place, "tsc", "-p", "tsconfig.json")
    (place / "submit.cjs").write_text(_SUBMITTING)
    said = play(place, "node", "submit.cjs", URL=api.url, KEY=api.key)
    assert json.loads(said) == {"status": 200, "run": True}


_PYTHON_SUBMITTING = """
import sys
from client import AuthenticatedClient
from client.api.runs import create_run, get_run
from client.models import CreateRunCreateRun

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
made = create_run.sync(client=client, body=CreateRunCreateRun.from_dict({"input": "hello"}))
seen = get_run.sync(made.run_id, client=client)
print(seen.run_id == made.run_id, seen.status)
"""


def test_a_client_for_python_is_generated_and_submits(api: Served, place: Path) -> None:
    programs = [Path(each) / "bin/openapi-python-client" for each in os.environ.get("HERMES_TEST_STOCK", "").split(":")]
    if (program := next((each for each in programs if each.exists()), None)) is None:
        pytest.skip("HERMES_TEST_STOCK names no virtual environment with openapi-python-client")
    told = subprocess.run(
        [str(program), "generate", "--path", "3.1.json", "--output-path", "client", "--meta", "none"],
        cwd=place, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    assert (place / "client/api/openai/create_chat_completion.py").exists(), told.stdout
    assert compileall.compile_dir(place / "client", quiet=1)
    python = program.with_name("python")
    done = subprocess.run(
        [str(python), "-c", _PYTHON_SUBMITTING, api.url, api.key],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "True"), done.stderr
