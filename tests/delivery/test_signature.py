import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.channels.signature import TOLERANCE_S, Scheme, sign, verify

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
SECRET = "it is a secret"
BODY = b'{"event":"push"}'


def mac(message: bytes, key: bytes = SECRET.encode()) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()


def svix(
    body: bytes = BODY, *, key: bytes = SECRET.encode(), at: datetime = NOW, identifier: str = "msg_1"
) -> dict[str, str]:
    timestamp = str(int(at.timestamp()))
    signature = base64.b64encode(mac(f"{identifier}.{timestamp}.".encode() + body, key)).decode()
    return {"svix-id": identifier, "svix-timestamp": timestamp, "svix-signature": f"v1,{signature}"}


def test_our_signature_covers_timestamp_and_body():
    headers = sign(BODY, SECRET, NOW)
    timestamp = str(int(NOW.timestamp()))
    assert headers == {
        "X-Webhook-Timestamp": timestamp,
        "X-Webhook-Signature-V2": mac(timestamp.encode() + b"." + BODY).hex(),
    }


def test_what_proves_a_request_is_the_same_in_whatever_header_it_comes():
    github = {"X-Hub-Signature-256": f"sha256={mac(BODY).hex()}"}
    legacy = {"X-Webhook-Signature": mac(BODY).hex()}
    stamped = [sign(BODY, SECRET, NOW), sign(BODY, SECRET, NOW + timedelta(seconds=1)), svix(), svix(identifier="2")]
    proofs = [verify(headers, BODY, SECRET, NOW).proof for headers in (github, legacy, *stamped)]
    assert proofs[0] == proofs[1] and len(set(proofs)) == 5 and None not in proofs
    assert verify({"X-Gitlab-Token": SECRET}, BODY, SECRET, NOW).proof is None, "a token signs nothing"
    assert verify({"X-Hub-Signature-256": "sha256=00"}, BODY, SECRET, NOW).proof is None


def standard(secret: str) -> standardwebhooks.Webhook:
    return standardwebhooks.Webhook(secret)


KEY = base64.b64encode(bytes(range(32))).decode()
"""A secret as the official verifiers want it; all but ours take ``whsec_`` off."""


@pytest.mark.parametrize("secret", [f"whsec_{KEY}", KEY])
def test_the_official_verifier_takes_what_we_sign(secret):
    headers = sign(BODY, secret, datetime.now(UTC), message_id="d1:0")
    assert standard(secret).verify(BODY, headers) == {"event": "push"}
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standard(secret).verify(BODY.replace(b"push", b"pull"), headers)


@pytest.mark.parametrize("secret", [f"whsec_{KEY}", KEY])
@pytest.mark.parametrize("names", ["webhook", "svix"])
def test_what_the_official_signer_signs_we_accept(secret, names):
    timestamp = str(int(NOW.timestamp()))
    signature = standard(secret).sign("msg_1", NOW, BODY.decode())
    headers = {f"{names}-id": "msg_1", f"{names}-timestamp": timestamp, f"{names}-signature": signature}
    result = verify(headers, BODY, secret, NOW)
    assert (result.is_valid, result.scheme) == (True, Scheme.SVIX)
    assert not verify(headers, BODY + b" ", secret, NOW).is_valid
    assert not verify({**headers, f"{names}-id": "msg_2"}, BODY, secret, NOW).is_valid


def test_a_plain_secret_is_its_own_key():
    headers = sign(BODY, SECRET, NOW, message_id="d1:0")
    key = base64.b64encode(SECRET.encode()).decode()
    assert headers["webhook-signature"] == standard(key).sign("d1:0", NOW, BODY.decode())


def test_an_id_alone_announces_no_scheme():
    github = {"X-Hub-Signature-256": f"sha256={mac(BODY).hex()}", "webhook-id": "1"}
    assert verify(github, BODY, SECRET, NOW).scheme is Scheme.GITHUB


def test_nothing_is_signed_with_an_empty_secret():
    with pytest.raises(ValueError, match="empty secret"):
        sign(BODY, "", NOW)


@given(
    st.binary(max_size=200),
    st.text(min_size=1, max_size=40).filter(lambda text: text.encode("utf-8", "ignore").decode() == text),
)
def test_what_we_sign_we_accept(body, secret):
    result = verify(sign(body, secret, NOW), body, secret, NOW)
    assert (result.is_valid, result.scheme) == (True, Scheme.V2)


def test_a_changed_body_or_secret_is_refused():
    headers = sign(BODY, SECRET, NOW)
    assert not verify(headers, BODY + b" ", SECRET, NOW).is_valid
    assert not verify(headers, BODY, SECRET + "x", NOW).is_valid


def test_a_changed_timestamp_is_refused():
    headers = sign(BODY, SECRET, NOW) | {"X-Webhook-Timestamp": str(int(NOW.timestamp()) + 1)}
    assert not verify(headers, BODY, SECRET, NOW).is_valid


@pytest.mark.parametrize("make", [lambda at: sign(BODY, SECRET, at), lambda at: svix(at=at)], ids=["v2", "svix"])
@pytest.mark.parametrize(
    ("off_s", "is_valid"),
    [(-TOLERANCE_S, True), (TOLERANCE_S, True), (-TOLERANCE_S - 1, False), (TOLERANCE_S + 1, False)],
)
def test_a_signature_is_good_for_five_minutes(make, off_s, is_valid):
    assert verify(make(NOW + timedelta(seconds=off_s)), BODY, SECRET, NOW).is_valid is is_valid


@pytest.mark.parametrize("timestamp", ["", "soon", "-1", "1e9", "²", "9" * 40, "1769860800.0"])
def test_a_timestamp_that_is_none_is_refused(timestamp):
    for headers in (
        {"X-Webhook-Signature-V2": "x", "X-Webhook-Timestamp": timestamp},
        svix() | {"svix-timestamp": timestamp},
    ):
        result = verify(headers, BODY, SECRET, NOW)
        assert (result.is_valid, result.reason) == (False, "the timestamp is missing or more than five minutes off")


def test_github_signs_the_body():
    headers = {"X-Hub-Signature-256": "sha256=" + mac(BODY).hex()}
    result = verify(headers, BODY, SECRET, NOW)
    assert (result.is_valid, result.scheme) == (True, Scheme.GITHUB)


def test_github_example_from_its_documentation():
    # docs.github.com, "Validating webhook deliveries", testing the signature.
    headers = {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    assert verify(headers, b"Hello, World!", "It's a Secret to Everybody", NOW).is_valid


def test_gitlab_sends_the_secret():
    assert verify({"X-Gitlab-Token": SECRET}, BODY, SECRET, NOW).scheme is Scheme.GITLAB
    assert verify({"X-Gitlab-Token": SECRET}, BODY, SECRET, NOW).is_valid
    assert not verify({"X-Gitlab-Token": SECRET + " x"}, BODY, SECRET, NOW).is_valid


def test_the_legacy_scheme_signs_the_body_alone():
    result = verify({"X-Webhook-Signature": mac(BODY).hex()}, BODY, SECRET, NOW)
    assert (result.is_valid, result.scheme) == (True, Scheme.LEGACY)


def test_svix_with_a_plain_secret():
    result = verify(svix(), BODY, SECRET, NOW)
    assert (result.is_valid, result.scheme) == (True, Scheme.SVIX)


def test_svix_with_an_encoded_secret():
    key = bytes(range(24))
    secret = "whsec_" + base64.b64encode(key).decode()
    assert verify(svix(key=key), BODY, secret, NOW).is_valid
    assert verify(svix(key=key), BODY, secret.rstrip("="), NOW).is_valid
    assert not verify(svix(key=secret.encode()), BODY, secret, NOW).is_valid


def test_svix_example_from_its_documentation():
    # docs.svix.com, "Verifying webhooks manually".
    headers = {
        "svix-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "svix-timestamp": "1614265330",
        "svix-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    then = datetime.fromtimestamp(1614265330, UTC)
    assert verify(headers, b'{"test": 2432232314}', "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", then).is_valid


def test_svix_accepts_one_of_several_signatures():
    good = svix()
    rotated = good | {"svix-signature": f"v1,AAAA v2,{good['svix-signature'][3:]} {good['svix-signature']}"}
    assert verify(rotated, BODY, SECRET, NOW).is_valid
    only_other = good | {"svix-signature": f"v2,{good['svix-signature'][3:]}"}
    assert not verify(only_other, BODY, SECRET, NOW).is_valid


def test_svix_with_a_broken_secret_is_refused():
    result = verify(svix(), BODY, "whsec_%%%", NOW)
    assert not result.is_valid
    assert "not base64" in result.reason


@pytest.mark.parametrize("name", ["svix-id", "svix-timestamp", "svix-signature"])
def test_one_svix_header_is_enough_to_ask_for_all(name):
    headers = {name: "x", "X-Hub-Signature-256": "sha256=" + mac(BODY).hex()}
    result = verify(headers, BODY, SECRET, NOW)
    assert (result.is_valid, result.scheme) == (False, Scheme.SVIX)


def test_only_the_first_scheme_is_checked():
    headers = {"X-Hub-Signature-256": "sha256=bad", "X-Gitlab-Token": SECRET, "X-Webhook-Signature": mac(BODY).hex()}
    assert verify(headers, BODY, SECRET, NOW).scheme is Scheme.GITHUB
    assert not verify(headers, BODY, SECRET, NOW).is_valid


def test_header_names_are_compared_without_case():
    headers = {name.upper(): value for name, value in sign(BODY, SECRET, NOW).items()}
    assert verify(headers, BODY, SECRET, NOW).is_valid


def test_a_request_without_signature_is_refused():
    assert verify({"Content-Type": "application/json"}, BODY, SECRET, NOW).reason == "the request is not signed"


def test_without_a_secret_nothing_is_valid():
    headers = {"X-Gitlab-Token": ""}
    assert not verify(headers, BODY, "", NOW).is_valid


@pytest.mark.parametrize("header", ["X-Hub-Signature-256", "X-Gitlab-Token", "X-Webhook-Signature"])
def test_what_is_not_ascii_is_wrong_not_an_error(header):
    assert not verify({header: "sha256=é\udc80"}, BODY, SECRET, NOW).is_valid
