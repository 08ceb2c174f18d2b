"""Runs that go on from an earlier point of other runs, replays of runs, and rehearsals of upgrades."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-forks",
    version="1",
    summary="Runs that go on from an earlier point of other runs",
    routers=(
        RouterDeclaration(
            name="forks",
            implementation="hermes_worker.features.forks.routes:router",
            paths=("/v1/runs/{run_id}/fork",),
        ),
        RouterDeclaration(
            name="comparisons",
            implementation="hermes_worker.features.forks.routes:comparisons",
            paths=("/v1/runs/{run_id}/comparison",),
        ),
        RouterDeclaration(
            name="replays",
            implementation="hermes_worker.features.forks.routes:replays",
            paths=("/v1/replays", "/v1/replays/{replay}", "/v1/replays/{replay}/grades"),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="runs fork",
            summary="Go on from an earlier step of a run, in a conversation of its own.",
            implementation="hermes_worker.features.forks.verbs:fork",
        ),
        CommandDeclaration(
            name="runs compare",
            summary="Where two runs part, and what each of them took.",
            implementation="hermes_worker.features.forks.verbs:compare",
        ),
        CommandDeclaration(
            name="runs replay",
            summary="Play recorded runs again, offline, against another model or prompt, and compare.",
            implementation="hermes_worker.features.forks.replay_verbs:replay",
        ),
        CommandDeclaration(
            name="data rehearse",
            summary="Try this version on a copy of the database, before it is upgraded.",
            implementation="hermes_worker.features.forks.rehearsal_verbs:rehearse_upgrade",
        ),
    ),
)
