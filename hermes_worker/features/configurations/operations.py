"""The operations of the API about the configuration of the fleet and of tenants."""

from __future__ import annotations

from hermes_worker.features.configurations.schema import ConfigurationObject
from hermes_worker.operation import ApiRequest, build_get, build_put, make_reader


def configuration() -> ApiRequest[ConfigurationObject]:
    """The configuration of the fleet: ``text`` and ``version``."""
    return build_get("/v1/configuration", make_reader(ConfigurationObject))


def write_configuration(text: str, version: int) -> ApiRequest[ConfigurationObject]:
    """Write the configuration behind ``version``, the one that was read. Status 409: there is a newer one."""
    return build_put("/v1/configuration", make_reader(ConfigurationObject), text=text, version=version)


def configuration_versions(limit: int | None = None) -> ApiRequest[list[ConfigurationObject]]:
    """The versions that are kept, the newest first."""
    return build_get("/v1/configuration/versions", make_reader(list[ConfigurationObject], "data"), limit=limit)


def tenant_configuration(tenant: str) -> ApiRequest[ConfigurationObject]:
    """What is overridden for a tenant: ``text`` and ``version``."""
    return build_get("/v1/tenants/{tenant}/configuration", make_reader(ConfigurationObject), {"tenant": tenant})


def write_tenant_configuration(tenant: str, text: str, version: int) -> ApiRequest[ConfigurationObject]:
    """Override settings for a tenant, as ``write_configuration`` does for the fleet."""
    place = {"tenant": tenant}
    return build_put(
        "/v1/tenants/{tenant}/configuration", make_reader(ConfigurationObject), place, text=text, version=version
    )


def tenant_configuration_versions(tenant: str, limit: int | None = None) -> ApiRequest[list[ConfigurationObject]]:
    """The versions of what was overridden for a tenant, the newest first."""
    template = "/v1/tenants/{tenant}/configuration/versions"
    return build_get(template, make_reader(list[ConfigurationObject], "data"), {"tenant": tenant}, limit=limit)
