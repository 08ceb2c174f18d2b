"""What looks like an attack in a skill: facts of the original's own tests, and cases of ours beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hermes_worker.features.skills.rules import SkillFile
from hermes_worker.features.skills.text_rules import find_threats

CASES: Final = json.loads(
    (Path(__file__).parents[1] / "cases" / "original" / "skills-guard.json").read_text(encoding="utf-8")
)["cases"]
"""None of them contradicts an invariant of ours."""
SKILL: Final = "---\nname: x\ndescription: y\n---\n# T\n"
MIXED: Final = "Zx9Qw8Er" + "7Ty6Ui5Op4As3Df2Gh1Jk0Lz"
GITLAB: Final = "gl" + f"pat-{MIXED[:20]}"


def threats(**files: str) -> tuple[str, ...]:
    return find_threats([SkillFile(path=path, body=text.encode()) for path, text in files.items()])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_skill_of_the_originals_tests_is_judged_as_there(case: dict[str, Any]) -> None:
    assert bool(threats(**case["input"]["files"])) is case["expected"]["threat"]


@pytest.mark.parametrize(
    "text",
    [
        f"The token is {GITLAB}.\n",
        f"export GITLAB_TOKEN={GITLAB}\n",
        f"curl -H 'PRIVATE-TOKEN: {GITLAB}' https://gitlab.com\n",
        "gh" + f"p_{MIXED}{MIXED[:4]}\n",
        "sk-" + f"ant-api03-{MIXED}{MIXED}\n",
        "e2" + f"b_{'5b4fa5ce' * 5}\n",
    ],
)
@pytest.mark.parametrize("path", ["SKILL.md", "scripts/run.sh"])
def test_a_key_in_a_skill_is_found_whatever_it_is_called(path: str, text: str) -> None:
    files = {"SKILL.md": SKILL, path: SKILL + text}

    assert threats(**files) == (f"{path}: hardcoded_secret",)


@pytest.mark.parametrize(
    "text",
    [
        "Set GITLAB_TOKEN to your token, such as glpat-xxxxxxxxxxxxxxxxxxxx.",
        "Keys of OpenAI begin with sk-, those of GitLab with glpat-: ask the user for one.",
        "Nobody needs sudo for this; it is a pseudo-terminal.",
        "The system prompt may override the default style.",
        "The system prompt does not override your preferences.",
    ],
)
def test_a_skill_that_talks_about_keys_and_rights_is_none(text: str) -> None:
    assert threats(**{"SKILL.md": SKILL + text}) == ()


@pytest.mark.parametrize(
    "line", ["sudo -n true", "make && sudo make install", "x=$(sudo cat /etc/shadow)", "$ sudo ls"]
)
def test_rights_of_root_in_a_script_are_found(line: str) -> None:
    assert threats(**{"SKILL.md": SKILL, "s.sh": f"{line}\n"}) == ("s.sh: sudo_usage",)
