"""Refuses jobs that would stop or restart the service that runs them.

A job that restarts its own scheduler comes due again when the scheduler is back, and again. The rules are shaped like
commands, so that a prompt which talks about gateways or workers passes.
"""

from __future__ import annotations

import re

_SERVICE = r"\b(?:[\w-]+\.){0,4}hermes[.\-_]?(?:gateway|worker|beat|scheduler|api)\b"
_KILL = r"\b(?:p?kill|killall)\b"
_FLAGS = r"(?:--?[\w-]+(?:[= ][^\s-]\S*)?\s+){0,4}"

# Each rule is a list of what must follow one another on a line. Searching step by step keeps the time linear, which one
# expression with wildcards between the steps would not.
_RULES: tuple[tuple[re.Pattern[str], ...], ...] = tuple(
    tuple(re.compile(step, re.IGNORECASE) for step in steps)
    for steps in (
        (rf"(?<![\w./\\-])hermes\s+{_FLAGS}gateway\s+(?:restart|stop)\b",),
        (rf"(?<![\w./\\-])hermes-worker\s+{_FLAGS}(?:restart|stop|down)\b",),
        (r"\blaunchctl\s+(?:kickstart|unload|load|stop|restart|bootout)\b", _SERVICE),
        (r"\bsystemctl\s+(?:-\S+\s+){0,4}(?:restart|stop|start|kill|reload-or-restart)\b", _SERVICE),
        (r"\bservice\s", _SERVICE, r"\s(?:restart|stop|start)\b"),
        (_KILL, r"\bhermes\b", r"\b(?:gateway|worker|beat)\b"),
        (_KILL, r"\b(?:gateway|worker|beat)\b", r"\bhermes\b"),
        (_KILL, _SERVICE),
        (r"\bkubectl\b", r"\b(?:delete|scale|rollout\s+restart)\b", _SERVICE),
        (r"\bdocker\b", r"\b(?:stop|restart|kill|rm|down)\b", _SERVICE),
        (r"\bcelery\b", r"\bhermes_worker\b", r"\bcontrol\s+(?:shutdown|pool_restart)\b"),
    )
)
_CONTINUATION = re.compile(r"\\\r?\n[ \t]*")


def stops_this_service(text: str) -> bool:
    """Whether a job's prompt or script contains a command that stops or restarts this service."""
    lines = _CONTINUATION.sub(" ", text).splitlines()
    return any(_follows(line, rule) for line in lines for rule in _RULES)


def _follows(line: str, rule: tuple[re.Pattern[str], ...]) -> bool:
    position = 0
    for step in rule:
        match = step.search(line, position)
        if match is None:
            return False
        position = match.end()
    return True
