"""The operations of the API about the files that runs left."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from hermes_worker.core.errors import UnavailableError
from hermes_worker.features.artifacts.schema import ArtifactList, ArtifactObject
from hermes_worker.operation import ApiAnswer, ApiRequest, build_get, make_reader


def artifacts(run_id: str) -> ApiRequest[ArtifactList]:
    """The files that the run left, each with an address."""
    return build_get("/v1/runs/{run_id}/artifacts", make_reader(ArtifactList), {"run_id": run_id})


def artifact(found: ArtifactObject | Mapping[str, Any]) -> ApiRequest[bytes]:
    """The bytes of a file that ``artifacts`` listed. An answer with other bytes than were stored raises."""
    proof = dict(parse_qsl(urlsplit(found["url"]).query))

    def read(answer: ApiAnswer) -> bytes:
        if hashlib.sha256(answer.body).hexdigest() != found["sha256"]:
            raise UnavailableError(f"the server's answer is not the artifact {found['id']}: its hash differs")
        return answer.body

    asked = {name: proof.get(name) for name in ("expires", "signature")}
    return build_get("/v1/artifacts/{artifact_id}/content", read, {"artifact_id": found["id"]}, **asked)
