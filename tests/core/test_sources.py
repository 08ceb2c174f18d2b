from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.sources import (
    Repetition,
    RequestKeys,
    SessionLabel,
    decide_repetition,
    is_session_id,
    parse_source_kind,
)

NAMES = st.text(min_size=1, max_size=5)


def test_what_a_source_is_treated_as_is_its_kind():
    assert [parse_source_kind(source) for source in ("api", "webhook:review", "chat:telegram:1")] == [
        "api",
        "webhook",
        "chat",
    ]


def test_an_id_is_no_name_and_a_name_is_no_id():
    assert is_session_id("run_" + "0a" * 16)
    assert not any(is_session_id(name) for name in ("run_", "chat", "run_" + "0" * 31, "run_" + "0A" * 16, "Xrun_1"))


def test_a_session_is_known_by_its_name_to_whoever_gave_it_and_by_its_id_to_others():
    label = SessionLabel(id="run_1", source="api", name="chat")
    assert (label.choose_reference("api"), label.choose_reference("cli")) == ("chat", "run_1")
    assert label.describe_for("cli") == "run_1 (api 'chat')"
    assert SessionLabel(id="run_1").describe_for("cli") == "run_1"


@given(source=NAMES, key=NAMES | st.none(), fingerprint=NAMES, proof=NAMES | st.none())
def test_a_request_is_known_again_as_itself(source, key, fingerprint, proof):
    asked = RequestKeys(source=source, key=key, fingerprint=fingerprint, proof=proof)
    assert decide_repetition(asked, {}) is Repetition.NEW
    known = dict.fromkeys(asked.names, fingerprint)
    expected = Repetition.NEW if not known else Repetition.DUPLICATE if key is not None else Repetition.REPLAY
    assert decide_repetition(asked, known) is expected


def test_a_duplicate_has_key_and_request_in_common():
    def judged(known, **changes):
        asked = RequestKeys(**{"source": "webhook:r", "key": "e1", "fingerprint": "f", "proof": "p", **changes})
        return decide_repetition(asked, known)

    (_, proof) = RequestKeys(source="webhook:r", key="e1", proof="p").names
    assert judged({"e1": "f"}) is Repetition.DUPLICATE
    assert judged({"e1": "g"}) is Repetition.CONFLICT
    assert judged({"e1": "g", proof: "f"}) is Repetition.CONFLICT
    assert judged({proof: "f"}) is Repetition.REPLAY
    assert judged({proof: "f"}, key=None) is Repetition.REPLAY
