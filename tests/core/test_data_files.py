"""Tables in files: what is right is loaded as its type says, and a mistake is named by file, row and field."""

from __future__ import annotations

import math
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from hermes_worker.core.data_files import load_data
from hermes_worker.core.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    unit: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crate:
    name: str
    size: Size | None = None
    label: re.Pattern[str] | None = None
    gauges: tuple[Gauge, ...] = ()
    names: Mapping[Size, tuple[str, ...]] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    is_full: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CrateFile:
    crate: tuple[Crate, ...]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Crate, ...]]:
    (tmp_path / "crates_of_a_test").mkdir()
    (tmp_path / "crates_of_a_test" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "crates_of_a_test", raising=False)  # of the test before

    def load_text(text: str) -> tuple[Crate, ...]:
        (tmp_path / "crates_of_a_test" / "crates.toml").write_text(text, encoding="utf-8")
        return load_data(CrateFile, "crates_of_a_test", "crates.toml").crate

    return load_text


def test_rows_become_values_of_their_type(load: Callable[[str], tuple[Crate, ...]]) -> None:
    text = """
        [[crate]]
        name = "a"
        size = "large"
        label = '\\d+'
        gauges = [{ unit = "kg" }, { unit = "m", factor = inf }, { unit = "s", factor = 2 }]
        names = { small = ["x", "y"] }
        extra = { any = [1, { thing = true }] }
        [[crate]]
        name = "b"
    """
    assert load(text) == (
        Crate(
            name="a",
            size=Size.LARGE,
            label=re.compile(r"\d+"),
            gauges=(Gauge(unit="kg"), Gauge(unit="m", factor=math.inf), Gauge(unit="s", factor=2.0)),
            names={Size.SMALL: ("x", "y")},
            extra={"any": [1, {"thing": True}]},
        ),
        Crate(name="b"),
    )


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ('name = "a"\ncolour = "red"', "crates.toml, crate, 'a' has a field that is not known: colour"),
        ('size = "large"', "crates.toml, crate, row 2 lacks name"),
        ('name = "a"\ncount = true', "crates.toml, crate, 'a', count must be of the type int, not True"),
        ('name = "a"\nis_full = 1', "crates.toml, crate, 'a', is_full must be of the type bool, not 1"),
        ('name = "a"\nsize = "huge"', "crates.toml, crate, 'a', size: 'huge' is not a valid Size"),
        ('name = "a"\nsize = 3', "crates.toml, crate, 'a', size must be of the type Size, not 3"),
        ('name = "a"\nlabel = "("', "crates.toml, crate, 'a', label: missing ), unterminated subpattern"),
        ('name = "a"\ngauges = [{}]', "crates.toml, crate, 'a', gauges, row 1 lacks unit"),
        ('name = "a"\ngauges = "kg"', "crates.toml, crate, 'a', gauges must be of the type tuple, not 'kg'"),
        ('name = "a"\nnames = { small = [1] }', "'a', names, small, row 1 must be of the type str, not 1"),
        ('name = "a"\nnames = { huge = [] }', "'a', names: 'huge' is not a valid Size"),
    ],
)
def test_a_mistake_is_named_by_file_row_and_field(
    load: Callable[[str], tuple[Crate, ...]], row: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        load(f'[[crate]]\nname = "first"\n[[crate]]\n{row}')


def test_a_file_without_its_table_is_refused(load: Callable[[str], tuple[Crate, ...]]) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("crates.toml lacks crate")):
        load("")


def test_every_table_is_part_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["hermes_worker"]
    package = ROOT / "hermes_worker"
    packaged = {path for pattern in patterns for path in package.glob(pattern)}
    assert set(package.rglob("*.toml")) - packaged == set()


def test_every_family_of_error_patterns_is_read() -> None:
    from hermes_worker.core.recovery.error_patterns import FAMILIES

    folder = ROOT / "hermes_worker" / "core" / "recovery"
    texts = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in ("classify", "error_patterns"))
    assert set(re.findall(r"FAMILIES\[[\"'](\w+)[\"']\]", texts)) == set(FAMILIES)
