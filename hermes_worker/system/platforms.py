"""Which systems this runs on, and what is missing on those other than Linux. Pure: callers say which system theirs is.

What a system lacks is stated here once; ``doctor`` says it, and ``docs/platforms.md`` says what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass

_ANYWHERE = frozenset({"doctor"})
"""Commands that work, as far as they go, where nothing else does."""
_LINUX_ONLY = frozenset({"dev chaos", "dev prove"})
_WAITING = frozenset({"run", "up", "start worker"})
"""Commands that wait for processes without reaping them."""
_WAITS_SINCE = (3, 13)
"""The first Python whose ``os.waitid`` is there on macOS (https://docs.python.org/3/library/os.html#os.waitid)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSupport:
    """The support of one system. The names are those of ``sys.platform``."""

    name: str
    runs: bool
    """Whether the product's processes run there at all."""
    lacks: tuple[str, ...] = ()
    """What does not work, and what holds instead, as sentences without a full stop."""
    needs: tuple[str, ...] = ()
    """What has to be changed before it works; nothing, usually."""


_MACOS_LACKS = (
    "commands of agents are not confined, because bubblewrap and Landlock are of Linux",
    "roles are started and not forked, so each takes longer to start and more memory",
    "processes that are killed leave what they started to be found by the next start",
    "'hermes-worker dev chaos' and 'hermes-worker dev prove' do not run",
)


def find_support(platform: str, python: tuple[int, int]) -> PlatformSupport:
    """The support of a system named ``platform`` with this version of Python."""
    if platform == "linux":
        return PlatformSupport(name="Linux", runs=True)
    if platform == "darwin":
        old = (
            f"Python {_WAITS_SINCE[0]}.{_WAITS_SINCE[1]} or later (this is {python[0]}.{python[1]}): commands of agents"
        )
        needs = () if python >= _WAITS_SINCE else (f"{old} and 'hermes-worker up' wait for processes with os.waitid",)
        return PlatformSupport(name="macOS (unverified live)", runs=True, lacks=_MACOS_LACKS, needs=needs)
    if platform == "win32":
        return PlatformSupport(
            name="Windows",
            runs=False,
            needs=(
                "Linux or macOS: use WSL2 or a container here, or hermes_worker.client with a server elsewhere "
                "(docs/platforms.md)",
            ),
        )
    return PlatformSupport(
        name=platform, runs=False, needs=("Linux or macOS: use a container or a virtual machine (docs/platforms.md)",)
    )


def find_refusal(command: str, platform: str, python: tuple[int, int]) -> str | None:
    """The reason why a command of the command line does not work on ``platform``; ``None`` where it does."""
    support = find_support(platform, python)
    is_refused = command in _WAITING if support.runs else command not in _ANYWHERE
    if support.needs and is_refused:
        return f"'hermes-worker {command}' does not run on {support.name}; it needs {support.needs[0]}"
    if platform != "linux" and command in _LINUX_ONLY:
        return f"'hermes-worker {command}' runs on Linux only: it freezes and kills processes by signals of Linux"
    return None
