"""k8s/check.sh, which no machine of ours can play: what it expects, compared with what the chart renders."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from support.manifests import CHART, K8S, Manifest, by_helm, load_yaml

SCRIPT = K8S / "check.sh"
TEXT = SCRIPT.read_text(encoding="utf-8").replace("\\\n", " ")
IMAGE = {"${image%:*}": "hermes-worker", "${image##*:}": "0.2.0"}
"""What bash makes of the usual image."""
pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(importlib.util.find_spec("helm_python") is None, reason="needs pip install -e '.[deploy-test]'"),
]


def read_installs() -> list[tuple[str, dict[str, Any]]]:
    """The release and the values of each ``install RELEASE --set ...``, in order."""
    always = re.search(r'--values "\$chart/values-dev\.yaml" (.*?) --wait', TEXT)
    assert always is not None
    return [
        (words[words.index("install") + 1], set_values([*shlex.split(always[1]), *words]))
        for words in map(shlex.split, re.findall(r"^(?:said )?install (?:hermes|second).*$", TEXT, re.MULTILINE))
    ]


def set_values(words: list[str]) -> dict[str, Any]:
    """The values of values-dev.yaml with each ``--set PATH=VALUE`` of ``words``, as Helm reads it."""
    values: dict[str, Any] = load_yaml(CHART / "values-dev.yaml")
    for option, word in pairwise(words):
        if option == "--set":
            path, _, value = word.partition("=")
            *above, last = path.split(".")
            place = values
            for name in above:
                place = place.setdefault(name, {})
            value = IMAGE.get(value, value)
            place[last] = {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value)
    return values


@cache
def render(number: int) -> dict[str, Manifest]:
    """What the install of this number makes, by ``Kind/name``."""
    release, values = read_installs()[number]
    return {"/".join(name): manifest for name, manifest in by_helm(values, release=release).items()}


def expected(what: str) -> str:
    """The pattern that the script expects where it says ``what``."""
    found = re.search(rf'^expect "{re.escape(what)}" "(.*)"$', TEXT, re.MULTILINE)
    assert found is not None, what
    return found[1]


def test_the_script_is_one_that_bash_takes() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert [release for release, _ in read_installs()] == [*["hermes"] * 5, "second"]


@pytest.mark.parametrize(
    ("number", "what"), [(0, "the name that is not known, and the nearest"), (1, "a secret under settings")]
)
def test_a_mistake_is_refused_with_the_sentence_that_is_expected(number: int, what: str) -> None:
    import helm_python

    with pytest.raises(helm_python.HelmRenderError) as refused:
        render(number)
    assert re.search(expected(what), str(refused.value)), refused.value


def list_claims(objects: dict[str, Manifest]) -> list[str]:
    """A line for each pod: its component, and the names of its volumes that are claims, as the script prints them."""
    pods = [each["spec"]["template"] for each in objects.values() if each["kind"] in ("Deployment", "Job")]
    return [
        f"{pod['metadata']['labels']['app.kubernetes.io/component']}="
        + " ".join(volume["name"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume)
        for pod in pods
    ]


@pytest.mark.parametrize("what", ["no volume for the API", "the volume for tools workers"])
def test_the_volumes_are_those_that_are_expected(what: str) -> None:
    assert re.search(expected(what), "\n".join(list_claims(render(2))), re.MULTILINE)


@pytest.mark.parametrize("number", [2, 4])
def test_the_job_of_the_migration_has_a_name_that_is_expected(number: int) -> None:
    [job] = [name for name in render(number) if name.startswith("Job/")]
    assert re.search(expected("two jobs, or the second alone"), job)


def test_another_registry_gives_the_job_another_name_and_a_setting_the_pods_another_template() -> None:
    jobs = [name for number in (2, 4) for name in render(number) if name.startswith("Job/")]
    assert len({*jobs}) == 2
    before, after = (render(number)["Deployment/hermes-api"]["spec"]["template"] for number in (2, 3))
    assert before != after


@pytest.mark.parametrize(("number", "what"), [(2, "the first"), (5, "the second")])
def test_the_deployments_have_the_names_that_are_expected(number: int, what: str) -> None:
    names = [name.removeprefix("Deployment/") for name in render(number) if name.startswith("Deployment/")]
    assert any(re.search(expected(what), f"{name} 1/1") for name in names), names
