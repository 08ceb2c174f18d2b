"""``hermes-worker up``: a service on one machine, through the command line and through HTTP."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.commandline import CommandLine, Running, call, script, wait_for
from support.confined import RUNGS
from support.documents import shell_environ

pytestmark = pytest.mark.e2e
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
Shared = tuple[CommandLine, Running]


def api_of(up: Running) -> str:
    return up.wait_for_line(r"API +(http://\S+)")[1]


def ask(hermes: CommandLine, url: str, document: Any = None) -> Any:
    """GET, or POST of a document, with the key of the installation; the JSON that comes back."""
    data = None if document is None else json.dumps(document).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key_of(hermes)}"}
    request = urllib.request.Request(url, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def key_of(hermes: CommandLine) -> str:
    return (hermes.home / "api.key").read_text().strip()


def test_the_key_of_the_api_is_with_its_owner_only(shared: Shared) -> None:
    hermes, up = shared
    assert stat.S_IMODE((hermes.home / "api.key").stat().st_mode) == 0o600
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{api_of(up)}/v1/runs", timeout=30)
    assert str(hermes.home / "api.key") in up.output
    key = key_of(hermes)
    seen = [up.output, *(path.read_text(errors="replace") for path in (hermes.home / "logs").iterdir())]
    for process in (up, *up.note_tree()):
        for name in ("cmdline", "environ"):
            with suppress(PermissionError):  # who is not root is refused
                seen.append(Path(f"/proc/{process.pid}/{name}").read_text(errors="replace"))
    assert [text for text in seen if key in text] == []


PROBE = """
say() { echo "$1: $("${@:2}" 2>&1 | head -n 1)" >> said.txt; }
say list hermes-worker runs list
say approve env -i HOME="$HOME" "$(command -v hermes-worker)" runs approve "$1" --choice always
say module env -i HOME="$HOME" PYTHON -m hermes_worker cron create 'every 1h' 'do more'
if [ "$(id -u)" = 0 ] && ulimit -x unlimited 2>/dev/null; then
  say root env -i HOME="$HOME" PYTHON -m hermes_worker runs list
fi
say api PYTHON -c "
import urllib.request, urllib.error
try:
    urllib.request.urlopen(urllib.request.Request('API/v1/approvals', headers={'Authorization': 'Bearer guessed'}))
except urllib.error.HTTPError as error:
    print(error.code)
"
say key cat HOME_OF_HERMES/api.key
echo done >> said.txt
"""


def agents_attempts(hermes: CommandLine, up: Running, project: Path) -> dict[str, str]:
    """What a real command of a real run got to hear that tried to answer for its user."""
    probe = PROBE.replace("PYTHON", sys.executable).replace("API/", f"{api_of(up)}/")
    (project / "probe.sh").write_text(probe.replace("HOME_OF_HERMES", str(hermes.home)))
    prompt = script(call("terminal", command="bash probe.sh run_0123", timeout=60))
    watched = hermes.inline("submit", prompt, "--workspace", str(project), "--watch")
    assert watched.code == 0, watched.said
    lines = (project / "said.txt").read_text().splitlines()
    assert lines.pop() == "done"
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_a_command_of_an_agent_cannot_answer_for_its_user(hermes: CommandLine, project: Path, sandbox: str) -> None:
    hermes.environ |= {"HERMES_SANDBOX": sandbox, "PATH": f"{Path(sys.executable).parent}:{hermes.environ['PATH']}"}
    if sandbox == "auto" and all(rung.find_unavailable() for rung in RUNGS.values()):
        pytest.skip("nothing confines commands on this machine")
    with hermes.up() as up:
        heard = agents_attempts(hermes, up, project)
        key = key_of(hermes)
    assert heard.pop("api") == "401"
    # Without a sandbox nothing hides a file from the commands of its owner.
    assert (key in heard.pop("key")) == (sandbox == "off")
    assert all("agents do not call hermes-worker" in said for said in heard.values()), heard


def test_up_says_where_everything_is(shared: Shared) -> None:
    hermes, up = shared
    for expected in (str(hermes.home), "hermes-worker.db", "scripted stand-in", "hermes-worker submit", "curl"):
        assert expected in up.output


def test_a_second_up_says_who_holds_the_home(shared: Shared) -> None:
    hermes, up = shared
    refused = hermes("up", "--port", "0")
    assert refused.code == 2
    assert re.fullmatch(rf"hermes-worker: 'hermes-worker up' \(pid {up.pid}, .*\) already runs on .*\n", refused.err)


def test_a_task_is_submitted_watched_and_shown(shared: Shared, project: Path) -> None:
    hermes, _ = shared
    watched = hermes("submit", "Survey this", "--workspace", str(project), "--watch")
    assert watched.code == 0, watched.said
    run_id = watched.out.split()[0]
    assert "→ search_files" in watched.out
    assert (project / "hermes-report.md").exists()

    listed = hermes.inline("runs", "list")
    assert run_id in listed.out
    shown = hermes.run_of(run_id)
    assert shown["status"] == "completed"
    assert shown["usage"]["input"] > 0
    again = hermes.inline("runs", "watch", run_id, "--json")
    assert again.code == 0
    events = [json.loads(line) for line in again.out.splitlines()]
    assert events[-1]["event"] == "run.completed"
    assert events[-1]["output"] == shown["output"]


def test_a_prompt_may_come_from_a_pipe_and_a_session_goes_on(shared: Shared) -> None:
    hermes, _ = shared
    first = hermes.inline("submit", "-", "--session", "chat", "--watch", stdin=script(final="One."))
    second = hermes.inline("submit", script(final="Two."), "--session", "chat", "--json")
    assert "One." in first.out
    assert json.loads(second.out)["session_id"] == "chat"


def test_a_limit_in_money_can_be_kept_where_the_stand_in_answers(shared: Shared) -> None:
    hermes, _ = shared
    said = hermes.inline("submit", script(call("todo"), final="Cheap."), "--max-cost-usd", "0.01", "--watch")
    assert said.code == 0, said.said
    shown = hermes.inline("runs", "show", said.out.split()[0])
    assert "text_response" in shown.out
    assert "price of a model is not known" not in shown.out


def test_the_same_idempotency_key_is_the_same_run(shared: Shared) -> None:
    hermes, _ = shared
    first, second = (hermes.inline("submit", script(final="Once."), "--idempotency-key", "k1").out for _ in range(2))
    assert first == second
    conflict = hermes.inline("submit", script(final="Other."), "--idempotency-key", "k1")
    assert conflict.code == 2
    assert "this Idempotency-Key was used with another request" in conflict.err


def test_a_run_is_stopped_while_its_tool_runs(shared: Shared, project: Path) -> None:
    hermes, _ = shared
    prompt = script(call("terminal", command="touch begun; sleep 200", timeout=300))
    run_id = hermes.inline("submit", prompt, "--workspace", str(project)).out.strip()
    wait_for((project / "begun").exists)
    assert hermes.inline("runs", "stop", run_id).out.strip() == f"{run_id} cancelled"
    watched = hermes.inline("runs", "watch", run_id)
    assert watched.code == 1
    assert "cancelled" in watched.out


def test_what_is_sent_to_the_api_is_seen_by_the_command_line_and_the_other_way_round(shared: Shared) -> None:
    hermes, up = shared
    api = api_of(up)
    accepted = ask(hermes, f"{api}/v1/runs", {"input": script(final="By API.")})
    assert accepted["status"] == "started"
    watched = hermes.inline("runs", "watch", accepted["run_id"])
    assert "By API." in watched.out
    run_id = hermes.inline("submit", script(final="By command."), "--watch").out.split()[0]
    assert ask(hermes, f"{api}/v1/runs/{run_id}")["output"] == "By command."
    assert ask(hermes, f"{api}/health")["status"] == "ok"


def test_run_uses_the_stack_that_is_up(shared: Shared, project: Path) -> None:
    hermes, _ = shared
    ended = hermes("run", script(final="Joined."), "--workspace", str(project))
    assert ended.code == 0, ended.said
    assert "using the 'hermes-worker up' that runs on" in ended.err
    assert "Joined." in ended.out


def test_run_does_not_use_a_stack_with_another_model(shared: Shared) -> None:
    hermes, _ = shared
    refused = hermes("run", "hello", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert refused.code == 2
    assert "choose another directory with --home" in refused.err


def test_the_doctor_finds_a_healthy_stack(shared: Shared, project: Path) -> None:
    hermes, _ = shared
    healthy = hermes.inline("doctor", "--workspace", str(project))
    assert healthy.code == 0, healthy.said
    assert "broken" not in healthy.out
    for subject in ("database", "broker", "workers", "API", "workspace"):
        assert re.search(rf"^ok +{subject} ", healthy.out, re.MULTILINE), healthy.out


def test_killed_workers_are_started_again_and_nothing_is_repeated(hermes: CommandLine, project: Path) -> None:
    thinking = script(
        call("terminal", command="echo x >> one"), {"delay_s": 3, **call("terminal", command="echo y >> one")}
    )
    acting = script(call("terminal", command="echo x >> two; sleep 200", timeout=300), final="Told.")
    with hermes.up() as up:
        first, second = (
            hermes.inline("submit", prompt, "--workspace", str(project)).out.strip() for prompt in (thinking, acting)
        )
        wait_for(lambda: (project / "one").exists() and (project / "two").exists())
        for role in ("model", "tools"):
            up.child(role).send_signal(signal.SIGKILL)
            up.wait_for_line(rf"child\.exited +child={role}")
        watched = hermes.inline("runs", "watch", first)
        assert watched.code == 0, watched.said + up.output
        assert (project / "one").read_text() == "x\ny\n"

        watched = hermes.inline("runs", "watch", second)
        assert watched.code == 0, watched.said + up.output
        assert "outcome unknown" in watched.out
        assert "in doubt  terminal (iteration 1, call 1)" in hermes.inline("runs", "show", second).out
        assert (project / "two").read_text() == "x\n"


def test_a_watcher_survives_the_end_and_the_return_of_everything(hermes: CommandLine, project: Path) -> None:
    prompt = script(
        call("terminal", command="touch begun"), {"text": "Wait.", "delay_s": 3, **call("todo")}, final="Back."
    )
    with hermes.up() as up:
        run_id = hermes.inline("submit", prompt, "--workspace", str(project)).out.strip()
        wait_for((project / "begun").exists)
        watching = hermes.started("runs", "watch", run_id)
        running = watching.__enter__()
        running.wait_for_line("terminal")
        up.kill()
        up.wait()
        wait_for(lambda: not up.survivors(), saying=f"orphans: {up.survivors()}")
    try:
        running.wait_for_line("'hermes-worker up' carries on from here")
        with hermes.up():
            assert running.wait() == 0, running.output
        assert "Back." in running.output
        assert running.output.count("touch begun") == 1
    finally:
        watching.__exit__(None, None, None)


def test_the_tour_of_the_readme_works_as_it_is_written(shared: Shared, project: Path) -> None:
    hermes, up = shared
    tour = README.partition("In another terminal")[2].partition("\n## ")[0]
    [shell] = re.findall(r"^```sh\n(.*?)^```$", tour, re.MULTILINE | re.DOTALL)
    [program] = re.findall(r"^```python\n(.*?)^```$", tour, re.MULTILINE | re.DOTALL)
    environ = shell_environ(hermes)
    here = api_of(up)
    run_id = "none"

    def played(argv: list[str]) -> str:
        ended = subprocess.run(argv, env=environ, cwd=project, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 0, (argv, ended.stdout, ended.stderr)
        return ended.stdout

    said, assigned = {}, ""
    for line in shell.splitlines():
        concrete = line.replace("localhost:8642", here.removeprefix("http://")).replace("RUN_ID", run_id)
        said[line] = played(["bash", "-c", f"{assigned}\n{concrete}"])
        if re.match(r"[A-Z]+=", line):
            assigned = line
        if " submit " in line or "-d '" in line:
            found = re.search(r"run_[0-9a-f]{32}", said[line])
            assert found, said[line]
            run_id = found[0]
    events = next(text for line, text in said.items() if "/events" in line)
    assert '"event":"run.completed"' in events
    assert next(text for line, text in said.items() if "runs stop" in line).endswith("completed\n")
    told = played([sys.executable, "-c", program.replace("http://127.0.0.1:8642", here)])
    assert re.search(r"text_response [1-9]\d*\n$", told), told


def test_curl_as_printed_works(shared: Shared) -> None:
    _, up = shared
    line = up.wait_for_line(r"(curl http://\S+/v1/runs -H .*)")[1]
    assert "/api.key" in line
    answer = json.loads(subprocess.check_output(["bash", "-c", line], text=True))
    assert answer["status"] == "started"
    stream = up.wait_for_line(r"(curl -N \S+/events .*)")[1].replace("RUN_ID", answer["run_id"])
    said = subprocess.check_output(["bash", "-c", stream], text=True, timeout=60)
    assert '"event":"run.completed"' in said


def test_ps_tells_the_roles_apart(shared: Shared) -> None:
    _, up = shared
    titles = {" ".join(process.cmdline()).strip() for process in up.note_tree()}
    assert {"hermes-worker: worker model,delivery,system [32] and beat", "hermes-worker: worker tools [8]"} <= titles
    assert {"hermes-worker: up", "hermes-worker: scripted model"} <= titles
    assert any(title.startswith("hermes-worker: api 127.0.0.1:") for title in titles)
    assert any("valkey" in title for title in titles)
