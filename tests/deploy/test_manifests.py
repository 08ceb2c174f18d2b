"""What the manifests of Kubernetes promise, read from the files themselves."""

from __future__ import annotations

import json
from math import ceil
from typing import Any

import pytest
from support.commandline import find_command
from support.manifests import (
    CHART,
    SCHEMAS,
    Manifest,
    containers,
    documents,
    environment,
    load_yaml,
    name_of,
    our_pods,
    pods,
    written,
)

from hermes_worker.api.server import GRACE_S
from hermes_worker.settings import describe_settings, load_settings
from hermes_worker.settings.role_secrets import SECRET_SETTINGS, ProcessRole, find_owners
from hermes_worker.settings.secret_files import DIRECTORIES
from hermes_worker.store.backlog import STEP_S_MIN
from hermes_worker.worker.lifecycle import compute_leave_s

MARGIN_S = 10
"""Between the longest that a worker takes to leave and the end of its pod."""
ROLES = our_pods()
LONG_RUNNING = {name: found for name, found in ROLES.items() if found[0]["kind"] == "Deployment"}
WORKERS = {name: found for name, found in LONG_RUNNING.items() if name.startswith("hermes-worker-")}


def main_of(pod: Manifest) -> Manifest:
    [container] = pod["containers"]
    return container


def settings_of(container: Manifest, tmp_path: Any) -> Any:
    """What the container would read; secrets stand in files that are not here."""
    given = {name: value for name, value in environment(container).items() if not name.endswith("_FILE")}
    return load_settings({**given, "HERMES_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin"})


def test_the_roles_are_there() -> None:
    others = ("api", "beat", "browser", "flower", "gateway", "mcp-host", "migrate")
    assert set(ROLES) == {f"hermes-{role}" for role in others} | set(WORKERS)
    assert set(WORKERS) == {f"hermes-worker-{role}" for role in ("model", "tools", "delivery")}


# --- what runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROLES)
def test_every_container_runs_a_command_that_there_is(name: str) -> None:
    for container in containers(ROLES[name][1]):
        command, words = find_command(container["args"])
        command.make_context(container["name"], words)


@pytest.mark.parametrize("name", ROLES)
def test_every_variable_is_a_setting_of_the_product(name: str, tmp_path: Any) -> None:
    known = {row.variable for row in describe_settings()}
    for container in containers(ROLES[name][1]):
        assert settings_of(container, tmp_path).notes == (), "every value is one that its setting takes"
        given = environment(container)
        assert {key.removesuffix("_FILE") for key in given} - known - {DIRECTORIES} == set()
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {value.rpartition("/")[0] for key, value in given.items() if key.endswith("_FILE")} <= mounted
        assert set(filter(None, given.get(DIRECTORIES, "").split(":"))) <= mounted


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_nothing_starts_before_the_schema_is_there(name: str) -> None:
    if name == "hermes-flower":
        return  # it looks at the broker only
    [gate] = LONG_RUNNING[name][1]["initContainers"]
    assert gate["args"][:3] == ["data", "migrate", "--check"]


# --- leaving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_given_the_time_that_its_drain_takes(name: str, tmp_path: Any) -> None:
    _, pod = WORKERS[name]
    lease = settings_of(main_of(pod), tmp_path).lease
    assert pod["terminationGracePeriodSeconds"] == ceil(compute_leave_s(lease)) + MARGIN_S
    assert "lifecycle" not in main_of(pod), "it drains by itself from SIGTERM on"


def test_the_api_is_given_the_time_to_be_left_by_its_callers(tmp_path: Any) -> None:
    _, pod = ROLES["hermes-api"]
    api = main_of(pod)
    waits = api["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = settings_of(api, tmp_path).server.drain_s
    assert pod["terminationGracePeriodSeconds"] == waits + drain_s + GRACE_S + 5
    readiness = api["readinessProbe"]
    assert readiness["httpGet"]["path"] == "/health/ready"
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < drain_s, "seen before the sockets close"


def test_a_scheduler_is_given_more_than_it_takes_to_notice_its_end() -> None:
    assert ROLES["hermes-beat"][1]["terminationGracePeriodSeconds"] >= 10


# --- probes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*WORKERS, "hermes-beat", "hermes-browser", "hermes-gateway", "hermes-mcp-host"])
def test_liveness_is_the_age_of_the_file_that_the_role_touches(name: str) -> None:
    container = main_of(ROLES[name][1])
    alive = container["args"][container["args"].index("--alive-file") + 1]
    assert alive in container["livenessProbe"]["exec"]["command"][-1]
    assert alive.rpartition("/")[0] in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert "startupProbe" in container, "it is not asked before it has begun"


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_ready_while_its_ready_file_is_there(name: str) -> None:
    container = main_of(ROLES[name][1])
    ready = container["args"][container["args"].index("--ready-file") + 1]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"] == ["test", "-f", ready]


def test_no_probe_asks_the_database() -> None:
    """Or a database that is away would have every pod restarted."""
    for name, (_, pod) in LONG_RUNNING.items():
        for container in pod["containers"]:
            probed = container.get("livenessProbe", {}).get("httpGet", {}).get("path", "/health")
            assert probed == "/health", name


# --- rights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, _, _ in pods()])
def test_every_pod_is_restricted(name: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, level "restricted"."""
    [pod] = [spec for found, _, spec in pods() if found == name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    for volume in pod["volumes"]:
        assert {*volume} - {"name"} <= {"emptyDir", "persistentVolumeClaim", "projected", "configMap", "secret"}, volume
    for container in containers(pod):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "hostPort" not in str(container.get("ports", ()))
        assert {"cpu", "memory"} == container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", ROLES)
def test_our_image_runs_as_its_own_user_under_an_account_of_its_own(name: str) -> None:
    manifest, pod = ROLES[name]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
    [account] = [each for _, each in written() if name_of(each) == ("ServiceAccount", pod["serviceAccountName"])]
    assert account["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == manifest["metadata"]["name"]


def secrets_of(pod: Manifest) -> set[str]:
    projected = [
        source["secret"]["name"] for v in pod["volumes"] for source in v.get("projected", {}).get("sources", ())
    ]
    mounted = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert "secretRef" not in str(pod), "no secret is in an environment"
    return {each.removeprefix("hermes-") for each in (*projected, *mounted)}


PROCESS_ROLES = {
    "hermes-api": ProcessRole.API,
    "hermes-beat": ProcessRole.BEAT,
    "hermes-browser": ProcessRole.BROWSER,
    "hermes-gateway": ProcessRole.GATEWAY,
    "hermes-mcp-host": ProcessRole.MCP,
    "hermes-migrate": ProcessRole.SYSTEM,
    "hermes-worker-delivery": ProcessRole.DELIVERY,
    "hermes-worker-model": ProcessRole.MODEL,
    "hermes-worker-tools": ProcessRole.TOOLS,
}
SECRETS: dict[str, list[str]] = {}
"""The variables of each secret, as the chart knows them (k8s/render.py makes the file of the product's table)."""
for variable, secret in load_yaml(CHART / "files" / "settings.yaml")["secrets"].items():
    SECRETS.setdefault(secret, []).append(variable)


def test_each_role_gets_the_secrets_that_it_needs() -> None:
    assert {name: secrets_of(pod) for name, (_, pod) in ROLES.items()} == {
        "hermes-api": {"state", "encryption", "server", "webhooks", "objects"},
        "hermes-beat": {"state", "encryption"},
        "hermes-browser": {"state", "encryption"},
        "hermes-flower": {"state", "flower"},
        "hermes-gateway": {"state", "encryption", "gateway"},
        "hermes-mcp-host": {"state", "encryption", "mcp"},
        "hermes-migrate": {"state", "encryption"},
        "hermes-worker-delivery": {"state", "encryption", "channels", "objects"},
        "hermes-worker-model": {"state", "encryption", "models", "providers"},
        "hermes-worker-tools": {"state", "encryption", "tools", "objects"},
    }


@pytest.mark.parametrize("name", PROCESS_ROLES)
def test_the_secrets_of_a_role_are_those_of_the_table_of_roles(name: str) -> None:
    """``settings.role_secrets`` says who gets what; what a platform is known by is in its rows."""
    role, held = PROCESS_ROLES[name], secrets_of(ROLES[name][1])
    given = {variable for secret in held for variable in SECRETS.get(secret, ())}
    wanted = {row.variables[0] for row in SECRET_SETTINGS if role in row.roles}
    unneeded = {"HERMES_OBJECT_STORAGE_SECRET_KEY"} if name == "hermes-migrate" else set()  # it opens no files
    assert wanted - given == unneeded
    of_others = {variable for variable in given if role not in (find_owners(variable, "x") or ())}
    assert of_others <= {variable for secret in held & {"webhooks", "gateway"} for variable in SECRETS[secret]}


def test_each_secret_of_a_role_is_a_directory_or_a_file_that_it_is_told_of() -> None:
    for name, (_, pod) in ROLES.items():
        for container in containers(pod):
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            directories = environment(container).get(DIRECTORIES, "").split(":")
            optional = [volume["name"] for volume in pod["volumes"] if "secret" in volume]
            assert {mounts[each] for each in optional} == set(filter(None, directories)), name


def test_only_tools_workers_write_to_the_shared_volume() -> None:
    found = {
        name: volume
        for name, (_, pod) in ROLES.items()
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert set(found) == {"hermes-worker-tools", "hermes-worker-delivery"}
    assert found["hermes-worker-delivery"]["persistentVolumeClaim"]["readOnly"] is True
    mounts = [each for each in main_of(ROLES["hermes-worker-delivery"][1])["volumeMounts"] if each["name"] == "shared"]
    assert [(each["subPath"], each["readOnly"]) for each in mounts] == [("workspaces", True), ("tenants", True)]
    # What is removed there is removed by the queue of maintenance.
    assert "tools,system" in main_of(ROLES["hermes-worker-tools"][1])["args"]


def test_a_lane_ends_before_its_container_does(tmp_path: Any) -> None:
    """docs/deployment.md, "Steps that take down their worker"."""
    for name, (_, pod) in WORKERS.items():
        container = main_of(pod)
        limit = container["resources"]["limits"]["memory"]
        megabytes = int(limit[:-2]) * {"Mi": 1, "Gi": 1024}[limit[-2:]]
        assert settings_of(container, tmp_path).lease.lane_memory_mb < megabytes / 2, name


# --- how many --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in LONG_RUNNING if name != "hermes-flower"])
def test_an_eviction_leaves_some_pods_and_is_possible(name: str) -> None:
    [budget] = [each for _, each in written() if name_of(each) == ("PodDisruptionBudget", name)]
    replicas = LONG_RUNNING[name][0]["spec"]["replicas"]
    assert replicas >= (1 if name in ("hermes-browser", "hermes-mcp-host") else 2)
    assert budget["spec"]["selector"] == LONG_RUNNING[name][0]["spec"]["selector"]
    if "minAvailable" in budget["spec"]:
        assert budget["spec"]["minAvailable"] < replicas
    else:
        allowed = budget["spec"]["maxUnavailable"]
        assert allowed == 1 or allowed.endswith("%")


@pytest.mark.parametrize("name", [name for name in LONG_RUNNING if name != "hermes-flower"])
def test_pods_of_a_role_are_spread_and_have_a_priority(name: str) -> None:
    manifest, pod = LONG_RUNNING[name]
    spread = pod["topologySpreadConstraints"]
    assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert all(each["labelSelector"] == manifest["spec"]["selector"] for each in spread)
    classes = {each["metadata"]["name"] for _, each in written() if each["kind"] == "PriorityClass"}
    assert pod["priorityClassName"] in classes


def scalers() -> list[tuple[str, Manifest]]:
    return [(place, each) for place, each in written() if each["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")]


def targets(scaler: Manifest) -> list[float]:
    """What a pod is asked to take, of the steps of its queue and of suspects."""
    if scaler["kind"] == "HorizontalPodAutoscaler":
        return [float(each["external"]["target"]["averageValue"]) for each in scaler["spec"]["metrics"]]
    found = [trigger["metadata"] for trigger in scaler["spec"]["triggers"]]
    return [float(each.get("targetQueryValue") or each["targetValue"]) for each in found]


def test_every_kind_of_worker_is_scaled_by_every_source() -> None:
    assert len(scalers()) == 9
    for place, scaler in scalers():
        container = main_of(ROLES[scaler["metadata"]["name"]][1])
        places = int(container["args"][container["args"].index("--concurrency") + 1])
        of_queue, of_suspects = targets(scaler)
        # An autoscaler lets a difference of a tenth be.
        assert of_queue * 1.1 <= places, place
        assert of_suspects == 1.0
        queue = scaler["metadata"]["name"].removeprefix("hermes-worker-")
        said = [word for word in STEP_S_MIN if f"'{word}'" in str(scaler) or f".{word}." in str(scaler)]
        if scaler["kind"] == "HorizontalPodAutoscaler":
            said = [
                each["external"]["metric"]["selector"]["matchLabels"]["queue"] for each in scaler["spec"]["metrics"]
            ]
        assert sorted(said) == sorted([queue, f"suspect_{queue}"]), place


def test_a_source_that_does_not_answer_never_means_zero() -> None:
    for place, scaler in scalers():
        if scaler["kind"] == "ScaledObject":
            assert scaler["spec"]["minReplicaCount"] >= 1, place
            fallback = scaler["spec"]["fallback"]
            assert fallback["behavior"] == "currentReplicasIfHigher", place
            assert fallback["replicas"] >= scaler["spec"]["minReplicaCount"], place
            # KEDA falls back for this type of metric only.
            assert {trigger["metricType"] for trigger in scaler["spec"]["triggers"]} == {"AverageValue"}, place
        else:
            assert scaler["spec"]["minReplicas"] >= 1, place


# --- networks --------------------------------------------------------------------------------------------------------


def policies() -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each["spec"] for _, each in written() if each["kind"] == "NetworkPolicy"}


def test_nothing_is_allowed_that_no_policy_names() -> None:
    nothing = policies()["hermes-nothing"]
    assert nothing["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & nothing.keys()
    of_all = {"app.kubernetes.io/name": "hermes-worker", "app.kubernetes.io/instance": "hermes"}
    assert nothing["podSelector"]["matchLabels"] == of_all


def test_the_api_alone_takes_requests_and_metrics_are_for_monitoring() -> None:
    ingress = {name: spec for name, spec in policies().items() if spec.get("ingress")}
    hosts = {name: ingress.pop(name) for name in ("hermes-browser-in", "hermes-mcp-host-in")}
    assert set(ingress) == {"hermes-api", "hermes-metrics", "hermes-scaler"}
    for name, spec in hosts.items():
        [peer] = spec["ingress"][0]["from"]
        assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "worker-tools", name
    for name, spec in ingress.items():
        [port] = spec["ingress"][0]["ports"]
        assert port["port"] == (9464 if name == "hermes-metrics" else 8642)
        assert all("namespaceSelector" in peer for peer in spec["ingress"][0]["from"])


def test_workers_and_gateways_reach_the_outside_and_nothing_inside() -> None:
    workers = {"worker-model": {443}, "worker-tools": {80, 443}, "worker-delivery": {443, 465, 587}}
    ports = {**workers, "gateway": {443, 993, 6697}, "browser": {80, 443}, "mcp-host": {80, 443}}
    outside = {name: spec for name, spec in policies().items() if "0.0.0.0/0" in str(spec.get("egress"))}
    assert set(outside) == {*WORKERS, "hermes-browser", "hermes-gateway", "hermes-mcp-host"}
    for role, allowed in ports.items():
        [rule] = outside[f"hermes-{role}"]["egress"]
        assert {port["port"] for port in rule["ports"]} == allowed
        four, six = (peer["ipBlock"] for peer in rule["to"])
        assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"} <= set(four["except"])
        assert {"fc00::/7", "fe80::/10"} == set(six["except"])


def test_the_files_hold_nothing_that_is_no_object() -> None:
    assert len(written()) > 40
    assert documents("---\n---\n") == []


def test_each_resource_of_an_operator_has_a_schema_and_nothing_brings_a_rule_in_cel() -> None:
    """Nothing here evaluates CEL, as docs/kubernetes.md says."""
    kinds = {(each["apiVersion"].partition("/")[0], each["kind"]) for _, each in written()}
    ours = {kind for group, kind in kinds if "." in group and not group.endswith(".k8s.io")}
    assert ours == set(json.loads(SCHEMAS.read_text(encoding="utf-8"))["kinds"])
    with_rules = {"admissionregistration.k8s.io", "apiextensions.k8s.io"}
    assert not with_rules & {group for group, _ in kinds}
