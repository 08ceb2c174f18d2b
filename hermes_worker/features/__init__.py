"""The features of the product: one folder each, which holds everything that the feature is.

A module's last word says its floor, so a folder reads from the top down::

    rules    what is decided, pure: no I/O                      as core
    tables   its tables                                         as store
    rows     the SQL of its tables                              as store
    files    what it keeps on disk or in a workspace            as workspaces
    prompt   what it writes into prompts                        as agent
    tool     what a model may call                              as agent
    work     what a worker does for it, and its upkeep          as tasks
    build    its parts, made from the settings                  as tasks
    service  what routes and other entries share                as services
    schema   its resources, for API, client and commands        as client
    operations  its part of the client: requests and answers    as client
    routes   its part of the HTTP API                           as api
    backend  what its commands ask the API                      as cli
    verbs    its commands                                       as cli
    checks   what the doctor finds of it                        as cli

``features/memory/review_rules.py`` is pure, as ``features/memory/rules.py`` is. A feature's ``__init__`` holds its
``EXTENSION``, the one declaration of what it brings. A feature imports the kernel and no other feature, and the kernel
names no feature: the composition roots that tests/rooms.toml lists put both together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FEATURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hermes_worker.features.alerts:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.approvals:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.artifacts:EXTENSION": ("routers", "commands", "upkeep"),
        "hermes_worker.features.audit:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.batches:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.checkpoints:EXTENSION": ("routers", "commands", "upkeep"),
        "hermes_worker.features.configurations:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.deliveries:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.encryption:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.forks:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.mcp_servers:EXTENSION": ("routers", "commands", "upkeep"),
        "hermes_worker.features.memory:EXTENSION": ("tools", "routers", "commands", "prompt_blocks"),
        "hermes_worker.features.object_storage:EXTENSION": ("workspaces", "upkeep", "tables"),
        "hermes_worker.features.provider_keys:EXTENSION": ("routers", "commands", "upkeep", "tables"),
        "hermes_worker.features.retention:EXTENSION": ("routers", "commands", "tables"),
        "hermes_worker.features.skills:EXTENSION": ("tools", "routers", "commands", "upkeep", "tables"),
        "hermes_worker.features.spend:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.tenants:EXTENSION": ("routers", "commands"),
        "hermes_worker.features.webhooks:EXTENSION": ("routers", "commands", "upkeep", "tables"),
    }
)
"""The declarations of the built-in features, and the kinds of plugs that each one brings."""
