"""The load client's connections with TLS: slower to drive than plain ones, as records must be read
and decrypted to be counted."""

from __future__ import annotations

import select
import socket
import ssl

from rtmb.cli.bench_load import (
    PATIENCE,
    BenchmarkError,
    HostAndPort,
    LoadConnection,
    LoginFields,
    NoConnectionError,
    read_buffer,
)


def client_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Trust what is in `ca`, or what the system trusts; show our own certificate, if any."""
    context = ssl.create_default_context(cafile=ca)
    if cert:
        context.load_cert_chain(cert, key)
    return context


class TlsLoadConnection(LoadConnection):
    """A connection that upgrades to TLS behind the server's INFO. Its socket does not block: a
    write that waited for the server might wait for a server that waits for our reads."""

    tls = True
    socket: ssl.SSLSocket

    def __init__(self, address: HostAndPort, login: LoginFields, context: ssl.SSLContext) -> None:
        self._context = context
        self._host = address[0]
        super().__init__(address, login)

    def _secure(self) -> None:
        if not (self.info.get("tls_required") or self.info.get("tls_available")):
            raise NoConnectionError("the server has no TLS")
        try:
            self.socket.settimeout(PATIENCE)
            self.socket = self._context.wrap_socket(self.socket, server_hostname=self._host)
        except ssl.SSLCertVerificationError:
            raise NoConnectionError("its certificate is not trusted") from None
        except OSError as error:
            raise NoConnectionError(f"TLS failed: {_reason(error)}") from None
        self.socket.setblocking(False)

    def send(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            sent = self.send_some(rest)
            rest = rest[sent:]
            if not sent:
                self._wait(select.POLLOUT, "took")

    def send_some(self, data: memoryview) -> int:
        try:
            return self.socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise NoConnectionError(f"the server closed the connection: {error}") from None

    def _receive_into_buffer(self, flags: int) -> int:
        while True:
            try:
                count = self.socket.recv_into(read_buffer)
            except ssl.SSLWantReadError:
                if flags & socket.MSG_DONTWAIT:
                    return 0
                self._wait(select.POLLIN, "sent")
                continue
            except OSError as error:
                raise NoConnectionError(
                    f"the server closed the connection: {_reason(error)}"
                ) from None
            if not count:
                raise NoConnectionError("the server closed the connection")
            return count

    def _wait(self, events: int, verb: str) -> None:
        poll = select.poll()
        poll.register(self.socket, events)
        if not poll.poll(PATIENCE * 1000):
            raise BenchmarkError(f"the server {verb} nothing for {PATIENCE} s")


def _reason(error: OSError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return str(reason or error).lower().replace("_", " ")
