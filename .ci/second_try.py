"""Run tests; give what failed a second try, alone; say which those were, and let none of them do it twice.

Tests with real servers and kills have deadlines, and machines are shared. But a test that fails every second time has
found a race. So a test that needed a second try is named at the end, and whoever sees it enters it in
``second_tries.txt`` until its cause is mended; if a test on that list needs one again, the run has failed. The second
try ends with its first failure, because what hangs takes up to ten minutes for each test.

    python3 .ci/second_try.py COMMAND [PYTEST]

``COMMAND`` is a line for bash that ends in pytest; ``PYTEST`` (.venv/bin/pytest) is what runs the second try.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LIST = Path(__file__).with_name("second_tries.txt")
TESTS_FAILED = 1
"""What pytest exits with when it ran and tests failed."""
_TRIED_AGAIN_MAX = 20
"""If more fail, it is no accident."""


def main(arguments: Sequence[str], listed: Path = LIST) -> int:
    command, *rest = arguments
    cache = Path(".pytest_cache/v/cache/lastfailed")
    cache.unlink(missing_ok=True)
    status = subprocess.run(["bash", "-c", command], check=False).returncode
    failed = sorted(json.loads(cache.read_text())) if cache.exists() else []
    if status != TESTS_FAILED or not 0 < len(failed) <= _TRIED_AGAIN_MAX:
        return status
    print(f"\nsecond try, alone: {len(failed)} of the tests", flush=True)
    # Some markers depend on what else is collected (one of two databases is left to the night), so none decides here.
    only_failed = ["--last-failed", "--last-failed-no-failures", "none", "-x"]
    again = [*(rest or [".venv/bin/pytest"]), "-m", "", "-n", "0", *only_failed]
    status = subprocess.run(again, check=False).returncode
    return status or report_second_tries(failed, read_known(listed), listed.name)


def read_known(listed: Path) -> set[str]:
    """Tests that needed a second try before."""
    lines = (line.strip() for line in listed.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def report_second_tries(tried: Sequence[str], known: set[str], list_name: str) -> int:
    """Name the tests that passed only at the second try; the exit status of the run."""
    print("\npassed only at the second try:")
    for test in tried:
        print(f"  {test}{'  (and before: its race has to be mended)' if test in known else ''}")
    print(f"enter them in .ci/{list_name}", flush=True)
    return TESTS_FAILED if known.intersection(tried) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
