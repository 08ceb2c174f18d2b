"""The crash lab's result, for people and for programs."""

from __future__ import annotations

from typing import Any

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.lab.lab import LabReport


def render_text(report: LabReport) -> str:
    """Render a summary for a person."""
    options = report.options
    faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(report.faults.items())) or "none"
    lines = [
        f"Crash lab: {options.runs} runs x {options.steps} steps on {report.database}, seed {options.seed}, "
        f"{report.duration_s:.0f} s ({report.steps_per_s:.0f} steps/s with the faults)",
        f"Injected: {faults}",
        "",
    ]
    width = max(len(finding.invariant) for finding in report.findings)
    for finding in report.findings:
        mark = "ok " if finding.broken == 0 else "BAD"
        lines.append(f"  {mark} {finding.invariant:<{width}}  {finding.broken}")
        lines += [f"        {example}" for example in finding.examples]
    if report.options.has_trees:
        lines += ["", f"Commands allowed: {report.answered}. Runs stopped with their children: {report.stopped}."]
    lines += ["", _format_recovery_line(report), f"'once' calls settled as outcome unknown: {report.unknown_calls}"]
    lines.append(f"Model requests: {report.model_requests}, of them of unknown outcome: {report.unknown_attempts}")
    if report.duels:
        lines.append("Duels: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(report.duels.items())))
    if report.deliveries:
        lines.append(f"Deliveries taken outside: {report.deliveries}")
    if report.unfinished:
        example = report.unfinished[0]
        lines.append(f"Not finished in time, and so not judged: {len(report.unfinished)}, such as {example}")
    lines.append("Every invariant held." if report.is_green else "AN INVARIANT IS BROKEN.")
    return "\n".join(lines)


def _format_recovery_line(report: LabReport) -> str:
    middle, worst = report.compute_recovery_s(0.5), report.compute_recovery_s(0.99)
    if middle is None or worst is None:
        return "Recovery: no claim was hit by a kill."
    return (
        f"Recovery after a kill (lease {report.options.ttl_s:g} s): p50 {middle:.2f} s, p99 {worst:.2f} s "
        f"over {len(report.recovery_s)} claims"
    )


def render_json(report: LabReport) -> str:
    """Render the result as one JSON object."""
    document: dict[str, Any] = {
        "is_green": report.is_green,
        "database": report.database,
        "seed": report.options.seed,
        "runs": report.options.runs,
        "steps": report.options.steps,
        "duration_s": round(report.duration_s, 2),
        "steps_per_s": round(report.steps_per_s, 1),
        "faults": report.faults,
        "findings": {finding.invariant: finding.broken for finding in report.findings},
        "examples": {f.invariant: list(f.examples) for f in report.findings if f.broken},
        "recovery_s": {
            "count": len(report.recovery_s),
            "p50": report.compute_recovery_s(0.5),
            "p99": report.compute_recovery_s(0.99),
        },
        "unknown_calls": report.unknown_calls,
        "model_requests": report.model_requests,
        "unknown_attempts": report.unknown_attempts,
        "answered": report.answered,
        "stopped": report.stopped,
        "duels": report.duels,
        "deliveries": report.deliveries,
        "unfinished": list(report.unfinished),
    }
    return dump_canonical_json(document)
