"""Handle an inbound event: it becomes a run, a command's answer, a pairing code, or nothing; once, however often it
comes.

Theory of operation. Platforms repeat events: a webhook whose answer was lost, a poll whose cursor was not committed,
two gateways at a change of lease, two replicas of the API. So each event has a key, and the row of that key
(``inbound``) is written first in the transaction that holds everything the event causes:

    begin
      move the account's cursor     fails with LeaseLost where the lease is no longer ours
      insert the event's row        waits for another transaction with the same key; fails with EventKnown after it
      run | answer | code | none    whatever the event causes, and the outcome in its row
    commit
    send hints                      a hint that is lost is repeated by the sweeper

| handler A | handler B, same event | the row |
|---|---|---|
| inserts the row, accepts run 7 | inserts the row: waits for A | invisible |
| commits, announces run 7 | wakes up: ``EventKnown``, does nothing | ``run``, run 7 |
| dies before its commit | goes on as if it were first | none, then B's |

What an event means is decided before the transaction, from facts that are read then (``facts``), by a function without
I/O (``core.inbound_decision``); one writer carries it out (``effects``). Where the rows have changed meanwhile (a
question was answered, the run that gathered messages has begun), the transaction rolls back, and the event is decided
again from new facts.

A bug of ours must not silence an account: when the handler raises, the row is written with the outcome ``broken`` and
counts the tries, over all processes. The third try leaves the event behind (``given_up``) and the cursor moves on.
``broken`` is the only outcome that a later handler may replace.
"""

from __future__ import annotations

from dataclasses import replace

from hermes_worker.core.errors import LeaseLost, UnavailableError
from hermes_worker.core.inbound_decision import InboundConflict, InboundDecision, decide
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.gateway.effects import EffectWriter, InboundRefused
from hermes_worker.gateway.facts import FactReader
from hermes_worker.gateway.files import FileTurns
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.observe import count, log
from hermes_worker.store.access.audit import Actor, set_actor
from hermes_worker.store.gateway import EventKnown, GatewayRows
from hermes_worker.wiring import Client

_TRIES_MAX = 3
_DECISIONS_MAX = 8
"""Most decisions about one event. Each conflict rules out what was tried, so only a defect of ours needs more."""


class InboundHandler:
    """Handles events of all accounts of one installation. Thread-safe."""

    def __init__(self, client: Client, tenant: str = DEFAULT_TENANT) -> None:
        self._client = client
        self._tenant = tenant
        self._rows = GatewayRows(client.database, tenant)
        files = FileTurns(client, tenant)
        self._facts = FactReader(client, tenant, self._rows, files)
        self._effects = EffectWriter(client, tenant, self._rows, files)

    def handle(self, received: ReceivedEvent) -> str | None:
        """Do what an event asks for. Returns its outcome, or ``None`` for one that was taken before. Safe to repeat and
        safe for several at once. An event on which our code breaks is given up at the third try, in whichever
        processes. Raises ``LeaseLost``, ``UnavailableError``, and before the third try what broke."""
        owner = self._client.settings.gateway.rules.find_owner(received.account, received.event.chat.id)
        if owner.tenant != self._tenant:
            return InboundHandler(self._client, owner.tenant).handle(received)
        received = replace(received, owner=owner)
        with set_actor(Actor(tenant=self._tenant, name=received.principal)):
            try:
                return self._handle(received)
            except (LeaseLost, UnavailableError):
                raise
            except Exception:
                tries = self._rows.record_failure(received.row)
                if 0 < tries < _TRIES_MAX:
                    raise
                log.exception("inbound.given_up", account=received.account, event_key=received.event.event_key)
            count("inbound.given_up")
            return self._give_up(received)

    def _handle(self, received: ReceivedEvent) -> str | None:
        try:
            outcome = self._decide_and_write(received)
        except EventKnown:
            count("inbound.duplicate")
            return None
        count("inbound.taken")
        log.info("inbound.taken", account=received.account, outcome=outcome)
        return outcome

    def _decide_and_write(self, received: ReceivedEvent) -> str:
        conflicts: tuple[InboundConflict, ...] = ()
        while True:
            received, facts = self._facts.read(received, conflicts)
            try:
                return self._effects.write(received, decide(received.event, facts))
            except InboundRefused as refused:
                if len(conflicts) == _DECISIONS_MAX:
                    raise
                conflicts = (*conflicts, refused.conflict)

    def _give_up(self, received: ReceivedEvent) -> str | None:
        try:
            return self._effects.write(received, InboundDecision(outcome="given_up"))
        except EventKnown:
            return None
