import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.channels.catalog import ChatForm, find_platform, find_text_limit, list_platforms
from hermes_worker.channels.targets import (
    ChatRef,
    PlatformRef,
    Resolution,
    SpecialRef,
    Target,
    TargetError,
    normalize_deliver,
    parse_chat,
    parse_targets,
    resolve_targets,
)

LOCAL = Target(platform="local", chat="")
HOMES = {
    "slack": Target(platform="slack", chat="C0HOME000"),
    "telegram": Target(platform="telegram", chat="42", thread="7"),
}


def chat(text: str) -> tuple[str, str | None, ChatForm]:
    (reference,) = parse_targets(text)
    assert isinstance(reference, ChatRef)
    return reference.target.chat, reference.target.thread, reference.target.form


def resolved(text: str, *, origin: Target | None = None, homes=HOMES, lookup=None) -> Resolution:
    return resolve_targets(parse_targets(text), origin=origin, homes=homes, lookup=lookup)


@pytest.mark.parametrize(
    ("deliver", "has_origin", "text"),
    [
        (None, False, "local"),
        ("", False, "local"),
        ([], False, "local"),
        (" , ", False, "local"),
        (None, True, "origin"),
        (["telegram", "discord"], False, "telegram,discord"),
        (" telegram , discord:1 ", False, "telegram,discord:1"),
    ],
)
def test_what_is_stored_is_a_comma_list(deliver, has_origin, text):
    assert normalize_deliver(deliver, has_origin=has_origin) == text


def test_the_words_and_platforms_are_read():
    assert parse_targets("Local, ORIGIN,all,Telegram , lark") == (
        SpecialRef("local"),
        SpecialRef("origin"),
        SpecialRef("all"),
        PlatformRef("telegram"),
        PlatformRef("feishu"),
    )


def test_a_target_named_twice_is_one():
    assert parse_targets("telegram,telegram:1,Telegram,telegram:1") == (
        *parse_targets("telegram"),
        *parse_targets("telegram:1"),
    )


@pytest.mark.parametrize(
    ("text", "chat_id", "thread"),
    [
        ("Telegram:-100123:17", "-100123", "17"),
        ("telegram:-1001", "-1001", None),
        ("telegram:@my_channel", "@my_channel", None),
        ("discord:999:555", "999", "555"),
        ("slack:C0123ABCD", "C0123ABCD", None),
        ("slack:C0123ABCD:1700.1", "C0123ABCD", "1700.1"),
        ("matrix:!r:s.org", "!r:s.org", None),
        ("matrix:!r:s.org:$ev", "!r:s.org", "$ev"),
        ("matrix:!r:s.org:8448:$ev:x", "!r:s.org:8448", "$ev:x"),
        ("matrix:!opaqueRoomIdOfVersionTwelve", "!opaqueRoomIdOfVersionTwelve", None),
        ("feishu:oc_abc:th1", "oc_abc", "th1"),
        ("weixin:wxid_a1", "wxid_a1", None),
        ("weixin:123@chatroom", "123@chatroom", None),
        ("weixin:filehelper", "filehelper", None),
        ("yuanbao:123", "group:123", None),
        ("yuanbao:direct:abc", "direct:abc", None),
        ("ntfy:my-topic_1", "my-topic_1", None),
        ("email:me+cron@mail.example.org", "me+cron@mail.example.org", None),
        ("whatsapp:4915-17@g.us", "4915-17@g.us", None),
        ("whatsapp:+15551234567", "+15551234567", None),
        ("signal:+15551234567", "+15551234567", None),
        ("signal:group:YWJjZGVmZ2g=", "group:YWJjZGVmZ2g=", None),
        ("sms:+4915123456789", "+4915123456789", None),
        ("photon:+15551234567", "+15551234567", None),
        ("mattermost:" + "a" * 26 + ":" + "b" * 26, "a" * 26, "b" * 26),
        ("line:U" + "0" * 32, "U" + "0" * 32, None),
        ("google_chat:spaces/AAA_b", "spaces/AAA_b", None),
        ("google_chat:spaces/AAA:threads/T1", "spaces/AAA", "threads/T1"),
        ("teams:19:abc@thread.tacv2", "19:abc@thread.tacv2", None),
        ("bluebubbles:-7", "-7", None),
        ("homeassistant:notify.mobile_app_phone", "notify.mobile_app_phone", None),
    ],
)
def test_ids_are_read_in_the_shape_of_their_platform(text, chat_id, thread):
    assert chat(text) == (chat_id, thread, ChatForm.ID)


@pytest.mark.parametrize("text", ["slack:U0123ABCD", "matrix:@user:server.org"])
def test_people_are_told_from_chats(text):
    assert chat(text)[2] is ChatForm.USER


@pytest.mark.parametrize(
    "text",
    [
        "discord:#general",
        "telegram:Alice (dm)",
        "slack:general",
        "matrix:#room:server.org",
        "email:not an address",
        "sms:0151-123",
        "email:a@b@c",
        "signal:group:x",
        "discord:1:x",
    ],
)
def test_what_has_no_ids_shape_is_a_name(text):
    assert chat(text) == (text.partition(":")[2], None, ChatForm.NAME)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "No delivery target is given"),
        (" ,, ", "No delivery target is given"),
        ("pigeon", "'pigeon' is not a delivery target; write 'local', 'origin', 'all'"),
        ("pigeon:home", "'pigeon:home' is not a delivery target"),
        ("telegram:", "'telegram:' is not a delivery target"),
        ("local:x", "'local:x' is not a delivery target"),
        ("webhook", "'webhook' needs the URL"),
        ("apprise:", "'apprise' needs the URL"),
        ("webhook:ftp://x.example", "Only http and https"),
        ("webhook:https://u:p@x.example/", "must not contain a user name"),
        ("apprise:nonsense", "needs a URL of apprise"),
        ("apprise:json://10.0.0.1/", "write 'webhook:<url>'"),
        ("apprise:dbus://", "acts on the worker's machine"),
        ("telegram:1\r\nX-Header: y", "control characters"),
        (",".join(f"telegram:{number}" for number in range(51)), "At most 50"),
    ],
)
def test_what_cannot_be_read_is_pointed_at(text, part):
    with pytest.raises(TargetError) as caught:
        parse_targets(text)
    assert part in str(caught.value)


def test_a_comma_in_a_url_belongs_to_it():
    references = parse_targets("webhook:https://x.example/?a=1,2,b=3,telegram:1,apprise:mailto://h?to=a,b,local")
    assert [reference.target.chat for reference in references[:3]] == [
        "https://x.example/?a=1,2,b=3",
        "1",
        "mailto://h?to=a,b",
    ]
    assert references[3] == SpecialRef("local")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        references = parse_targets(text)
    except TargetError:
        return
    resolve_targets(references, origin=None, homes={})


# Resolving.


def test_origin_is_where_the_job_came_from():
    origin = Target(platform="discord", chat="9", thread="5")
    assert resolved("origin", origin=origin).targets == (origin,)


def test_origin_without_one_is_the_first_home_in_the_fixed_order():
    assert resolved("origin").targets == (HOMES["telegram"],)


def test_origin_without_one_and_without_homes_stays_here():
    assert resolved("origin", homes={}) == Resolution(targets=(LOCAL,))


def test_an_origin_that_cannot_be_sent_to_is_none():
    api = Target(platform="api_server", chat="api")
    assert resolved("origin", origin=api).targets == (HOMES["telegram"],)


def test_all_is_every_home_at_the_time_of_sending():
    assert resolved("all").targets == (HOMES["telegram"], HOMES["slack"])
    assert resolved("all", homes={}).unresolved[0].reason == "no platform has a home channel"


def test_a_platform_is_the_origin_on_it_or_its_home():
    origin = Target(platform="telegram", chat="9")
    assert resolved("telegram", origin=origin).targets == (origin,)
    assert resolved("slack", origin=origin).targets == (HOMES["slack"],)


def test_a_platform_without_home_names_the_setting():
    resolution = resolved("matrix")
    assert resolution.targets == ()
    assert resolution.unresolved[0].reason == "it has no home channel; set MATRIX_HOME_ROOM or name a chat"


def test_targets_are_sent_to_once_and_in_order():
    resolution = resolved("all,telegram:42:7,telegram:-100:17,local,slack")
    assert resolution.targets == (
        HOMES["telegram"],
        HOMES["slack"],
        Target(platform="telegram", chat="-100", thread="17"),
        LOCAL,
    )


def test_one_unresolved_target_leaves_the_others():
    resolution = resolved("matrix,telegram:1")
    assert [target.chat for target in resolution.targets] == ["1"]
    assert len(resolution.unresolved) == 1


def test_a_name_is_looked_up():
    known = Target(platform="discord", chat="77")
    found = resolved(
        "discord:#general", lookup=lambda platform, name: known if (platform, name) == ("discord", "#general") else None
    )
    assert found.targets == (known,)
    assert resolved("discord:#other", lookup=lambda platform, name: None).unresolved[0].reference == "discord:#other"
    assert resolved("discord:#other").targets == ()


def test_a_platform_without_adapter_is_said_to_be_one():
    resolution = resolved("whatsapp:+15551234567,yuanbao,telegram")
    assert [item.reference for item in resolution.unresolved] == ["whatsapp:+15551234567", "yuanbao"]
    assert "without a bridge" in resolution.unresolved[0].reason


def test_homes_of_platforms_without_adapter_are_not_used():
    homes = {"qqbot": Target(platform="qqbot", chat="1")}
    assert resolved("origin", homes=homes).targets == (LOCAL,)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("webhook:https://hooks.example/services/T0/SECRET?x=1", "webhook:https://hooks.example/***"),
        ("webhook:https://hooks.example/", "webhook:https://hooks.example/"),
        ("apprise:pover://user@token", "apprise:pover://***"),
        ("telegram:-1:2", "telegram:-1:2"),
        ("email:a@b.example", "email:a@b.example"),
    ],
)
def test_what_is_shown_holds_no_secret(text, shown):
    (reference,) = parse_targets(text)
    assert reference.target.shown == shown


def test_a_chat_of_an_unknown_platform_is_refused():
    with pytest.raises(TargetError, match="'pigeon' is not a platform"):
        parse_chat("pigeon", "1")


# The catalogue.


def test_homes_are_looked_for_in_the_order_of_the_reference():
    assert list(list_platforms())[:16] == [
        *(
            "matrix",
            "telegram",
            "discord",
            "slack",
            "signal",
            "mattermost",
            "sms",
            "email",
            "dingtalk",
            "feishu",
            "wecom",
        ),
        *("weixin", "bluebubbles", "qqbot", "whatsapp", "whatsapp_cloud"),
    ]


def test_every_target_has_a_text_limit():
    assert find_text_limit("telegram").size_max == 4096
    assert find_text_limit("webhook").size_max > 100_000
    with pytest.raises(KeyError):
        find_text_limit("pigeon")


def test_a_platform_is_found_by_name_and_alias_whatever_the_case():
    assert find_platform(" LARK ").name == "feishu"
    assert find_platform("pigeon") is None
