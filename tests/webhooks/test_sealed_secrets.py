"""Secrets of routes: encrypted with the server key, which can be changed."""

from __future__ import annotations

import base64

import pytest
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.features.webhooks.rules.route import NO_AUTH
from hermes_worker.features.webhooks.rules.sealed import open_secret, reseal_secret, seal_secret
from hermes_worker.settings import Secret
from hermes_worker.settings.sealing import Keyring, SealedElsewhere

OLD, NEW = Secret("the-first-server-key"), Secret("the-second-server-key")
TEXT = "the-secret-of-the-route"


def test_what_is_sealed_does_not_show_and_is_opened_with_its_key() -> None:
    sealed = seal_secret(Keyring([OLD]), "r", TEXT)
    assert TEXT not in sealed
    assert OLD.reveal() not in sealed
    assert open_secret(Keyring([OLD]), "r", sealed) == TEXT


def test_the_key_of_a_purpose_is_made_as_rfc_5869_says() -> None:
    derived = HKDF(SHA256(), 32, None, b"hermes-worker row").derive(OLD.reveal().encode())
    _, _, token = seal_secret(Keyring([OLD]), "r", TEXT).rpartition(":")
    assert TEXT in Fernet(base64.urlsafe_b64encode(derived)).decrypt(token).decode()


def test_an_earlier_key_opens_and_the_new_one_seals_again() -> None:
    sealed = seal_secret(Keyring([OLD]), "r", TEXT)
    both = Keyring([NEW, OLD])
    again = reseal_secret(both, "r", sealed)
    assert again is not None
    assert open_secret(Keyring([NEW]), "r", again) == TEXT
    assert reseal_secret(both, "r", again) is None


def test_another_key_opens_nothing_and_the_sentence_names_the_missing_one() -> None:
    sealed = seal_secret(Keyring([OLD]), "r", TEXT)
    for keyring in (Keyring([NEW]), Keyring([])):
        with pytest.raises(SealedElsewhere, match=r"route 'r' .*another server key \([0-9a-f]{8}\): set HERMES_SERVER"):
            open_secret(keyring, "r", sealed)


def test_what_is_sealed_belongs_to_one_route_and_cannot_be_changed() -> None:
    keyring = Keyring([OLD])
    sealed = seal_secret(keyring, "r", TEXT)
    for name, stored in (("other", sealed), ("r", sealed[:-4] + "AAA="), ("r", "sealed:x"), ("r", "sealed:ü:ü")):
        with pytest.raises(SealedElsewhere):
            open_secret(keyring, name, stored)


def test_what_an_earlier_version_stored_is_opened_as_it_is_and_sealed() -> None:
    assert open_secret(Keyring([OLD]), "r", TEXT) == TEXT
    assert open_secret(Keyring([]), "r", TEXT) == TEXT
    again = reseal_secret(Keyring([OLD]), "r", TEXT)
    assert again is not None
    assert TEXT not in again


def test_without_a_key_nothing_is_sealed_and_the_sentence_says_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="set HERMES_SERVER_KEY"):
        seal_secret(Keyring([]), "r", TEXT)
    assert reseal_secret(Keyring([]), "r", TEXT) is None


def test_a_route_without_a_secret_stays_one() -> None:
    assert seal_secret(Keyring([OLD]), "r", NO_AUTH) == NO_AUTH
    assert reseal_secret(Keyring([OLD]), "r", NO_AUTH) is None
