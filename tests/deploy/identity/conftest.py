"""An authority and identities of any kind."""

from datetime import timedelta

import pytest

from hatdfed.deploy.identity.authority import LIFETIME, create_authority
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.names import COORDINATOR, edge_id

EXPIRED = timedelta(seconds=-1)


@pytest.fixture
def authority(tmp_path):
    return create_authority(tmp_path / "ca")


@pytest.fixture
def identity(tmp_path, authority):
    """Makes the identity folder of a node."""

    def make(node, *, lifetime=LIFETIME, by=authority, trusts=None, folder=None):
        key = make_key()
        place = IdentityFolder(tmp_path / (folder or node.name))
        place.save(key, by.sign(make_csr(key), node, lifetime), (trusts or by).pem)
        return place

    return make


@pytest.fixture
def coordinator(identity):
    return identity(COORDINATOR)


@pytest.fixture
def expired_edge(identity):
    return identity(edge_id("late"), lifetime=EXPIRED)


@pytest.fixture
def identity_store(tmp_path):
    return create_identity_store(tmp_path / "identity_store")


@pytest.fixture
def new_edge(tmp_path):
    return IdentityFolder(tmp_path / "edge-7")
