"""What can go wrong for a client. All are `ClientError`s; each is also the built-in error that it
is a case of, where there is one."""

# The names say what happened, as those of Twisted do.
# ruff: noqa: N818

from __future__ import annotations


class ClientError(Exception):
    """Something that a client was asked to do did not work."""


class ConnectionFailed(ClientError, ConnectionError):
    """No server could be reached."""


class AuthenticationFailed(ConnectionFailed):
    """A server did not let this client in."""


class Disconnected(ClientError, ConnectionError):
    """The connection was lost before the server confirmed what it was sent."""


class ConnectionClosed(ClientError, ConnectionError):
    """The client is closed, by `close` or because it has given up reconnecting."""


class ServerError(ClientError):
    """The server said ``-ERR``; the text is what it said."""


class PermissionViolation(ServerError, PermissionError):
    """The server does not allow this client a subject."""


class BadSubject(ClientError, ValueError):
    """A subject, pattern or queue that cannot stand on the wire."""


class PayloadTooLarge(ClientError, ValueError):
    """More bytes than the server takes in one message."""


class BufferFull(ClientError, BufferError):
    """More waits to be sent than `pending_limit` allows."""


class NoResponders(ClientError):
    """Nobody subscribes to the subject of a request."""


class Timeout(ClientError, TimeoutError):
    """What was waited for did not come in time."""


class RequestTimeout(Timeout):
    """A request got no answer in time."""


class SubscriptionEnded(ClientError):
    """There will be no more messages."""
