"""A job may say where its model is asked, so the connection of a model call judges what it connects to."""

import httpcore2
import pytest

from hermes_worker.models.connections import _Backend


@pytest.mark.parametrize("host", ["169.254.169.254", "::ffff:0:a9fe:a9fe", "fd00:ec2::254", "100.100.100.200"])
def test_a_model_call_does_not_connect_to_a_metadata_service(host):
    with pytest.raises(httpcore2.ConnectError, match="is a metadata, link-local or multicast address"):
        _Backend().connect_tcp(host, 80, timeout=1)
