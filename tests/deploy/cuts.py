"""A connection between two edges of a test that can be cut and restored."""

import grpc


class Cut:
    """While it is on, calls between these edges fail in both directions."""

    def __init__(self, *edges, verbs=("Push", "Pull", "Probe")):
        self.is_on, self._verbs = False, verbs
        names = {edge._endpoints.node.name for edge in edges}
        for edge in edges:
            self._stand_between(edge._handler.peers, names - {edge._endpoints.node.name})

    def _stand_between(self, peers, names):
        stub = peers._stub
        peers._stub = lambda peer: _Broken(stub(peer), self) if peer.name in names else stub(peer)

    def breaks(self, verb):
        return self.is_on and verb in self._verbs


class _Broken:
    def __init__(self, stub, cut):
        self._stub, self._cut = stub, cut

    def __getattr__(self, verb):
        if not self._cut.breaks(verb):
            return getattr(self._stub, verb)
        return _fail


def _fail(*_, **__):
    raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "as if")
