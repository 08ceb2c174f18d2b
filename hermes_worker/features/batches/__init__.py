"""Many runs at once."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-batches",
    version="1",
    summary="Many runs at once",
    routers=(
        RouterDeclaration(
            name="batches",
            implementation="hermes_worker.features.batches.routes:router",
            paths=(
                "/v1/batch/runs",
                "/v1/batch/stop",
                "/v1/runs/{run_id}/wait",
                "/v1/batch/wait",
                "/v1/runs/{run_id}/retry",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="runs submit",
            summary="Submit the runs of FILE, one JSON object per line as POST /v1/runs takes it; "
            "- reads standard input.",
            implementation="hermes_worker.features.batches.verbs:submit",
        ),
        CommandDeclaration(
            name="runs retry",
            summary="Submit once more what one run that has ended was asked.",
            implementation="hermes_worker.features.batches.verbs:retry",
        ),
        CommandDeclaration(
            name="runs wait",
            summary="Wait for the end of one run.",
            implementation="hermes_worker.features.batches.verbs:wait",
        ),
        CommandDeclaration(
            name="runs join",
            summary="Wait for the end of several runs.",
            implementation="hermes_worker.features.batches.verbs:join",
        ),
    ),
)
