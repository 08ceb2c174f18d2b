"""Certificates of an authority that a test makes (trustme)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, kw_only=True)
class CertificateFiles:
    """A certificate with its private key, and the authority that issued it."""

    authority: Path
    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._issuer = trustme.CA()
        self.path = directory / "authority.pem"
        self._issuer.cert_pem.write_to_path(str(self.path))

    def files(self, *names: str, common_name: str | None = None) -> CertificateFiles:
        issued = self._issuer.issue_cert(*names, common_name=common_name)
        stem = common_name or names[0]
        certificate, key = self._directory / f"{stem}.pem", self._directory / f"{stem}.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        key.chmod(0o600)
        return CertificateFiles(authority=self.path, certificate=certificate, key=key)
