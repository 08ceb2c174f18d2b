"""Begin reviews: runs that look back at a conversation behind a turn and keep what it taught
(``features.memory.review_rules``). Best effort: the run has ended, and a review that is not begun now is begun behind
the next turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hermes_worker import __version__
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.titles import describe_cause
from hermes_worker.features.memory.review_prompt import build_review_prompt, render_record
from hermes_worker.features.memory.review_rows import NewReview, Reviews
from hermes_worker.features.memory.review_rules import (
    ITERATIONS_MAX,
    KEEPING,
    REVIEW_SOURCE,
    WALL_S_MAX,
    ReviewPolicy,
    ReviewTopic,
    select_review_tools,
)
from hermes_worker.features.memory.rows import Memories
from hermes_worker.features.memory.rules import MemoryPolicy, render_memory_block
from hermes_worker.features.skills.change_rules import SkillPolicy, SkillWrites
from hermes_worker.observe import count, log
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.runs import IterationClaim, SessionContext
from hermes_worker.tasks.iteration.planning import read_tool_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewStarter:
    """The parts that a worker needs to begin reviews. Thread-safe."""

    policy: ReviewPolicy
    rows: Reviews
    memories: Memories
    memory: MemoryPolicy
    skills: SkillPolicy
    spec_of: Callable[[int], RunSpec]
    writers_of: Callable[[str], Collection[MemoryWriter]]

    def begin_review(self, claim: IterationClaim, session: SessionContext) -> list[Hint]:
        """Begin the review that is due, as ``begin`` does, but begin none while the database is away."""
        try:
            hints = self.begin(claim, session)
        except UnavailableError as error:
            log.info("review.not_begun", reason=type(error).__name__)
            return []
        if hints:
            count("review.begun")
        return hints

    def begin(self, claim: IterationClaim, session: SessionContext) -> list[Hint]:
        """Begin the review that is due behind a run that has just answered; return what to send. Only turns of a
        conversation have one: neither delegated work nor another review. Raises ``UnavailableError``.
        """
        loaded = claim.loaded
        if loaded.depth or loaded.root_pk != loaded.pk:
            return []
        offered = self._select_topics_with_tools(read_tool_names(session.tools))
        if not offered:
            return []
        since = {topic: self.rows.count_since_kept(loaded.session_pk, topic) for topic in offered}
        due = [topic for topic in offered if self.policy.is_due(topic, since[topic])]
        due = self._select_allowed_topics(due, self.writers_of(claim.run_id)) if due else due
        if not due:
            return []
        said = self.rows.list_messages(loaded.session_pk, min(since[topic].run_pk for topic in due))
        record = render_record(said)
        return self.rows.begin(loaded.pk, self._build_review(claim, session, due, record)) if record else []

    def _select_topics_with_tools(self, names: Collection[str]) -> list[ReviewTopic]:
        """The topics for which the session has the tools."""
        return [topic for topic in ReviewTopic if topic in self.policy.topics and KEEPING[topic] in names]

    def _select_allowed_topics(
        self, topics: Collection[ReviewTopic], asking: Collection[MemoryWriter]
    ) -> list[ReviewTopic]:
        """The topics about which runs of this kind may keep something."""
        writers = {
            ReviewTopic.MEMORY: self.memory.writers if self.memory.targets else frozenset(),
            ReviewTopic.SKILLS: frozenset() if self.skills.writes is SkillWrites.OFF else self.skills.writers,
        }
        return [topic for topic in topics if set(asking) <= set(writers[topic])]

    def _build_review(
        self, claim: IterationClaim, session: SessionContext, topics: Collection[ReviewTopic], record: str
    ) -> NewReview:
        names = select_review_tools(topics)
        kept = [each for each in json.loads(session.tools) if each["function"]["name"] in names]
        asked = self.spec_of(claim.loaded.pk)
        spec = RunSpec(
            input=record,
            about=describe_cause("Review", asked),
            model=claim.loaded.model,
            endpoint=claim.loaded.endpoint,
            toolsets=(),
            iterations_max=ITERATIONS_MAX,
            wall_s_max=WALL_S_MAX,
            tokens_max=self.policy.tokens_max,
            nano_usd_max=asked.nano_usd_max,
            source=REVIEW_SOURCE,
            metadata={"reviews": claim.run_id},
            tags=[topic.tag for topic in topics],
            program=__version__,
            configuration=asked.configuration,
            layers=asked.layers,
            overrides=asked.overrides,
            overridden_by=asked.overridden_by,
        )
        prompt = build_review_prompt(
            topics, self._render_memory_blocks(session.tenant) if ReviewTopic.MEMORY in topics else ()
        )
        return NewReview(spec=spec, system_prompt=prompt, tools=dump_canonical_json(kept))

    def _render_memory_blocks(self, tenant: str) -> list[str]:
        standing = self.memories.load_entries(tenant, self.memory.profile)
        return [
            render_memory_block([entry.content for entry in standing[target]], target, self.memory.build_rules(target))
            for target in standing
            if target in self.memory.targets
        ]
