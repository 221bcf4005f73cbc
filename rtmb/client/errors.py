"""What can go wrong for a client. All are `ClientError`s; each is also the built-in error that it
is a case of, where there is one."""

# The names say what happened, as those of Twisted do.
# ruff: noqa: N818

from __future__ import annotations

from twisted.python.failure import Failure


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


def explain(error: BaseException | None) -> str:
    """An error for people; some of Twisted's and OpenSSL's say nothing by themselves."""
    if error is None:
        return "no reason given"
    match error.args:
        case ([Failure() as first, *_],):  # several reasons, of which the first will do
            return explain(first.value)
        case ([(str(), str(), str(reason)), *_],):  # OpenSSL's: library, function, reason
            if reason == "certificate verify failed":
                return "its certificate is not trusted"
            return f"TLS failed: {reason}"
    return str(error).rstrip(".") or type(error).__name__
