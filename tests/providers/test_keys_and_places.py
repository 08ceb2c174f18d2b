"""From settings to the keys that each provider of the chain is asked with."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from support.fault_server import FaultServer, Received, Reply, say_hello

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.logins import Grant, Login
from hermes_worker.core.messages import ModelRequest, build_user_body
from hermes_worker.models.base import Abort
from hermes_worker.models.build import build_auxiliary_chains, build_chain, find_endpoint, list_logins
from hermes_worker.models.catalog import list_provider_rows, list_wire_rows
from hermes_worker.models.chain import ProviderChain
from hermes_worker.models.identity import identify_endpoint
from hermes_worker.settings import load_settings, render_environ
from hermes_worker.tasks.build import build_tenant_models


def chain(home: Path, **environ: str) -> ProviderChain:
    return build_chain(load_settings({"HERMES_MODEL": "m", **environ}, home=home))


def keys(chain: ProviderChain, position: int = 0) -> list[str]:
    names = chain.list_credentials("", position) or [""]
    return [chain.resolve_route("", position, name).provider.endpoint.api_key for name in names]


def vendors() -> list[tuple[str, str]]:
    rows = [
        row
        for row in list_provider_rows().values()
        if row.base_url and (row.wire is None or row.wire in list_wire_rows())
    ]
    return [(row.name, name) for row in rows for name in row.key_variables]


@pytest.mark.parametrize(("provider", "variable"), vendors())
def test_every_provider_of_the_catalogue_is_reached_with_its_own_variable(
    tmp_path: Path, provider: str, variable: str
) -> None:
    settings = load_settings({"HERMES_PROVIDER": provider, variable: "sk-vendor"}, home=tmp_path)
    assert find_endpoint(settings).api_key == "sk-vendor"


def test_numbered_variables_and_more_keys_make_a_pool(tmp_path: Path) -> None:
    made = chain(
        tmp_path, OPENAI_API_KEY="k1", OPENAI_API_KEY_2="k2", OPENAI_API_KEY_10="k10", HERMES_MORE_API_KEYS="x,k2"
    )
    assert made.has_pools
    assert keys(made) == ["k1", "k2", "k10", "x"]


def test_one_key_makes_no_pool(tmp_path: Path) -> None:
    made = chain(tmp_path, OPENAI_API_KEY="k1")
    assert (made.has_pools, made.list_credentials("", 0), keys(made)) == (False, (), ["k1"])


def test_a_key_of_our_own_variable_stands_in_for_the_vendors(tmp_path: Path) -> None:
    made = chain(tmp_path, HERMES_PROVIDER="openai", HERMES_API_KEY="mine", OPENAI_API_KEY="k1", OPENAI_API_KEY_2="k2")
    assert keys(made) == ["mine"]


def test_a_vendors_keys_are_never_sent_to_another_address(tmp_path: Path) -> None:
    made = chain(tmp_path, HERMES_BASE_URL="http://gateway.test/v1", OPENAI_API_KEY="k1", OPENAI_API_KEY_2="k2")
    assert keys(made) == [""]


def test_providers_to_fall_back_on_have_pools_of_their_own(tmp_path: Path) -> None:
    made = chain(
        tmp_path,
        OPENAI_API_KEY="k1",
        HERMES_FALLBACK_PROVIDERS="groq:llama",
        GROQ_API_KEY="g1",
        GROQ_API_KEY_1="g2",
    )
    assert (keys(made, 0), keys(made, 1)) == (["k1"], ["g1", "g2"])


@pytest.mark.parametrize("task", AuxTask)
def test_each_call_beside_the_conversation_may_have_providers_of_its_own(tmp_path: Path, task: AuxTask) -> None:
    providers = {f"HERMES_{task.name}_PROVIDERS": "groq:tiny,openai:small,zai:none"}
    held = {"GROQ_API_KEY": "g1", "OPENAI_API_KEY": "k1"}
    aside = build_auxiliary_chains(load_settings({"HERMES_MODEL": "m", **held, **providers}, home=tmp_path))
    own = aside[task]
    routes = [own.resolve_route("", position) for position in range(len(own))]
    assert [(route.name, route.model) for route in routes] == [("groq", "tiny"), ("openai", "small")]
    assert set(aside) == {task}
    assert build_auxiliary_chains(load_settings({"HERMES_MODEL": "m", **providers}, home=tmp_path)) == {}


def test_a_provider_in_a_chain_may_have_an_address_of_its_own(tmp_path: Path) -> None:
    """Whose key goes where: a vendor's to the vendor, that of a server one runs oneself to where it is said to be."""
    named = (
        "vllm:qwen@http://gpu.test:8000/v1,custom:@cf/llama@https://gateway.test/v1,openai:gpt@https://gateway.test/v1"
        ",azure:gpt@https://me.openai.azure.com/openai/v1,vllm:sly@https://api.openai.com/v1"
    )
    given = {"VLLM_API_KEY": "v1", "OPENAI_API_KEY": "k1", "AZURE_OPENAI_API_KEY": "a1", "HERMES_API_KEY": "h1"}
    aside = build_auxiliary_chains(load_settings({**given, "HERMES_TITLE_PROVIDERS": named}, home=tmp_path))
    own = aside[AuxTask.TITLE]

    found = [
        (own.resolve_route("", n).name, own.resolve_route("", n).model, own.resolve_route("", n).host)
        for n in range(len(own))
    ]
    assert found == [
        ("vllm", "qwen", "gpu.test"),
        ("custom", "@cf/llama", "gateway.test"),
        ("azure", "gpt", "me.openai.azure.com"),
        ("vllm", "sly", "api.openai.com"),
    ]
    assert [keys(own, n) for n in range(len(own))] == [["v1"], [""], ["a1"], [""]]


@pytest.mark.parametrize("address", ["https://me:hunter2@gateway.test/v1", "https://", "http://gateway.test:0/v1"])
def test_an_address_that_cannot_be_used_is_refused_and_not_shown(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_settings({"HERMES_TITLE_PROVIDERS": f"custom:m@{address}"}, home=tmp_path)
    assert "HERMES_TITLE_PROVIDERS" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_wrong_key_is_named_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        chain(tmp_path, HERMES_MORE_API_KEYS="good,hunter2 hunter2")
    assert "HERMES_MORE_API_KEYS" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_more_keys_are_secrets_of_the_logs(tmp_path: Path) -> None:
    settings = load_settings({"HERMES_MORE_API_KEYS": "sk-more-1", "OPENAI_API_KEY_2": "sk-more-2"}, home=tmp_path)
    assert {"sk-more-1", "sk-more-2"} <= {secret.reveal() for secret in settings.secrets}
    assert "sk-more" not in repr(settings)


def test_model_calls_go_through_the_proxy_that_is_set(tmp_path: Path) -> None:
    seen: list[str] = []

    def proxied(request: Received, reply: Reply) -> None:
        seen.append(request.head.splitlines()[0])
        say_hello(request, reply)

    with FaultServer(proxied) as proxy:
        made = chain(
            tmp_path,
            HERMES_BASE_URL="http://model.test/v1",
            HERMES_MODEL_PROXY=f"http://127.0.0.1:{proxy.port}",
            HTTPS_PROXY="http://127.0.0.1:1",
        )
        request = ModelRequest(model="m", messages=(build_user_body("hello"),))
        reply = made.resolve_route("m", 0).provider.ask(request, on_delta=lambda _: None, abort=AbortSignal())

    assert reply.text == "hello"
    assert seen == ["POST http://model.test/v1/chat/completions HTTP/1.1"]


class _NoGrants:
    """Nothing is asked of it: a chain connects to nothing."""

    def grant(self, login: Login, abort: Abort) -> Grant:
        raise AssertionError

    def renew(self, login: Login, refused: int, abort: Abort) -> Grant:
        raise AssertionError


_LOGIN = {
    "HERMES_TOKEN_URL": "https://auth.test/token",
    "HERMES_REFRESH_TOKENS": "refresh-0123456789,refresh-9876543210",
}


def test_logins_are_used_before_keys(tmp_path: Path) -> None:
    settings = load_settings({"HERMES_MODEL": "m", "OPENAI_API_KEY": "k1", **_LOGIN}, home=tmp_path)
    made = build_chain(settings, _NoGrants())
    names = made.list_credentials("", 0)
    assert len(names) == 3
    assert list(names[:2]) == [login.name for login in list_logins(settings)]
    routes = [made.resolve_route("", 0, name) for name in names]
    assert [route.credential for route in routes] == list(names)
    assert [route.can_renew for route in routes] == [True, True, False]


def test_one_login_needs_no_key_and_makes_no_pool(tmp_path: Path) -> None:
    one = {**_LOGIN, "HERMES_REFRESH_TOKENS": "refresh-0123456789", "HERMES_PROVIDER": "openai"}
    settings = load_settings({"HERMES_MODEL": "m", **one}, home=tmp_path)
    made = build_chain(settings, _NoGrants())
    assert (made.has_pools, made.list_credentials("", 0)) == (False, ())
    assert made.resolve_route("", 0).credential == list_logins(settings)[0].name


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"HERMES_TOKEN_URL": ""}, "HERMES_TOKEN_URL"),
        ({"HERMES_TOKEN_URL": "http://auth.test/token"}, "https://"),
        ({"HERMES_REFRESH_TOKENS": "tooshort"}, "HERMES_REFRESH_TOKENS"),
        ({"HERMES_PROVIDER": ""}, "HERMES_PROVIDER"),
    ],
)
def test_a_login_that_cannot_work_names_the_setting_and_shows_nothing(
    tmp_path: Path, environ: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_settings({"HERMES_PROVIDER": "openai", **_LOGIN, **environ}, home=tmp_path)
    assert named in str(raised.value)
    assert "refresh-" not in str(raised.value)


def test_logins_are_secrets_and_reach_child_processes(tmp_path: Path) -> None:
    more = {"HERMES_OAUTH_CLIENT_ID": "me", "HERMES_OAUTH_CLIENT_SECRET": "cs-0123456789", "HERMES_PROVIDER": "openai"}
    settings = load_settings({**_LOGIN, **more}, home=tmp_path)
    assert {"refresh-0123456789", "cs-0123456789"} <= {secret.reveal() for secret in settings.secrets}
    assert "0123456789" not in repr(settings) + repr(list_logins(settings))
    assert list_logins(load_settings(render_environ(settings), home=tmp_path)) == list_logins(settings)


def test_an_entry_of_the_chain_may_have_a_key_of_its_own(tmp_path: Path) -> None:
    made = chain(
        tmp_path,
        OPENAI_API_KEY="k1",
        HERMES_FALLBACK_PROVIDERS="openai:other$SECOND_API_KEY,groq:llama@https://proxy.test/v1$PROXY_API_KEY",
        SECOND_API_KEY="k2",
        PROXY_API_KEY="p1",
        GROQ_API_KEY="g1",
    )
    assert (keys(made, 0), keys(made, 1), keys(made, 2)) == (["k1"], ["k2"], ["p1"])


def test_an_entry_whose_key_is_not_set_is_passed_over(tmp_path: Path) -> None:
    made = chain(
        tmp_path, OPENAI_API_KEY="k1", GROQ_API_KEY="g1", HERMES_FALLBACK_PROVIDERS="groq:llama$MISSING_API_KEY"
    )
    assert len(made) == 1


def test_the_mappings_of_the_original_name_the_variable_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "fallback_providers: [{provider: groq, model: llama, key_env: SECOND_API_KEY}]", encoding="utf-8"
    )
    assert keys(chain(tmp_path, OPENAI_API_KEY="k1", SECOND_API_KEY="k2"), 1) == ["k2"]


OPTIONS = """
model:
  providers:
    openai: {service_tier: flex, headers: {X-Team: blue}, body: {seed: 7, model: mine}}
    kimi: {region: cn}
"""


def test_headers_body_and_tier_of_a_provider_are_in_its_requests(tmp_path: Path) -> None:
    received: list[Received] = []

    def answer(request: Received, reply: Reply) -> None:
        received.append(request)
        say_hello(request, reply)

    (tmp_path / "config.yaml").write_text(OPTIONS, encoding="utf-8")
    with FaultServer(answer) as server:
        made = chain(tmp_path, HERMES_PROVIDER="openai", HERMES_BASE_URL=server.base_url, OPENAI_API_KEY="k")
        request = ModelRequest(model="m", messages=(build_user_body("x"),), extra_body={"seed": 8})
        made.resolve_route("m", 0).provider.ask(request, on_delta=lambda _: None, abort=AbortSignal())

    sent = received[0].document
    assert received[0].header("X-Team") == "blue"
    assert (sent["service_tier"], sent["seed"], sent["model"]) == ("flex", 8, "m")


def test_a_region_changes_the_address_and_who_serves_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(OPTIONS, encoding="utf-8")
    settings = load_settings({"HERMES_PROVIDER": "moonshot", "KIMI_API_KEY": "k"}, home=tmp_path)
    assert find_endpoint(settings).base_url == "https://api.moonshot.cn/v1"
    assert identify_endpoint(settings.model) == "https://api.moonshot.cn/v1"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ('{"groq": {"service_tier": "flex"}}', "service_tier"),
        ('{"groq": {"region": "eu"}}', "region"),
        ('{"groq": {"headers": {"Authorization": "Bearer x"}}}', "model.providers"),
        ('{"groq": {"headers": {"X-A": "two\\r\\nlines"}}}', "model.providers"),
        ('{"groq": {"api_key": "k"}}', "model.providers"),
        ('{"Not A Name": {}}', "model.providers"),
        ("[]", "model.providers"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(tmp_path: Path, options: str, named: str) -> None:
    environ = {"HERMES_PROVIDER": "groq", "GROQ_API_KEY": "k", "HERMES_MODEL_PROVIDERS": options}
    with pytest.raises(ConfigurationError, match=named):
        find_endpoint(load_settings(environ, home=tmp_path))


def test_options_survive_the_way_to_another_process(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(OPTIONS, encoding="utf-8")
    settings = load_settings({}, home=tmp_path)
    (tmp_path / "config.yaml").unlink()
    assert load_settings(render_environ(settings), home=tmp_path).model.providers == settings.model.providers


# --- keys of tenants -------------------------------------------------------------------------------------------------


def of_tenant(home: Path, tenant: str, **environ: str) -> ProviderChain:
    return cast(
        "ProviderChain", build_tenant_models(load_settings({"HERMES_MODEL": "m", **environ}, home=home))[tenant].chain
    )


def test_a_tenant_with_keys_of_its_own_is_asked_for_with_these_alone(tmp_path: Path) -> None:
    given = {
        "OPENAI_API_KEY": "k1",
        "OPENAI_API_KEY_2": "k2",
        "GROQ_API_KEY": "g1",
        "HERMES_FALLBACK_PROVIDERS": "groq:llama,vllm:qwen@http://gpu.test:8000/v1,openai:small",
        "HERMES_TENANT_KEYS": "acme/openai=a1,acme/openai=a2,beta/groq=b1",
    }
    acme = of_tenant(tmp_path, "acme", **given)

    assert keys(acme) == ["a1", "a2"]
    assert [acme.resolve_route("", n).name for n in range(len(acme))] == [
        "openai",
        "vllm",
        "openai",
    ]  # Groq's is not its own
    assert keys(acme, 2) == ["a1", "a2"]
    with pytest.raises(ConfigurationError, match="keys add openai --tenant beta"):
        of_tenant(tmp_path, "beta", **given).resolve_route("", 0)
    assert keys(chain(tmp_path, **given)) == ["k1", "k2"]


def test_calls_beside_a_tenants_conversation_are_made_with_its_keys_too(tmp_path: Path) -> None:
    given = {
        "OPENAI_API_KEY": "k1",
        "GROQ_API_KEY": "g1",
        "HERMES_TITLE_PROVIDERS": "groq:tiny",
        "HERMES_VISION_PROVIDERS": "openai:eye",
        "HERMES_TENANT_KEYS": "acme/openai=a1",
    }
    aside = build_tenant_models(load_settings({"HERMES_MODEL": "m", **given}, home=tmp_path))["acme"].auxiliary

    assert {task: keys(cast("ProviderChain", own)) for task, own in aside.items()} == {AuxTask.VISION: ["a1"]}


@pytest.mark.parametrize("wrong", ["acme=k", "acme/openai", "/openai=k", "Acme!/openai=k", "acme/openai=a b"])
def test_a_tenants_key_that_cannot_be_read_is_refused_and_not_shown(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_settings({"HERMES_TENANT_KEYS": wrong}, home=tmp_path)
    assert "HERMES_TENANT_KEYS" in str(raised.value)


def test_a_tenants_key_for_a_provider_that_nobody_knows_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'nobodys', which is not in the catalogue"):
        build_tenant_models(load_settings({"HERMES_MODEL": "m", "HERMES_TENANT_KEYS": "acme/nobodys=k"}, home=tmp_path))


def test_tenants_keys_are_secrets_of_the_logs(tmp_path: Path) -> None:
    settings = load_settings({"HERMES_TENANT_KEYS": "acme/openai=sk-acme-1"}, home=tmp_path)
    assert "sk-acme-1" in {secret.reveal() for secret in settings.secrets}
    assert "sk-acme" not in repr(settings)
