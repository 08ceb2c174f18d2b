from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.channels.media import (
    DIRECTIVES_MAX,
    ExtractedMedia,
    FileFacts,
    MediaFile,
    MediaKind,
    MediaPolicy,
    choose_media_kind,
    choose_sent_kind,
    extract_media,
    judge_media,
    list_denied_prefixes,
)

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def facts(path: str, **changes: object) -> FileFacts:
    values = {"real_path": path, "is_regular": True, "size": 10, "modified_at": NOW - timedelta(days=9)}
    return FileFacts(**(values | changes))


def nothing(path: str) -> FileFacts | None:
    return None


def everything(path: str) -> FileFacts | None:
    return facts(path)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("MEDIA:/tmp/a.png", "/tmp/a.png"),
        ("MEDIA: /tmp/a.png", "/tmp/a.png"),
        ("Here: MEDIA:/tmp/a.PDF.", "/tmp/a.PDF"),
        ("(MEDIA:/tmp/a.png)", "/tmp/a.png"),
        ("**MEDIA:/tmp/a.png**", "/tmp/a.png"),
        ('MEDIA:"/tmp/my file.weird"', "/tmp/my file.weird"),
        ("MEDIA:'/tmp/my file.png'", "/tmp/my file.png"),
        ("MEDIA:`/tmp/a b.png`", "/tmp/a b.png"),
        ("MEDIA:file:///tmp/a.png", "/tmp/a.png"),
        ("MEDIA:relative/a.png", "relative/a.png"),
    ],
)
def test_a_directive_names_a_file(text, path):
    assert extract_media(text, nothing).paths == (path,)


def test_directives_are_taken_out_and_the_gap_is_closed():
    text = "Chart:\n\nMEDIA:/a.png\n\n\nTable: MEDIA:/b.csv \nEnd"
    assert extract_media(text, nothing) == ExtractedMedia(text="Chart:\n\nTable:\nEnd", paths=("/a.png", "/b.csv"))


def test_a_text_of_nothing_but_a_directive_is_empty():
    assert extract_media("MEDIA:/a.png\n", nothing).text == ""


def test_a_file_named_twice_is_sent_once():
    assert extract_media("MEDIA:/a.png MEDIA:/a.png", nothing).paths == ("/a.png",)


def test_flags_are_taken_out():
    media = extract_media("[[audio_as_voice]] Listen [[as_document]] MEDIA:/a.mp3", nothing)
    assert media == ExtractedMedia(text="Listen", paths=("/a.mp3",), audio_as_voice=True, as_document=True)


@pytest.mark.parametrize(
    "text",
    [
        "```\nMEDIA:/a.png\n```",
        "~~~ sh\nMEDIA:/a.png\n~~~",
        "```\nMEDIA:/a.png",
        "Write `MEDIA:/a.png` to send",
        "Write ``MEDIA:/a.png`` to send",
        "> MEDIA:/a.png",
        '{"text": "see MEDIA:/a.png"}',
        '["MEDIA:/a.png"]',
        "MEDIA:/a.unknownext",
        "MEDIA:/just/a/path",
        "MEDIA:",
        "MULTIMEDIA:/a.png",
        "the MEDIA: tag",
        "`[[as_document]]`",
        "media:/a.png",
    ],
)
def test_talk_about_directives_is_left_alone(text):
    assert extract_media(text, nothing) == ExtractedMedia(text=text)


def test_a_quoted_path_does_not_put_code_spans_out_of_step():
    media = extract_media("MEDIA:`/a.png` and `MEDIA:/b.png` and MEDIA:/c.png", nothing)
    assert media.paths == ("/a.png", "/c.png")


def test_a_file_without_extension_counts_when_it_is_there():
    assert extract_media("MEDIA:/bin/report", everything).paths == ("/bin/report",)


def test_spaces_count_when_the_file_is_there():
    text = "MEDIA:/tmp/my holiday picture.png is new"
    assert extract_media(text, everything) == ExtractedMedia(text="is new", paths=("/tmp/my holiday picture.png",))
    assert extract_media(text, nothing).paths == ()


def test_the_number_of_files_is_bounded():
    text = " ".join(f"MEDIA:/f{number}.png" for number in range(DIRECTIVES_MAX + 5))
    media = extract_media(text, nothing)
    assert len(media.paths) == DIRECTIVES_MAX
    assert media.text.count("MEDIA:") == 5


@given(st.text(alphabet="MEDIA:/ab.png`\"'\n >[]_~", max_size=120))
def test_any_text_is_read(text):
    media = extract_media(text, nothing)
    assert all(path for path in media.paths)


# What may leave.

POLICY = MediaPolicy(
    allowed_roots=("/work/session",),
    denied_prefixes=list_denied_prefixes("/home/u", "/home/u/.hermes-worker"),
    size_max=1000,
)
LENIENT = MediaPolicy(allowed_roots=POLICY.allowed_roots, denied_prefixes=POLICY.denied_prefixes, is_strict=False)


def judge(path: str, policy: MediaPolicy = POLICY, **changes: object):
    return judge_media(path, policy=policy, look=lambda asked: facts(asked, **changes), now=NOW)


def test_a_file_in_the_workspace_may_leave():
    assert judge("/work/session/a/b.png") == MediaFile(
        path="/work/session/a/b.png", name="b.png", kind=MediaKind.IMAGE, size=10
    )


def test_the_real_file_is_judged_and_sent():
    result = judge("/work/session/link.txt", real_path="/etc/passwd")
    assert result.reason == "files from there are never sent"
    assert judge("/elsewhere/link.txt", real_path="/work/session/real.txt").path == "/work/session/real.txt"


@pytest.mark.parametrize("path", ["a.png", "", "~/a.png", "/a\0.png", "/" + "a" * 2000])
def test_a_path_is_absolute_and_sane(path):
    assert judge(path).reason == "it is not an absolute path"


@pytest.mark.parametrize("real_path", ["/work/session/../../etc/passwd", "work/session/a.png"])
def test_a_look_that_does_not_give_a_real_path_is_not_believed(real_path):
    assert judge("/work/session/a.png", real_path=real_path).reason == "its real path is not known"


def test_a_missing_file_or_a_directory_is_refused():
    assert judge_media("/work/session/x.png", policy=POLICY, look=nothing, now=NOW).reason == "there is no such file"
    assert judge("/work/session/dir", is_regular=False).reason == "there is no such file"


def test_a_neighbour_of_the_workspace_is_not_the_workspace():
    assert judge("/work/session-other/a.png").reason == "it lies outside the workspace"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/hosts",
        "/proc/self/environ",
        "/root/x.txt",
        "/home/u/.ssh/config",
        "/home/u/.config/x.json",
        "/home/u/.hermes-worker/hermes-worker.db",
        "/home/u/.hermes-worker/config.yaml",
    ],
)
def test_places_of_credentials_never_leave(path):
    assert judge(path, LENIENT, modified_at=NOW).reason == "files from there are never sent"


@pytest.mark.parametrize(
    "name", [".env", ".env.production", "id_ed25519", "auth.json", "server.pem", "credentials.json", ".netrc"]
)
def test_files_with_the_name_of_a_credential_never_leave(name):
    assert judge(f"/work/session/{name}", LENIENT).reason == "files of that name hold credentials"


def test_an_example_of_an_environment_file_may_leave():
    assert isinstance(judge("/work/session/.env.example"), MediaFile)


@pytest.mark.parametrize(("age_s", "may_leave"), [(0, True), (600, True), (601, False), (-60, False)])
def test_outside_the_workspace_only_fresh_files_may_leave(age_s, may_leave):
    result = judge("/tmp/chart.png", modified_at=NOW - timedelta(seconds=age_s))
    assert isinstance(result, MediaFile) is may_leave


def test_a_lenient_policy_lets_everything_out_that_is_not_denied():
    assert isinstance(judge("/srv/data/a.png", LENIENT), MediaFile)


def test_a_file_that_is_too_large_is_refused():
    assert judge("/work/session/a.png", size=1001).reason == "it has more than 1000 bytes"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.ogg", "voice"),
        ("a.MP3", "audio"),
        ("a.webm", "video"),
        ("a.gif", "image"),
        ("a.pdf", "document"),
        ("a", "document"),
        ("a.exe", "document"),
    ],
)
def test_the_extension_says_how_a_file_is_shown(name, kind):
    assert choose_media_kind(name) == kind


def test_flags_change_how_a_file_is_shown():
    song = MediaFile(path="/a.mp3", name="a.mp3", kind=MediaKind.AUDIO, size=1)
    picture = MediaFile(path="/a.png", name="a.png", kind=MediaKind.IMAGE, size=1)
    voice = ExtractedMedia(text="", audio_as_voice=True)
    assert choose_sent_kind(song, voice) is MediaKind.VOICE
    assert choose_sent_kind(picture, voice) is MediaKind.IMAGE
    assert choose_sent_kind(picture, ExtractedMedia(text="", as_document=True)) is MediaKind.DOCUMENT
