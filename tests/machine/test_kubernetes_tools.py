"""The manifests of Kubernetes under the real kustomize, Helm and validators.

The tools unpack to over 400 MB, so they are an extra, ``deploy-test``. There is no control plane to apply the
manifests to (docs/kubernetes.md says what was not run).
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.first_hour import Hour
from support.manifests import (
    CHART,
    K8S,
    OVERLAYS,
    Manifest,
    by_helm,
    by_kustomize,
    changed,
    fields,
    kubectl,
    name_of,
    problems,
)

from hermes_worker.cli.init_files import ChosenModel, ClusterPlan, build_overlay
from hermes_worker.cli.init_gateway import build_account

VERSIONS = ("1.34", "1.35", "1.36", "1.37")
MISSING = [name for name in ("helm_python", "kubernetes_validate") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(
        bool(MISSING) or not Path(kubectl()).exists(), reason="needs pip install -e '.[deploy-test]' (over 400 MB)"
    ),
]
MUTANTS = 100
FOUND_MIN = 98


def values(name: str) -> dict[str, Any]:
    found = yaml.safe_load((CHART / f"values-{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def plain(objects: dict[tuple[str, str], Manifest]) -> dict[tuple[str, str], Manifest]:
    """What kustomize has of what Helm renders: no hook, no label of Helm, no checksum."""
    helms = ("app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart")
    found = {}
    for name, manifest in objects.items():
        if "helm.sh/hook" in manifest["metadata"].get("annotations", {}):
            continue
        for label in helms:
            manifest["metadata"].get("labels", {}).pop(label, None)
        if name[0] == "Deployment":
            manifest["spec"]["template"]["metadata"].pop("annotations", None)
        found[name] = manifest
    return found


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[tuple[str, str], Manifest]]:
    """Everything that kustomize makes: the overlays, and the base with each component that none of them has."""
    found = {name: by_kustomize(K8S / "overlays" / name) for name in OVERLAYS}
    copy = tmp_path_factory.mktemp("k8s") / "k8s"
    shutil.copytree(K8S, copy)
    for component in sorted(path.name for path in (K8S / "components").iterdir()):
        overlay = copy / "overlays" / f"with-{component}"
        overlay.mkdir()
        text = f"resources: [../../base]\nnamespace: hermes\ncomponents: [../../components/{component}]\n"
        (overlay / "kustomization.yaml").write_text(text, encoding="utf-8")
        found[component] = by_kustomize(overlay)
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_helm_renders_the_objects_of_the_overlay(
    variants: dict[str, dict[tuple[str, str], Manifest]], overlay: str
) -> None:
    assert plain(by_helm(values(overlay))) == variants[overlay]


@pytest.mark.parametrize(
    ("component", "more"),
    [
        ("keda-metrics-api", {"scaling": {"source": "metrics-api"}}),
        ("hpa-prometheus", {"scaling": {"source": "prometheus"}}),
        ("flower", {"flower": {"enabled": True}}),
        ("gateway", {"gateway": {"enabled": True}}),
        ("browser", {"browser": {"enabled": True}}),
        ("mcp-host", {"mcpHost": {"enabled": True}}),
    ],
)
def test_helm_renders_the_objects_of_the_component(
    variants: dict[str, dict[tuple[str, str], Manifest]], component: str, more: dict[str, Any]
) -> None:
    usual = {"namespace": {"create": True}, "migrate": {"jobName": "migrate"}}
    assert plain(by_helm(usual | more)) == variants[component]


def test_the_files_of_kustomize_are_what_the_chart_renders() -> None:
    done = subprocess.run([sys.executable, K8S / "render.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), f"run k8s/render.py\n{done.stderr}"


def test_helm_finds_nothing_to_complain_of() -> None:
    import helm_python

    found = helm_python.lint(str(CHART))
    assert found["errors"] == []
    assert [message["error"] for message in found["messages"]] == ["icon is recommended"]


def test_the_grace_period_of_the_chart_follows_the_drain() -> None:
    drained = {"workers": {"tools": {"drainSeconds": 100, "drainOnceSeconds": 50}}}
    pod = by_helm(drained)["Deployment", "hermes-worker-tools"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 100 + 50 + 21


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_strictly_valid(variants: dict[str, dict[tuple[str, str], Manifest]], version: str) -> None:
    seen: list[Manifest] = []
    for objects in variants.values():
        for manifest in objects.values():
            if manifest not in seen:
                seen.append(manifest)
                assert problems(manifest, version) == [], name_of(manifest)
    assert len(seen) > 60


def test_the_first_hour_with_helm() -> None:
    """As docs/kubernetes.md has it, with mistakes of the kind that people made."""
    import helm_python

    hour = Hour()

    def install(values_file: str, *, expected: str, succeeds: bool = True, **more: Any) -> None:
        def play() -> tuple[bool, str]:
            try:
                return True, "\n".join(chart.render({**values(values_file), **more}, name="hermes").values())
            except helm_python.HelmRenderError as refused:
                return False, str(refused)

        given = f" with {more}" if more else ""
        hour.try_step(
            f"helm install hermes, values-{values_file}.yaml{given}", play, expected=expected, succeeds=succeeds
        )

    chart = helm_python.Chart.load(str(CHART))
    install("dev", expected="Pods wait for the job of the migration, and for these secrets:.*")
    install("production", expected="kubectl --namespace .* get pods --watch")
    install("production", worker={}, expected="worker is no value.*mean workers\\?", succeeds=False)
    key = {"HERMES_API_KEY": "sk-1", "HERMES_MODL": "m"}
    install("production", settings=key, expected="settings.HERMES_API_KEY is a secret.*", succeeds=False)
    install(
        "production",
        settings=key,
        expected="settings.HERMES_MODL is no setting; did you mean HERMES_MODEL?",
        succeeds=False,
    )
    install("production", scaling={"source": "kedda"}, expected='scaling.source is "kedda"; it must.*', succeeds=False)
    install("production", settings={"HERMES_MODEL": "gpt-5.4"}, expected='HERMES_MODEL: "?gpt-5.4.*')
    print(hour)


# --- can the validators find anything? -------------------------------------------------------------------------------

FREE = {"labels", "matchLabels", "annotations", "data"}
"""Maps whose keys people choose: no key of theirs is misspelt."""
EITHER = {"maxSurge", "maxUnavailable", "minAvailable", "port", "targetPort"}
"""A number or a text."""


def sites(variants: dict[str, dict[tuple[str, str], Manifest]]) -> Iterator[tuple[Manifest, tuple[Any, ...], Any]]:
    """Every field of every object that a schema names."""
    known: list[Manifest] = []
    for objects in variants.values():
        for manifest in objects.values():
            if manifest in known:
                continue
            known.append(manifest)
            for path, value in fields(manifest):
                if isinstance(path[-1], str) and not FREE & set(path[:-1]):
                    yield manifest, path, value


def misspelt(name: str, chance: random.Random) -> str:
    """With two letters exchanged, one left out or one doubled."""
    at = chance.randrange(len(name) - 1)
    swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    made = chance.choice([swapped, name[:at] + name[at + 1 :], name[: at + 1] + name[at:]])
    return made if made != name else name[:at] + name[at + 1 :]


def mistyped(path: tuple[Any, ...], value: Any) -> Any:
    """What somebody writes who has another type in mind."""
    match value:
        case bool():
            return "yes"
        case int() if path[-1] not in EITHER:
            return "many"
        case str() if "resources" in path or path[-1] in ("sizeLimit", "averageValue"):
            return "12Xi"
        case str() if path[-1] not in EITHER:
            return 12
        case list():
            return {"item": value[0]} if value else {}
        case dict():
            return [deepcopy(value)]
        case _:
            return [value]


def mutants(variants: dict[str, dict[tuple[str, str], Manifest]]) -> Iterator[tuple[Manifest, str]]:
    """Documents with one mistake each, and what it is."""
    chance = random.Random(16)
    for manifest, path, value in chance.sample(list(sites(variants)), MUTANTS):
        where = f"{'/'.join(name_of(manifest))}: {'.'.join(map(str, path))}"
        if chance.random() < 0.5:
            name = misspelt(path[-1], chance)
            yield changed(manifest, path, name=name), f"{where} written {name}"
        else:
            wrong = mistyped(path, value)
            yield changed(manifest, path, value=wrong), f"{where} = {wrong!r}"


def test_one_misspelt_or_mistyped_field_is_found(
    variants: dict[str, dict[tuple[str, str], Manifest]], capsys: pytest.CaptureFixture[str]
) -> None:
    made = list(mutants(variants))
    missed = [what for manifest, what in made if not problems(manifest, "1.37")]
    with capsys.disabled():
        print(f"\n{len(made) - len(missed)} of {len(made)} mistakes in manifests found; missed: {missed}")
    assert len(made) == MUTANTS
    assert len(made) - len(missed) >= FOUND_MIN, missed


def test_what_init_writes_is_rendered_and_taken_by_a_strict_server(tmp_path: Path) -> None:
    (tmp_path / "k8s").mkdir()
    for part in ("base", "components"):
        shutil.copytree(K8S / part, tmp_path / "k8s" / part)
    directory = tmp_path / "k8s" / "overlays" / "mine"
    plan = ClusterPlan(
        directory=directory,
        database_url="postgresql://h:p@db/hermes",
        broker_url="rediss://:p@broker:6379/0",
        image="registry.example.com:5000/team/hermes-worker:1.2",
        accounts=[
            build_account("telegram", {"TELEGRAM_BOT_TOKEN": "123456:ABC"}),
            build_account("line", {"LINE_CHANNEL_SECRET": "s", "LINE_CHANNEL_ACCESS_TOKEN": "t"}),
        ],
    )
    for file in build_overlay(plan, ChosenModel(provider="openai", name="gpt-x", api_key="sk-x")):
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(file.text, encoding="utf-8")
    found = by_kustomize(directory)
    assert [problem for each in found.values() for problem in problems(each, VERSIONS[-1])] == []
    data = found["ConfigMap", "hermes-settings"]["data"]
    assert (data["HERMES_PROVIDER"], data["HERMES_MODEL"], "HERMES_BASE_URL" in data) == ("openai", "gpt-x", False)
    secrets = {name: set(each["data"]) for (kind, name), each in found.items() if kind == "Secret"}
    assert secrets == {
        "hermes-state": {"database-url", "broker-url"},
        "hermes-server": {"server-key"},
        "hermes-models": {"api-key"},
        "hermes-gateway": {"TELEGRAM_BOT_TOKEN"},
        "hermes-webhooks": {"LINE_CHANNEL_SECRET"},
        "hermes-channels": {"TELEGRAM_BOT_TOKEN", "LINE_CHANNEL_ACCESS_TOKEN"},
    }
    for name in ("hermes-gateway", "hermes-api", "hermes-worker-delivery"):
        volumes = found["Deployment", name]["spec"]["template"]["spec"]["volumes"]
        named = {each["secret"]["secretName"] for each in volumes if "secret" in each}
        assert len(named & set(secrets)) == 1 and {"hermes-encryption"} <= named - set(secrets)
        assert named - set(secrets) <= {"hermes-encryption", "hermes-objects"}
    [gateway] = found["Deployment", "hermes-gateway"]["spec"]["template"]["spec"]["containers"]
    assert gateway["image"] == plan.image
    [api] = found["Deployment", "hermes-api"]["spec"]["template"]["spec"]["containers"]
    assert api["image"] == plan.image
