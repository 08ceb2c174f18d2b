"""What Prometheus reads: one table of metrics, bounded labels, numbers that agree with the rows."""

from __future__ import annotations

import ast
import re
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from support.prometheus import rules
from support.recount import recounted
from support.store import Store, opened

from hermes_worker import settings as settings_module
from hermes_worker.core.replay import Replay
from hermes_worker.metrics import serving
from hermes_worker.metrics.catalogue import BY_NAME, METRICS, MetricKind, MetricScope
from hermes_worker.metrics.collecting import FleetCollector
from hermes_worker.metrics.labels import LabelValues
from hermes_worker.metrics.serving import build_registry, serve_metrics
from hermes_worker.observe import COUNTED, TIMED, count, record_duration, reset_counters
from hermes_worker.settings import MetricsSettings, Settings
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.tables import channels, deliveries, runs

ROOT = Path(__file__).parents[1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as found:
        yield found


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_module.load_settings({"HERMES_HOME": str(tmp_path), "HERMES_MODEL": "scripted"})


@pytest.fixture(autouse=True)
def _counters_at_zero() -> Iterator[None]:
    reset_counters()
    yield
    reset_counters()


def served(registry: CollectorRegistry) -> dict[str, Family]:
    """What a scrape reads."""
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def everything(store: Store, settings: Settings) -> dict[str, Family]:
    """A process in which everything has happened once."""
    for event in COUNTED:
        count(event)
    count("model.failed.rate_limit")
    for timer in TIMED:
        record_duration(f"{timer}.model" if timer in ("hint.waited", "step.held") else timer, 0.3)
    _live(store)
    gauges = {
        name: lambda: 1.0
        for name in (
            "hermes_process_in_flight",
            "hermes_process_slots",
            "hermes_process_followers",
            "hermes_process_database_connections.open",
        )
    }
    return served(build_registry(settings, "worker", gauges, store.database))


def _live(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, Replay.ONCE)
    store.settle(run_id, 0)
    store.settle(run_id, 1)
    store.answer(run_id)
    store.submit()
    # What takes many steps to happen stands in rows at once.
    with store.database.write() as connection:
        for statement in (
            sa.update(runs).values(exhausted="tokens", refused_attempts=1, unknown_attempts=1, unpriced_calls=1),
            sa.text(
                "insert into waits (run_pk, iteration, position, kind, request, opened_at) "
                " values (1, 1, 0, 'input', '{}', 1)"
            ),
            sa.text(
                "insert into jobs (job_id, tenant, name, definition, state, next_fire_at, created_at, updated_at)"
                " values ('0123456789ab', 'default', 'j', '{}', 'scheduled', 5, 1, 1)"
            ),
            sa.text(
                "insert into firings (job_pk, slot, outcome, reason, settled_at) values (1, 1, 'missed', 'late', 1)"
            ),
            sa.insert(deliveries).values(
                delivery_id="d1",
                tenant="default",
                target="nobody_knows_it:-100",
                state="delivered",
                adjustments="",
                created_at=1.0,
                updated_at=1.0,
                settled_at=2.0,
            ),
        ):
            connection.execute(statement)


def test_every_metric_of_the_table_is_served_and_no_other(store: Store, settings: Settings) -> None:
    found = everything(store, settings)
    ours = {name: family for name, family in found.items() if not name.startswith(("process_", "python_"))}

    assert set(ours) == set(BY_NAME)
    for name, family in ours.items():
        metric = BY_NAME[name]
        assert (family.type, family.documentation) == (metric.kind.value, metric.meaning)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


_SELECTOR = re.compile(r"(hermes_\w+_total)(?:\{([^}]*)\})?")


def selectors_of_alerts() -> list[tuple[str, dict[str, str]]]:
    """The counters that alerts read, each with a pattern for every label that they choose by."""
    expressions = " ".join(rule["expr"] for rule in rules().values())
    return [(name, dict(re.findall(r'(\w+)=~?"([^"]*)"', labels))) for name, labels in _SELECTOR.findall(expressions)]


def test_a_counter_that_counted_nothing_is_served_where_an_alert_reads_it_and_nowhere_else(
    store: Store, settings: Settings
) -> None:
    fresh = served(build_registry(settings, "worker", {}, store.database))
    zeros = [
        sample
        for name, family in fresh.items()
        if name in BY_NAME and BY_NAME[name].kind is MetricKind.COUNTER
        for sample in family.samples
        if sample.name.endswith("_total")
    ]

    def is_read(sample: Sample, name: str, wanted: dict[str, str]) -> bool:
        chosen = all(re.fullmatch(pattern, sample.labels.get(label, "")) for label, pattern in wanted.items())
        return sample.name == name and chosen

    selectors = selectors_of_alerts()
    assert [each for each in selectors if not any(is_read(sample, *each) for sample in zeros)] == []
    assert [sample for sample in zeros if not any(is_read(sample, *each) for each in selectors)] == []


def test_names_say_their_unit_and_kind() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("hermes_")
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert metric.meaning.endswith(".")
        assert metric.kind is not MetricKind.HISTOGRAM or metric.name.endswith("_seconds")


def test_fleet_metrics_say_what_the_rows_say(store: Store, settings: Settings) -> None:
    found = everything(store, settings)
    with store.database.read() as connection:
        rows = recounted(connection)
    said = {
        (name, tuple(sample.labels[label] for label in BY_NAME[name].labels)): sample.value
        for name, family in found.items()
        if name in BY_NAME and BY_NAME[name].scope is MetricScope.FLEET
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert said["hermes_runs_ended", ("completed", "text_response")] == 1
    assert said["hermes_runs_accepted", ()] == rows["runs_accepted", ()] == 2
    assert said["hermes_tool_calls", ("succeeded", "once")] == 1
    assert said["hermes_tokens", ("scripted", "output")] == rows["output_tokens", ("scripted",)]
    assert said["hermes_model_attempts_failed", ("scripted", "unknown")] == 2
    assert said["hermes_budget_denials", ("tokens",)] == 2
    assert said["hermes_queue_due", ("model",)] == 1
    assert said["hermes_job_overdue_seconds", ()] > 1e9


def test_accounts_that_gateways_listen_to_are_told_by_how_that_goes(store: Store, settings: Settings) -> None:
    rows = GatewayRows(store.database)
    for number, (lease_s, error) in enumerate([(60, None), (60, None), (60, "401"), (-5, None)]):
        hold = rows.acquire_lease(f"telegram:a{number}", mode="poll", token_hash=str(number), holder="gw", lease_s=60)
        assert hold is not None
        rows.renew(hold, lease_s, error=error)
    hold = rows.acquire_lease("telegram:old", mode="poll", token_hash="old", holder="gw", lease_s=60)
    with store.database.write() as connection:
        gone = {"looked_at": 1, "lease_until": 2}
        connection.execute(sa.update(channels).where(channels.c.account == "telegram:old").values(**gone))
    family = served(build_registry(settings, "api", {}, store.database))["hermes_gateway_accounts"]
    said = {sample.labels["state"]: sample.value for sample in family.samples}
    assert said == {"listening": 2, "failing": 1, "unheld": 1}


def test_what_callers_choose_becomes_no_label(store: Store, settings: Settings) -> None:
    store.submit(model="made up by a caller")
    text = generate_latest(build_registry(settings, "api", {}, store.database)).decode()
    _live(store)
    later = served(build_registry(settings, "api", {}, store.database))

    assert "made up" not in text
    assert 'hermes_iterations_total{model="other"} 0.0' in text
    delivered = {sample.labels["platform"] for sample in later["hermes_deliveries"].samples if sample.value}
    assert delivered == {"other"}
    assert "run_" not in generate_latest(build_registry(settings, "api", {}, store.database)).decode()


def test_a_database_that_is_away_is_said_and_nothing_else(settings: Settings, tmp_path: Path) -> None:
    from hermes_worker.store.engine.database import Database

    away = Database(f"sqlite:///{tmp_path / 'none' / 'store.db'}")
    (readable,) = FleetCollector(away, LabelValues(settings)).collect()

    assert [(sample.name, sample.value) for sample in readable.samples] == [("hermes_fleet_readable", 0.0)]


def test_rows_are_read_once_however_many_ask(store: Store, settings: Settings) -> None:
    collector = FleetCollector(store.database, LabelValues(settings))
    first = list(collector.collect())
    store.submit()
    assert list(collector.collect()) == first


# --- serving ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _not_served_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_served_by", None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.usefixtures("_not_served_yet")
def test_a_process_serves_what_it_counted_once(settings: Settings) -> None:
    port = free_port()
    settings = replace(settings, metrics=MetricsSettings(port=port))
    count("hint.sent", 7)
    serve_metrics(settings, "worker", {})
    serve_metrics(settings, "worker", {})

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'hermes_process_events_total{event="hint.sent",kind=""} 7.0' in text
    assert "hermes_fleet_readable" not in text


@pytest.mark.usefixtures("_not_served_yet")
def test_a_port_that_is_taken_stops_nothing(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        serve_metrics(replace(settings, metrics=MetricsSettings(port=other.getsockname()[1])), "worker", {})

    assert "metrics.not_served" in capsys.readouterr().err


@pytest.mark.usefixtures("_not_served_yet")
def test_without_a_port_nobody_listens(settings: Settings) -> None:
    serve_metrics(settings, "worker", {})
    assert serving._served_by is None


# --- the catalogue of what is counted --------------------------------------------------------------------------------


def _used(function: str) -> set[str]:
    """The first arguments of all calls of ``function`` in the sources; of kinds, what stands before them."""
    found = set()
    for folder in ("hermes_worker", "scheduler"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if f"{function}(" not in text or "hermes_worker.observe" not in text:
                continue
            tree = ast.parse(text)
            imported = {
                alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module == "hermes_worker.observe"
                for alias in node.names
            }
            if function in imported:
                found |= {_name(node.args[0]) for node in ast.walk(tree) if _calls(node, function)}  # type: ignore[attr-defined]
    return found - {""}


def _calls(node: ast.AST, function: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function


def _name(argument: ast.expr) -> str:
    match argument:
        case ast.Constant(value=str(name)):
            return name
        case ast.JoinedStr(values=[ast.Constant(value=str(head)), *_]):
            return head.removesuffix(".")
    return ""


def test_exactly_what_the_sources_count_is_counted() -> None:
    # Counted where a step is written.
    refused = {"iteration.refused", "tool_call.refused", "auxiliary.refused", "prompt.refused"}
    assert _used("count") | refused == set(COUNTED)
    assert _used("record_duration") == set(TIMED)
