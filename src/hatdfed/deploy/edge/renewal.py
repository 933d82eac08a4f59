"""An edge renews its certificate long before it endpoints, so that a run may outlive many of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from hatdfed.deploy.edge.coordinator_link import CoordinatorLink
from hatdfed.deploy.identity.join import accept_renewal, make_renewal_request
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import HatdfedError

_log = logging.getLogger("hatdfed.deploy.edge")
_SECONDS = 20.0


async def renew_when_due(endpoints: Endpoints, line: CoordinatorLink, hang_up: Callable[[], None]) -> None:
    """Look again and again; a renewal that fails is tried again, there is a third of the lifetime left for it."""
    folder, left = endpoints.identity, 0.0
    while folder is not None:
        try:
            if folder.should_renew(datetime.now(UTC)):
                answer = await line.ask("Renew", pb.SigningRequest(csr=make_renewal_request(folder)))
                if answer is not None:
                    accept_renewal(folder, answer.certificate)
                    hang_up()
                    _log.info("the certificate is renewed until %s", folder.expires)
            left = (folder.expires - datetime.now(UTC)).total_seconds()
        except HatdfedError as error:
            _log.warning("the certificate could not be renewed yet: %s", error)
        await asyncio.sleep(min(_SECONDS, max(0.2, left / 10)))
