"""What an audit says: an invariant, and how often it was found broken."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One invariant and how often it was found broken. Zero everywhere is what we sell."""

    invariant: str
    broken: int
    examples: tuple[str, ...] = ()


@dataclass(slots=True)
class BrokenInvariant:
    """Collects the cases in which an invariant is broken."""

    cases: list[str] = field(default_factory=list)

    def add(self, case: str) -> None:
        self.cases.append(case)

    def make_finding(self, invariant: str) -> AuditFinding:
        return AuditFinding(invariant=invariant, broken=len(self.cases), examples=tuple(self.cases[:5]))
