import time

import pytest

from scheduler.lifecycle import stops_this_service


@pytest.mark.parametrize(
    "text",
    [
        "hermes gateway restart",
        "run `hermes gateway stop` now",
        "hermes -p zeus gateway restart",
        "systemctl --user restart hermes-gateway",
        "sudo systemctl stop hermes-worker.service",
        "service hermes-beat restart",
        "launchctl kickstart -k gui/501/ai.hermes.gateway",
        'pkill -f "hermes gateway"',
        "kill $(pgrep -f 'gateway.*hermes')",
        "killall hermes-worker",
        "hermes-worker stop",
        "kubectl rollout restart deployment/hermes-worker",
        "kubectl -n agents delete pod hermes-worker-0",
        "docker compose restart hermes-beat",
        "celery -A hermes_worker.worker.app control shutdown",
        "systemctl \\\n  restart \\\n  hermes-gateway",
        "echo ok\nSYSTEMCTL RESTART HERMES-GATEWAY",
    ],
)
def test_a_command_against_the_service_is_found(text):
    assert stops_this_service(text)


@pytest.mark.parametrize(
    "text",
    [
        "hermes gateway start",
        "Summarise what is new in API gateways and restart habits",
        "systemctl restart nginx",
        "hermes-worker cron list",
        "Write about the Hermes gateway and why people restart it",
        "cat /docs/hermes gateway restart-notes.md",
        "kill 4711",
        "improve my skill with the hermes gateway",
        "kubectl get pods -l app=hermes-worker",
        "systemctl restart nginx\ncheck hermes-gateway",
        "See the hermes docs on gateway stop words",
        "",
    ],
)
def test_prose_and_other_commands_pass(text):
    assert not stops_this_service(text)


@pytest.mark.parametrize("part", ["kill hermes ", "kubectl delete ", "hermes -x ", "a.", "hermes -", "systemctl -a "])
def test_hostile_text_is_scanned_in_linear_time(part):
    started = time.thread_time()
    assert not stops_this_service(part * 30_000)
    assert time.thread_time() - started < 5  # of the processor, whatever else it does
