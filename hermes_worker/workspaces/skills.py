"""Skills: instructions that are kept as files, ``NAME/SKILL.md`` below ``skills`` in the home directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hermes_worker.system.plainfiles import read_plain

_SKILL_BYTES_MAX = 100_000


def read_skill(skills: Path, name: str) -> str | None:
    """The text of a skill: ``NAME/SKILL.md`` below ``skills``, or below one category of them. ``None`` when it is not
    there. The name is checked when it is written down; links that lead out of the directory are not followed."""
    with suppress(OSError, ValueError):
        root = skills.resolve(strict=True)
        for path in [root / name / "SKILL.md", *sorted(root.glob(f"*/{name}/SKILL.md"))]:
            real = path.resolve()
            if real.is_file() and real.is_relative_to(root):
                text = read_plain(real, bytes_max=_SKILL_BYTES_MAX).decode("utf-8", "replace")
                return f"[Follow the skill {name!r}; its files are in {real.parent}.]\n\n{text.strip()}"
    return None
