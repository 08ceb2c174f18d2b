"""Questions that wait for a person."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-approvals",
    version="1",
    summary="Questions that wait for a person",
    routers=(
        RouterDeclaration(
            name="approvals",
            implementation="hermes_worker.features.approvals.routes:router",
            paths=(
                "/v1/approvals",
                "/v1/approvals/history",
                "/v1/runs/{run_id}/approval",
                "/v1/runs/{run_id}/input",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="approvals",
            summary="List what waits for a person, answer it, and see who answered what.",
            implementation="hermes_worker.features.approvals.verbs:approvals",
            section="Work",
        ),
        CommandDeclaration(
            name="runs approve",
            summary="Allow the command that a run waits to be allowed.",
            implementation="hermes_worker.features.approvals.verbs:approve_run",
        ),
        CommandDeclaration(
            name="runs deny",
            summary="Refuse the command that a run waits to be allowed.",
            implementation="hermes_worker.features.approvals.verbs:deny_run",
        ),
        CommandDeclaration(
            name="runs answer",
            summary="Answer the question that a run asks.",
            implementation="hermes_worker.features.approvals.verbs:answer_run",
        ),
    ),
)
