"""A model's verdict about a dangerous command, before a person is asked (``approvals.mode: smart``).

A worker for models asks it, in an auxiliary call that is made before the command's tool has begun.
"""

from __future__ import annotations

from hermes_worker.core.auxiliary import AnsweredConsultation, AuxiliaryQuestion, AuxTask, Consultation
from hermes_worker.core.messages import build_user_body, dump_canonical_json
from hermes_worker.observe import count, log
from hermes_worker.safety.approvals import VERDICT_RULES, Ask, Verdict, parse_verdict, render_verdict_question

_OUTPUT_TOKENS_MAX = 16
"""One word; a model that thinks first says nothing in it, and then a person decides."""


def build_verdict_consultation(command: str, asked: Ask) -> Consultation:
    """The question about a dangerous command, asked once: of the model for this task, or of the run's model."""
    question = AuxiliaryQuestion(
        task=AuxTask.APPROVAL,
        messages=(
            dump_canonical_json({"role": "system", "content": VERDICT_RULES}),
            build_user_body(render_verdict_question(command, "; ".join(asked.pattern_keys))),
        ),
        output_tokens_max=_OUTPUT_TOKENS_MAX,
        reasoning_effort="none",
    )
    return Consultation(questions=(question,), material=_build_question_facts(command, asked))


def read_verdict(consulted: AnsweredConsultation, command: str, asked: Ask) -> Verdict:
    """Read the model's answer. The verdict is "escalate", so that a person decides, whenever anything is unclear: also
    when the rules now say something else of the command than they did when the model was asked.
    """
    [answer] = consulted.answers
    if answer.text is None:
        log.info("command.not_judged", reason=answer.failure)
        return Verdict.ESCALATE
    if consulted.material != _build_question_facts(command, asked):
        log.info("command.not_judged", reason="the rules have changed")
        return Verdict.ESCALATE
    found = parse_verdict(answer.text)
    count(f"command.judged.{found.value}")
    return found


def _build_question_facts(command: str, asked: Ask) -> dict[str, str]:
    return {"command": command, "description": "; ".join(asked.pattern_keys)}
