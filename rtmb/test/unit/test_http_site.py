"""Tests for `rtmb.doors.http.site`: what is hard to bring about from outside."""

from __future__ import annotations

import time
from typing import cast

from twisted.internet.defer import Deferred, fail
from twisted.internet.testing import MemoryReactorClock, StringTransportWithDisconnection
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.server import Request
from twisted.web.test.requesthelper import DummyChannel, DummyRequest
from zope.interface import implementer

from rtmb.auth import ANYONE, Credentials, User
from rtmb.broker import Broker
from rtmb.config import Settings, SettingsError
from rtmb.doors.http import access, connection
from rtmb.doors.http.kit import ApiRequest, RefusedError, user_of
from rtmb.doors.http.site import HttpService
from rtmb.interfaces import IAuthenticator


@implementer(IAuthenticator)
class Broken:
    """An authenticator that does not work."""

    required, nonce_needed, guest = True, False, None

    def authenticate(self, credentials: Credentials) -> Deferred[User | None]:
        return fail(RuntimeError("the directory does not answer"))

    def recheck(self, user: User | None) -> User | None:
        return user


class OptionTests(SynchronousTestCase):
    def test_the_door_has_no_options_of_its_own(self) -> None:
        settings = Settings(doors={"http": {"nonsense": 1}})
        with self.assertRaisesRegex(SettingsError, "doors.http: unknown key nonsense"):
            Broker(settings, MemoryReactorClock())


class TicketTests(SynchronousTestCase):
    def test_they_expire_and_are_bounded(self) -> None:
        self.now = 100.0
        self.patch(time, "monotonic", lambda: self.now)
        self.patch(access, "_MOST_TICKETS", 2)
        door = access.Access(Settings(), Broken())
        ticket, late = door.ticket_for(ANYONE), door.ticket_for(ANYONE)
        self.assertRaises(RefusedError, door.ticket_for, ANYONE)
        self.assertIs(self.redeemed(door, ticket), ANYONE)
        self.assertIsNone(self.redeemed(door, ticket), "a second time")
        self.now += access.TICKET_FOR + 0.1
        self.assertIsNone(self.redeemed(door, late))
        self.assertTrue(door.ticket_for(ANYONE))

    def redeemed(self, door: access.Access, ticket: str) -> User | None:
        request = DummyRequest([b"ws"])
        request.args = {b"ticket": [ticket.encode()]}
        return self.successResultOf(door.admit(cast(Request, request)))


class UnknownSenderTests(SynchronousTestCase):
    def test_a_request_that_nobody_looked_at_is_an_error(self) -> None:
        """Rather than one of someone who may do everything."""
        self.assertRaises(RuntimeError, user_of, ApiRequest(DummyChannel(), False))


class InMemoryTests(SynchronousTestCase):
    """What is hard to bring about from outside."""

    def start(self, authenticator: IAuthenticator | None = None) -> None:
        broker = Broker(Settings(), MemoryReactorClock(), authenticator)
        service = broker.getServiceNamed("http")
        assert isinstance(service, HttpService)
        self.site = service.site

    def said(self, data: bytes) -> bytes:
        self.transport = StringTransportWithDisconnection()
        self.transport.protocol = channel = self.site.buildProtocol(None)
        channel.makeConnection(self.transport)
        channel.dataReceived(data)
        answer: bytes = self.transport.value()
        return answer

    def test_bodies_of_all_together(self) -> None:
        self.start()
        self.patch(connection, "MOST_BODIES", 15)
        request = b"POST /publish/a HTTP/1.1\r\nContent-Length: 10\r\n\r\n"
        self.assertEqual(self.said(request + b"x" * 9), b"")
        self.assertEqual(self.site.bodies, 9)
        first = self.transport
        self.assertIn(b"HTTP/1.1 503", self.said(request + b"x" * 10))
        self.transport.loseConnection()
        first.loseConnection()
        self.assertEqual(self.site.bodies, 0)
        self.assertIn(b"HTTP/1.1 200", self.said(request + b"x" * 10))
        self.assertEqual(self.site.bodies, 0)

    def test_a_broken_authenticator_lets_nobody_in(self) -> None:
        self.start(Broken())
        said = self.said(b"GET /topics HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n")
        self.assertIn(b"HTTP/1.1 500", said)
        self.assertNotIn(b"directory", said)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
