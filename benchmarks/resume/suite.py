"""Judge how systems resume: ``python -m benchmarks.resume.suite --system langgraph --kills 20 --resume FILE --seed 1``.

Six properties, after "Resume Means Resume" (arXiv:2608.03836). Each experiment starts an agent in a process of its own,
kills it with SIGKILL at a named point, starts it again, and looks at what the world outside has seen. Every experiment
has a number from which all of its choices follow, so a failure is repeated with ``--seed`` and that number alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.resume.outside import Outside, Record, Script

_HERE = Path(__file__).parent / "drivers"
_POINTS = ("before_model", "after_model", "before_effect", "after_effect")
_CALLS = 3
_NOT_CLAIMED = 3
_ATTEMPTS_MAX = 4
_TIMEOUT_S = 600


class NotClaimed(Exception):
    """The system does not claim what the experiment is about."""


class Broken(Exception):
    """The property does not hold here; the message says what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system under test, and how to make its environment."""

    name: str
    driver: str
    packages: Sequence[str] = ()
    """From the package index, with their versions; none for a system that this interpreter has."""
    needs_postgres: bool = False
    """It keeps its state in a PostgreSQL server, which ``--postgres`` names."""


SYSTEMS = (
    System(name="hermes-sqlite", driver="hermes_agent.py"),
    System(name="hermes-postgresql", driver="hermes_agent.py", needs_postgres=True),
    System(
        name="langgraph",
        driver="langgraph_agent.py",
        packages=("langgraph==1.2.22", "langgraph-checkpoint-sqlite==3.1.2"),
    ),
    System(name="dbos", driver="dbos_agent.py", packages=("dbos==3.4.0",)),
    System(name="pydantic-graph", driver="pydantic_graph_agent.py", packages=("pydantic-graph==2.68.0",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One system in its environment, and the world outside."""

    system: System
    python: Path
    outside: Outside
    postgres: str = ""

    def call(self, verb: str, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run the driver to its end, which may be a kill."""
        environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "RESUME_OUTSIDE": self.outside.url}
        if self.system.needs_postgres:
            environ["RESUME_POSTGRES"] = self.postgres
        driver = [str(self.python), str(_HERE / self.system.driver), verb, str(directory)]
        done = subprocess.run(driver, env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode == _NOT_CLAIMED:
            raise NotClaimed(f"{self.system.name} does not claim {verb!r}")
        return done

    def finish(self, directory: Path) -> str:
        """Resume until the run has ended. Raises ``Broken``."""
        said = ""
        for _ in range(_ATTEMPTS_MAX):
            done = self.call("resume", directory)
            if done.returncode == 0:
                return done.stdout.strip()
            said = (done.stderr or f"status {done.returncode}")[-400:]
        raise Broken(f"it does not resume: {said}")


def kill_and_finish(bench: Bench, directory: Path, draw: random.Random) -> Record:
    """Kill a run at a point and resume it to its end."""
    point = draw.choice(_POINTS)
    record = bench.outside.begin(Script(calls=_CALLS, kill_at=point, kill_on=draw.randint(1, _CALLS)))
    if bench.call("start", directory).returncode == 0:
        raise Broken(f"nobody was killed at {point}")
    answer = bench.finish(directory)
    if answer != "paid":
        raise Broken(f"the answer is {answer!r}")
    return record


def prove_prefix_continuation(bench: Bench, directory: Path, draw: random.Random) -> int:
    """Each request begins with the messages of the one before it, or repeats them, byte for byte."""
    record = kill_and_finish(bench, directory, draw)
    seen: list[str] = []
    for messages in record.list_messages():
        texts = [json.dumps(message) for message in messages]
        if texts[: len(seen)] != seen:
            raise Broken(f"a request of {len(texts)} messages does not begin with the {len(seen)} before it")
        seen = texts
    return record.kills


def prove_effects_once(bench: Bench, directory: Path, draw: random.Random) -> int:
    """Each payment happens once, as the sink counts them by idempotency key."""
    record = kill_and_finish(bench, directory, draw)
    wrong = {mark: count for mark, count in record.effects.items() if count != 1}
    if wrong or len(record.effects) != _CALLS:
        raise Broken(f"payments: {dict(record.effects)}")
    return record.kills


def prove_fork_determinism(bench: Bench, directory: Path, draw: random.Random) -> int:
    """Two forks of one point, each after a kill of the run, send byte-equal first requests."""
    kills = kill_and_finish(bench, directory, draw).kills
    first = []
    for number in range(2):
        fork = directory.with_name(f"{directory.name}-{number}")
        shutil.copytree(directory, fork)
        record = bench.outside.begin(Script(calls=_CALLS))
        done = bench.call("fork", fork)
        if done.returncode != 0 or not record.requests:
            raise Broken(f"the fork ended with {done.stderr[-300:]!r} after {len(record.requests)} requests")
        first.append(record.requests[0])
    if first[0] != first[1]:
        raise Broken("the first requests of two forks differ")
    return kills


def prove_checkpoint_validity(bench: Bench, directory: Path, draw: random.Random) -> int:
    """A cut or overwritten state is refused, and nothing is paid again from it."""
    point, on = draw.choice(_POINTS[2:]), draw.randint(2, _CALLS)
    record = bench.outside.begin(Script(calls=_CALLS, kill_at=point, kill_on=on))
    bench.call("start", directory)
    state = directory / "state.db"
    if not state.exists():
        raise NotClaimed(f"{bench.system.name} keeps no state")
    with closing(sqlite3.connect(state, timeout=60)) as connection:
        connection.execute("pragma journal_mode=delete")  # what stands in a journal is merged, so the file is whole
    size = state.stat().st_size
    if draw.random() < 0.5:
        os.truncate(state, size * draw.randint(1, 9) // 10)
    else:
        with state.open("r+b") as file:
            file.write(b"another format of another version")
    paid = sum(record.effects.values())
    done = bench.call("resume", directory)
    if done.returncode == 0:
        raise Broken("a damaged state was resumed as if it were whole")
    if sum(record.effects.values()) != paid:
        raise Broken("something was paid from a damaged state")
    return record.kills


def prove_consumed_once(bench: Bench, directory: Path, draw: random.Random) -> int:
    """Check that one process pays when several answer one question at the same moment."""
    record = bench.outside.begin(Script(calls=1))
    bench.call("ask", directory)
    with ThreadPoolExecutor(_ANSWERERS) as pool:
        list(pool.map(lambda _: bench.call("allow", directory), range(_ANSWERERS)))
    if record.effects["m0"] != 1:
        raise Broken(f"{_ANSWERERS} processes answered at once, and it was paid {record.effects['m0']} times")
    return 0


_ANSWERERS = 4


def prove_recovery_determinism(bench: Bench, directory: Path, draw: random.Random) -> int:
    """Two recoveries from one state send the same requests, byte for byte."""
    point = draw.choice(_POINTS)
    record = bench.outside.begin(Script(calls=_CALLS, kill_at=point, kill_on=draw.randint(1, _CALLS)))
    bench.call("start", directory)
    kills, seen = record.kills, []
    for number in range(2):
        copy = directory.with_name(f"{directory.name}-{number}")
        shutil.copytree(directory, copy)
        record = bench.outside.begin(Script(calls=_CALLS))
        bench.finish(copy)
        seen.append(list(record.requests))
    if seen[0] != seen[1]:
        raise Broken("two recoveries of one state asked the model differently")
    return kills


Experiment = Callable[[Bench, Path, random.Random], int]
PROPERTIES: dict[str, Experiment] = {
    "prefix continuation": prove_prefix_continuation,
    "effect exactly-once": prove_effects_once,
    "fork determinism": prove_fork_determinism,
    "checkpoint validity": prove_checkpoint_validity,
    "consume-once": prove_consumed_once,
    "recovery determinism": prove_recovery_determinism,
}


def run_experiment(bench: Bench, name: str, seed: int, number: int) -> dict[str, object]:
    """Do one experiment in a directory of its own; a row of the results."""
    row: dict[str, object] = {"system": bench.system.name, "property": name, "seed": seed, "number": number}
    draw = random.Random(f"{seed}.{name}.{number}")
    with tempfile.TemporaryDirectory(prefix="resume-", ignore_cleanup_errors=True) as temporary:
        directory = Path(temporary) / "run"
        directory.mkdir()
        try:
            kills = PROPERTIES[name](bench, directory, draw)
            return {**row, "outcome": "held", "kills": kills}
        except NotClaimed as error:
            return {**row, "outcome": "not claimed", "kills": 0, "seen": str(error)}
        except subprocess.TimeoutExpired as error:
            # A machine that is busy is no failure of the system: a later call does it again.
            return {**row, "outcome": "not finished", "kills": bench.outside.record.kills, "seen": str(error)}
        except Broken as error:
            return {**row, "outcome": "broken", "kills": bench.outside.record.kills, "seen": str(error)}


def summarise(rows: Sequence[dict[str, object]], *, seed: int) -> dict[str, object]:
    """Build the scorecard of many experiments."""
    cards: dict[str, dict[str, object]] = {}
    for system in dict.fromkeys(str(row["system"]) for row in rows):
        packages = next((one.packages for one in SYSTEMS if one.name == system), ())
        card: dict[str, object] = {"packages": list(packages)}
        for name in PROPERTIES:
            its = [row for row in rows if (row["system"], row["property"]) == (system, name)]
            broken = [row for row in its if row["outcome"] == "broken"]
            card[name] = {
                "experiments": len(its),
                "kills": sum(int(str(row["kills"])) for row in its),
                "held": sum(row["outcome"] == "held" for row in its),
                "not_claimed": sum(row["outcome"] == "not claimed" for row in its),
                "not_finished": sum(row["outcome"] == "not finished" for row in its),
                "broken": len(broken),
                **({"first_failure": {key: broken[0][key] for key in ("seed", "number", "seen")}} if broken else {}),
            }
        cards[system] = card
    return {"seed": seed, "at": datetime.now(UTC).isoformat(timespec="seconds"), "systems": cards}


@contextmanager
def prepare(system: System, environments: Path, postgres: str = "") -> Iterator[Bench]:
    """Make the system's environment where it is missing, and open the world outside."""
    place = environments / system.name
    if not system.packages and system.driver == "hermes_agent.py":
        with Outside() as outside:
            yield Bench(system=system, python=Path(sys.executable), outside=outside, postgres=postgres)
        return
    if not (place / "ready").exists():
        print(f"making the environment of {system.name}: {' '.join(system.packages)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(place / "bin/python"), "-m", "pip", "install", "-q", *system.packages], check=True)
        (place / "ready").touch()
    with Outside() as outside:
        yield Bench(system=system, python=place / "bin/python", outside=outside)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; 1 when a property is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", action="append", choices=[one.name for one in SYSTEMS], help="may be repeated")
    parser.add_argument("--property", action="append", choices=list(PROPERTIES), help="may be repeated")
    parser.add_argument("--kills", type=int, default=6, help="experiments with a kill, over all properties")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="results as JSON Lines: what stands there is not done again")
    parser.add_argument("--postgres", default="", help="SQLAlchemy URL of a server for systems that need one")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "resume-suite")
    given = parser.parse_args(arguments)
    rows: list[dict[str, object]] = []
    if given.resume is not None and given.resume.exists():
        rows = [json.loads(line) for line in given.resume.read_text().splitlines()]
    done = {(row["system"], row["property"], row["seed"], row["number"]) for row in rows}
    names = given.property or list(PROPERTIES)
    wanted = [one for one in SYSTEMS if not given.system or one.name in given.system]
    if given.postgres == "" and any(one.needs_postgres for one in wanted):
        parser.error("hermes-postgresql needs --postgres with the URL of a server, or choose others with --system")
    try:
        for system in wanted:
            with prepare(system, given.environments, given.postgres) as bench:
                for number in range(-(-given.kills // len(names))):
                    for name in names:
                        if (system.name, name, given.seed, number) in done:
                            continue
                        row = run_experiment(bench, name, given.seed, number)
                        rows.append(row)
                        print(f"{system.name}: {name} {number}: {row['outcome']}", file=sys.stderr)
                        if given.resume is not None and row["outcome"] != "not finished":
                            with given.resume.open("a") as file:
                                file.write(json.dumps(row) + "\n")
    except KeyboardInterrupt:
        print("stopped; the same command goes on from --resume", file=sys.stderr)
    print(json.dumps(summarise(rows, seed=given.seed), indent=2))
    return int(any(row["outcome"] == "broken" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
