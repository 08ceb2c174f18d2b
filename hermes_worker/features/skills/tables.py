"""What skills there are: their versions, folders and changes."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.tables import BigId, Seconds, Tenant, metadata

skills = sa.Table(
    "skills",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("name", sa.String(130), nullable=False),
    sa.Column("category", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("facts", SealedText("skills.facts"), nullable=False),
    sa.Column("origin", sa.String(100), nullable=False),
    sa.Column("source_hash", sa.String(64)),
    sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
    sa.Column("is_removed", sa.SmallInteger(), nullable=False, server_default="0"),
    sa.Column("changed_at", Seconds, nullable=False),
    sa.UniqueConstraint("tenant", "name"),
    info={"owner": "tenant"},
)
"""The newest version of each skill: ``hash`` names its folder in ``skill_contents``, ``facts`` is what its front matter
says. ``origin`` is ``people``, ``agent``, ``plugin:NAME``, or ``home:ID`` of the directory that it was read from, whose
folder had the hash ``source_hash`` then. One with ``is_removed`` was removed while its folder is still there."""

skill_contents = sa.Table(
    "skill_contents",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("tenant", Tenant, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("is_set", sa.SmallInteger(), nullable=False),
    sa.Column("body", SealedText("skill_contents.body"), nullable=False),
    sa.Column("used_at", Seconds, nullable=False),
    sa.UniqueConstraint("tenant", "hash"),
    sa.Index("ix_skill_contents_used_at", "is_set", "used_at"),
    info={"owner": "tenant"},
)
"""Folders of skills, and sets of skills (``is_set``) with which runs began: ``runs.skills_hash`` names one. Never
changed; an unreferenced row is deleted a day after its last use (``used_at``, exact to ten minutes)."""

skill_changes = sa.Table(
    "skill_changes",
    metadata,
    sa.Column("pk", BigId, primary_key=True, autoincrement=True),
    sa.Column("run_pk", BigId, sa.ForeignKey("runs.pk", ondelete="CASCADE"), nullable=False),
    sa.Column("call_key", sa.String(200), nullable=False, unique=True),
    sa.Column("name", sa.String(130), nullable=False),
    sa.Column("hash", sa.String(64)),
    sa.Column("changed_at", Seconds, nullable=False),
    sa.Index("ix_skill_changes_run_pk", "run_pk"),
    info={"owner": "run_pk"},
)
"""What calls of agents changed in skills, by the key of the call: a call that is repeated finds its row, and changes
nothing. ``hash`` is null where the skill was removed."""
