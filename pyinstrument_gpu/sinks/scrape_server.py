# SPDX-License-Identifier: Apache-2.0
"""The web server of a recording: whoever reaches its port can't use up what the training needs."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from pyinstrument_gpu.errors import SinkError, needed_for

_MOST_CONNECTIONS = 8
_CONNECTION_S = 5.0


def serve(collector: Any, host: str, port: int, what: str) -> ScrapeServer:
    """Serve to Prometheus what a collector has, and nothing else of this process.

    Args:
        what: needs prometheus_client, in words.

    Raises:
        SinkError: the port is taken, or there is no such address.
        MissingDependencyError: prometheus_client is not installed.
    """
    with needed_for(what, "prometheus_client"):
        import prometheus_client
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    try:
        return ScrapeServer(host, port, prometheus_client.make_wsgi_app(registry))
    except (OSError, OverflowError) as error:
        raise SinkError(
            f"can't listen on {host}:{port}: {error}. Choose another port, or 0 for a free one"
        ) from error


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Answers by a WSGI application, on daemon threads.

    It has at most eight connections, each with a thread and a descriptor. More are closed at once,
    and each after five seconds, whatever it does.

    Raises:
        OSError, OverflowError: it can't listen there.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, application: Any) -> None:
        self._began_s: dict[Any, float] = {}  # when each connection did
        (self.address_family, *_, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        super().__init__((str(address[0]), port), _SilentHandler)
        self.set_app(application)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        if len(self._began_s) >= _MOST_CONNECTIONS:
            return False
        self._began_s[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        # Called twice a second.
        for request, began_s in list(self._began_s.items()):
            if time.monotonic() - began_s >= _CONNECTION_S:
                self._hang_up(request)

    def shutdown_request(self, request: Any) -> None:
        self._began_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An error of a connection is nothing that the program's user need see."""

    def close(self) -> None:
        """Stop listening, and end the connections."""
        self.socket.shutdown(socket.SHUT_RDWR)  # or it would look up only now and then
        self.shutdown()
        self.server_close()
        for request in list(self._began_s):
            self._hang_up(request)

    def _hang_up(self, request: Any) -> None:
        # Its thread, which is waiting for the other side, finds that this has ended, and closes it.
        self._began_s.pop(request, None)
        with contextlib.suppress(OSError):  # it has ended by itself
            request.shutdown(socket.SHUT_RDWR)


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""
