"""The settings of the object storage in which files are kept."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import SECRET, WEB_URL, Secret, integer, text_matching


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageSettings:
    """Object storage, by the S3 protocol."""

    url: str | None = declare_setting(
        "object_storage.url",
        "HERMES_OBJECT_STORAGE",
        text_matching(
            r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}){0,8}/?",
            "s3://BUCKET or s3://BUCKET/PREFIX",
        ),
        audience="operator",
        reason="tools workers share no volume, or artifacts fill the database; both are needed without it.",
    )
    """The bucket for the files that runs leave, and for the workspaces of the kind `objects` (`terminal.workspace`),
    such as `s3://hermes-files/production`. No other installation may write below it. Not set: artifacts are in the
    database. Needs the extra `s3`."""
    endpoint: str | None = declare_setting(
        "object_storage.endpoint",
        "HERMES_OBJECT_STORAGE_ENDPOINT",
        WEB_URL,
        audience="operator",
        reason="the bucket is not with AWS; AWS is asked without it.",
    )
    """The address of the storage, such as `https://minio.example.org`. Not set: that of AWS for the region."""
    region: str = declare_setting(
        "object_storage.region",
        "HERMES_OBJECT_STORAGE_REGION",
        text_matching(r"[a-z0-9-]{1,64}", "a region"),
        "us-east-1",
        audience="operator",
        reason="the bucket is in another region than us-east-1; requests are refused without it.",
    )
    """The region of the bucket."""
    access_key: str | None = declare_setting(
        "object_storage.access_key",
        "HERMES_OBJECT_STORAGE_ACCESS_KEY",
        text_matching(r"[\x21-\x7e]{1,256}", "the id of an access key"),
        audience="operator",
        reason="the storage knows the product by a pair of keys; the identity of the machine is used without it.",
    )
    """The id of the access key. Not set: the credentials of the machine or pod, as AWS's own tools find them."""
    secret_key: Secret | None = declare_setting(  # noqa: RUF009 - a field
        "object_storage.secret_key",
        "HERMES_OBJECT_STORAGE_SECRET_KEY",
        SECRET,
        audience="operator",
        reason="an access key is set; requests cannot be signed without it.",
    )
    """The secret of the access key."""
    grace_days: int = declare_setting(
        "object_storage.grace_days",
        "HERMES_OBJECT_STORAGE_GRACE_DAYS",
        integer(1, 3_650),
        7,
        audience="operator",
        reason="backups of the database are restored that are older than a week; their files are gone without it.",
    )
    """Days for which an object stays that no row needs any more. What was erased cannot be read meanwhile."""
