from __future__ import annotations

import pytest

from hermes_worker.agent.tools.commandline import explain_exit_code, find_refusal

MAY_RUN = [
    "ls -la",
    "make && make test",
    "sleep 1 & wait",
    "server > log 2>&1 & pid=$!; sleep 1; curl -s localhost:1; kill $pid",
    "cmd 2>&1",
    "cmd &> log",
    "cmd >& log",
    "a && b",
    "git commit -m 'use nohup & setsid'",
    'echo "nohup x &"',
    "echo hi # nohup &",
    "cat <<'EOF' > run.sh\nnohup server &\nEOF",
    "cat <<EOF > run.sh\nnohup server &\nEOF\nls",
    "nohup --help",
    "npm start --help",
    "uvicorn --version",
    "npm run build",
    "npm test",
    "timeout 30 npm start",
    "docker compose up -d",
    "npm run dev > dev.log 2>&1 & sleep 3; curl localhost:3000",
    "vite build",
    "tail -n 5 log",
    "python -m http.server 8000 & sleep 1; curl localhost:8000",
    "echo a\\&",
    "x" * 20_000 + " &",
]


@pytest.mark.parametrize("command", MAY_RUN, ids=range(len(MAY_RUN)))
def test_a_command_that_ends_may_run(command: str) -> None:
    assert find_refusal(command) is None


MAY_NOT_RUN = [
    ("nohup python server.py", "nohup"),
    ("cd /x && nohup y &", "nohup"),
    ("(setsid x)", "nohup"),
    ("x & disown", "nohup"),
    ("sleep 100 &", "background"),
    ("a; b &  ", "background"),
    ("sleep 100 & # later", "background"),
    ("cat <<EOF &\nx\nEOF", "background"),
    ("npm run dev", "server"),
    ("cd app && yarn start", "server"),
    ("PORT=1 npm start", "server"),
    ("npx vite", "server"),
    ("docker compose up", "server"),
    ("uvicorn app:app --port 1", "server"),
    ("python3 -m http.server", "server"),
    ("python manage.py runserver", "server"),
    ("tail -f log", "server"),
    ("tail -n 5 -F log", "server"),
    ("   ", "empty"),
]


@pytest.mark.parametrize(("command", "word"), MAY_NOT_RUN)
def test_a_command_that_would_not_end_or_end_too_soon_is_refused_with_advice(command: str, word: str) -> None:
    refusal = find_refusal(command)
    assert refusal is not None
    assert word in refusal


@pytest.mark.parametrize("piece", ["<<a\n", "'", '"', "\n", ";npx ", "a=b ", "tail -x ", "& ", "\\"])
def test_a_hostile_command_is_read_quickly(piece: str) -> None:
    command = (piece * 10_000)[:10_000]
    find_refusal(command)
    explain_exit_code(command, 1)


@pytest.mark.parametrize(
    ("command", "exit_code", "word"),
    [
        ("grep x file", 1, "no lines matched"),
        ("cat a | /usr/bin/grep x", 1, "no lines matched"),
        ("cd a && LC_ALL=C grep x file", 1, "no lines matched"),
        ("diff a b", 1, "differ"),
        ("[ -f x ]", 1, "condition"),
        ("curl http://x", 7, "refused"),
        ("nosuch", 127, "not found"),
        ("anything", 137, "memory"),
    ],
)
def test_an_exit_code_with_a_meaning_of_its_own_is_explained(command: str, exit_code: int, word: str) -> None:
    meaning = explain_exit_code(command, exit_code)
    assert meaning is not None
    assert word in meaning


@pytest.mark.parametrize(
    ("command", "exit_code"), [("grep x", 0), ("grep x", 2), ("make", 1), ("", 1), ("echo 'a | grep'", 1)]
)
def test_an_ordinary_exit_code_is_not_explained(command: str, exit_code: int) -> None:
    assert explain_exit_code(command, exit_code) is None
