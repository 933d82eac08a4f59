"""A TLS handshake of a process with itself, in memory, when it starts.

gRPC brings a TLS library of its own. Python's is used only in trouble: by an edge to find out why its connection fails,
by the join server to tell it. Then almost a megabyte of its code comes into memory, which a small machine may not have
at that moment; and a process that grows when an edge is cut off for the first time looks like one that leaks.
"""

from __future__ import annotations

import contextlib
import ssl

from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.join import make_verified_context

_FLIGHTS = 3  # that each side of a handshake sends at most
_MESSAGE = b"hello"


def rehearse_tls(folder: IdentityFolder) -> bool:
    """Connect to oneself with the own certificate; returns whether that worked, which it need not."""
    identity = folder.read()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder.cert_file, folder.key_file)
    requests, answers = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(requests, answers, server_side=True)
    client = make_verified_context(identity.ca_pem).wrap_bio(answers, requests, server_hostname=identity.node.dns)
    try:
        for end in _FLIGHTS * (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        client.write(_MESSAGE)
        return server.read() == _MESSAGE
    except ssl.SSLError:  # such as a certificate that has expired: it is renewed later
        return False
