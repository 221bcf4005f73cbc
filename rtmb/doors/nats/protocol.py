"""What a client of the text door says, a method for each operation. docs/protocol.md tells the
protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.python.failure import Failure

from rtmb.auth import ANYONE, Credentials, Rule, User
from rtmb.codecs import nats as wire
from rtmb.codecs.nats import ProtocolError
from rtmb.core.subjects import from_raw, is_pattern, split_past
from rtmb.core.subscriptions import Subscription
from rtmb.doors.nats.connection import TLS_HELLO, NatsConnection
from rtmb.doors.nats.dialect import BARE, LIBRARY

if TYPE_CHECKING:
    pass


class NatsProtocol(NatsConnection):
    """One client."""

    # Reading: see `Receiver` for how the bytes get here.

    def dataReceived(self, data: bytes) -> None:
        if self.tls_expected:
            if data[0] == TLS_HELLO:
                self.start_tls(data)
                return
            self.tls_expected = False
            self.refuse(ProtocolError("Secure Connection - TLS Required"))
            return
        super().dataReceived(data)
        behind = self.walk.behind + self.hub.flush()
        if behind:
            self.walk.behind = []
            self.wait_for(behind)

    def lineReceived(self, line: bytes) -> None:
        if self.done:
            return
        operation, arguments = wire.split_line(line)
        if not operation:
            return  # an empty line: someone pressed Enter once more
        try:
            command = self._commands.get(operation)
            if command is None:
                raise ProtocolError("Unknown Protocol Operation")
            if self.user is None and operation != b"CONNECT":
                guest = self.factory.authenticator.guest
                if guest is None:
                    raise ProtocolError("Authorization Violation")
                self.let_in(guest)
            command(self, arguments)
        except ProtocolError as error:
            self.refuse(error)

    def lineLengthExceeded(self, line: bytes) -> None:
        self.refuse(ProtocolError("maximum control line exceeded"))

    def payload_misfit(self) -> None:
        self.refuse(ProtocolError("Payload does not end where its size says"))

    # The operations

    def _connect(self, arguments: bytes) -> None:
        options = wire.parse_json_object(arguments)
        protocol = options.get("protocol", 0)
        if not isinstance(protocol, int) or not 0 <= protocol <= 1:
            raise ProtocolError("invalid client protocol")
        headers, no_responders = bool(options.get("headers")), bool(options.get("no_responders"))
        if no_responders and not headers:
            raise ProtocolError("no responders requires headers support")
        self.options = options
        self.dialect = LIBRARY if options.get("lang") else BARE
        self.verbose = bool(options.get("verbose"))
        self.echo = bool(options.get("echo", True))
        self.headers, self.no_responders = headers, no_responders
        self.outlet.headers = headers
        self.walk.mute = None if self.echo else self
        self.walk.verbose, self.walk.no_responders = self.verbose, no_responders

        def text(key: str) -> str:
            value = options.get(key)
            return value if isinstance(value, str) else ""

        label = " ".join(filter(None, (text("name"), text("lang"), text("version"))))[:200]
        if label:
            self.name = f"{self.host}:{self.port} - cid:{self.number} - {label}"
        credentials = Credentials(
            text("user"), text("pass"), text("auth_token"), text("nkey"), text("sig"), self.nonce()
        )
        # Paused, so that what comes after CONNECT waits for its answer; most answers are at once.
        self.pauseProducing()
        self.factory.authenticator.authenticate(credentials).addCallbacks(
            self._authenticated, self._authentication_failed
        )

    def _authenticated(self, user: User | None) -> None:
        if self.done:
            return
        if user is None or user.expired(self.hub.clock()):
            # A user without a password may be a token, which is a secret.
            said = self.options.get("user") if self.options.get("pass") else ""
            said = said or self.options.get("nkey")
            self.log.warn(
                "authentication failed: {name}{user}",
                name=self.name,
                user=f", as {said!r}" if isinstance(said, str) else "",
            )
            self.close_for("Authorization Violation")
            return
        self.let_in(user)
        self.ok()
        if self.dialect.first_ping:
            self.later("ping", self.dialect.first_ping, self.first_ping)
        else:
            self.send_ping()
        self.resumeProducing()

    def _authentication_failed(self, failure: Failure) -> None:
        self.log.failure("the authenticator failed", failure)
        self.close_for("Authorization Violation")

    def let_in(self, user: User) -> None:
        self.cancel("auth")
        super().let_in(user)
        self.walk.may_publish = user.publish.may_publish if user.publish != Rule() else None
        self.walk.allowed = {}
        self.walk.restricted = user.subscribe != Rule()
        self.may_walk = True

    def _ping(self, arguments: bytes) -> None:
        self.pong_sent = True
        self.send(wire.PONG)

    def _pong(self, arguments: bytes) -> None:
        if self.ping_sent:
            self.rtt = self.last_input - self.ping_sent
            self.ping_sent = 0.0
        self.pings_out = 0

    def _sub(self, arguments: bytes) -> None:
        subject, group, sid = wire.parse_sub(arguments)
        asked = from_raw(subject)
        pattern, past = split_past(asked)
        queue = from_raw(group) if group is not None else None
        if not is_pattern(pattern):
            raise ProtocolError("Invalid Subject", closes=False)
        if sid in self.by_sid:
            if self.dialect.sid_taken is not None:
                raise ProtocolError(self.dialect.sid_taken, closes=False)
            self.ok()
            return
        limit = self.settings.max_subscriptions
        if limit and len(self.by_sid) >= limit:
            raise ProtocolError("maximum subscriptions exceeded", closes=False)
        rule = self.user.subscribe if self.user is not None else ANYONE.subscribe
        if not rule.may_subscribe(pattern, queue):
            using = f' using queue "{queue}"' if queue is not None else ""
            raise ProtocolError(
                f'Permissions Violation for Subscription to "{asked}"{using}', closes=False
            )
        hidden = rule.hidden(pattern, queue)
        subscription = Subscription(self, pattern, queue, sid, hidden, self.outlet)
        self.by_sid[sid] = subscription
        self.ok()
        if past:
            before = self.batch.size()
            self.hub.subscribe(subscription, past)
            self.outbox.allowance += self.batch.size() - before
        else:
            self.hub.subscribe(subscription)

    def _unsub(self, arguments: bytes) -> None:
        sid, maximum = wire.parse_unsub(arguments)
        subscription = self.by_sid.get(sid)
        if subscription is None:
            if self.dialect.sid_unknown is not None:
                raise ProtocolError(self.dialect.sid_unknown, closes=False)
        elif not maximum:
            self.hub.unsubscribe(subscription)
            del self.by_sid[sid]
        elif self.hub.limit(subscription, maximum, from_now=self.dialect.maximum_from_now):
            del self.by_sid[sid]
        self.ok()

    def _pub(self, arguments: bytes) -> None:
        self._expect(wire.parse_pub(arguments))

    def _hpub(self, arguments: bytes) -> None:
        self._expect(wire.parse_hpub(arguments))

    def _expect(self, publication: wire.PublishArguments) -> None:
        if publication.size > self.settings.max_payload:
            raise ProtocolError("Maximum Payload Violation")
        self.expect_payload(publication)

    _commands: dict[bytes, Callable[[NatsProtocol, bytes], None]] = {
        b"CONNECT": _connect,
        b"PING": _ping,
        b"PONG": _pong,
        b"SUB": _sub,
        b"UNSUB": _unsub,
        b"PUB": _pub,
        b"HPUB": _hpub,
    }

    def payload_received(self, publication: wire.PublishArguments, payload: bytes) -> None:
        try:
            self.walk.publish(
                publication.subject,
                publication.reply,
                publication.header_size,
                payload,
                # The time of the whole chunk, as the walk has it: the history stays in order.
                self.last_input,
                self.door,
            )
        except ProtocolError as error:
            self.refuse(error)
