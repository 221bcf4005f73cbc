"""Who may come in, and what they may do there."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import bcrypt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase

from rtmb.auth import ANYONE, Authenticator, AuthTable, AuthTableError, Credentials, Rule, User
from rtmb.test.support.users import USER, nkey_text


class RuleTests(SynchronousTestCase):
    """Allow and deny lists."""

    def test_publish(self) -> None:
        """Deny wins over allow, and no allow list allows all."""
        rule = Rule(allow=("a.>", "b"), deny=("a.secret.*",))
        self.assertTrue(rule.may_publish("a.x"))
        self.assertTrue(rule.may_publish("b"))
        self.assertFalse(rule.may_publish("a.secret.x"))
        self.assertTrue(rule.may_publish("a.secret.x.y"))
        self.assertFalse(rule.may_publish("c"))
        self.assertTrue(Rule(deny=("x",)).may_publish("anything"))
        self.assertFalse(Rule(allow=()).may_publish("anything"))

    def test_deny_all_means_the_brokers_own_subjects_too(self) -> None:
        """`>` in a list is everything, although a subscription to it does not get `!system/…`."""
        self.assertFalse(Rule(deny=(">",)).may_publish("!system/events/connect"))
        self.assertTrue(Rule(allow=(">",)).may_subscribe("!system/events/connect", None))

    def test_subscribe_must_be_covered(self) -> None:
        """A pattern is allowed only where an entry covers all of it."""
        rule = Rule(allow=("a.*",))
        self.assertTrue(rule.may_subscribe("a.*", None))
        self.assertTrue(rule.may_subscribe("a.b", None))
        self.assertFalse(rule.may_subscribe("a.>", None))
        self.assertFalse(rule.may_subscribe(">", None))

    def test_wider_than_deny(self) -> None:
        """Wider than a deny list is let in, and what it names is left out."""
        rule = Rule(deny=("a.secret",))
        self.assertTrue(rule.may_subscribe("a.*", None))
        self.assertEqual(rule.hidden("a.*", None), ("a.secret",))
        self.assertEqual(rule.hidden("b.*", None), ())
        self.assertFalse(rule.may_subscribe("a.secret", None))

    def test_queue(self) -> None:
        """An entry with a queue speaks of that queue only."""
        rule = Rule(allow=("work workers",))
        self.assertTrue(rule.may_subscribe("work", "workers"))
        self.assertFalse(rule.may_subscribe("work", None))
        self.assertFalse(rule.may_subscribe("work", "others"))


class TableTests(SynchronousTestCase):
    """The `[auth]` table: what is wrong in it is said in one line."""

    def wrong(self, table: Any) -> str:
        with self.assertRaises(AuthTableError) as caught:
            AuthTable.from_table(table)
        return str(caught.exception)

    def test_mistakes(self) -> None:
        good = {"user": "a", "password": "x"}
        for table, said in (
            ({"usres": []}, "unknown key usres"),
            ({"users": "a"}, "[[auth.users]]"),
            ({"users": [{}]}, "needs user and password, or nkey"),
            ({"users": [{"user": "a"}]}, "needs a password"),
            ({"users": [{"user": "a", "password": 1}]}, "must be text"),
            ({"users": [good, good]}, "a is there twice"),
            ({"users": [{"nkey": "UABC"}]}, "not an nkey"),
            ({"users": [{"nkey": nkey_text(bytes(33))}]}, "begin with U"),
            ({"users": [{**good, "permissions": {"publish": {"allow": "a"}}}]}, "list of patterns"),
            ({"users": [{**good, "permissions": {"publish": {"allow": ["a..b"]}}}]}, "'a..b'"),
            ({"users": [{**good, "permissions": {"publish": {"deny": ["a q"]}}}]}, "'a q'"),
            ({"users": [{**good, "permissions": {"read": {}}}]}, "unknown key read"),
            ({"users": [{**good, "expires": "tomorrow"}]}, "expires must be a time"),
            ({"users": [good], "no_auth_user": "b"}, "no_auth_user"),
            (
                {"users": [{"nkey": nkey_text(bytes([USER]) + bytes(32))}], "no_auth_user": "UAAA"},
                "no_auth_user",
            ),
        ):
            with self.subTest(said=said):
                self.assertIn(said, self.wrong(table))

    def test_guest_cannot_be_an_nkey(self) -> None:
        """A client that says nothing cannot sign."""
        key = nkey_text(bytes([USER]) + bytes(32))
        self.assertIn("no_auth_user", self.wrong({"users": [{"nkey": key}], "no_auth_user": key}))

    def test_time_without_zone_is_utc(self) -> None:
        table = {"users": [{"user": "a", "password": "x", "expires": datetime(2030, 1, 1)}]}
        user = AuthTable.from_table(table).users[0]
        self.assertEqual(user.expires, datetime(2030, 1, 1, tzinfo=UTC))
        self.assertFalse(user.expired(datetime(2029, 12, 31, tzinfo=UTC).timestamp()))
        self.assertTrue(user.expired(datetime(2030, 1, 1, tzinfo=UTC).timestamp()))


class AuthenticatorTests(TestCase):
    """Who is let in with what."""

    def ask(self, authenticator: Authenticator, **said: str) -> Deferred[User | None]:
        return authenticator.authenticate(Credentials(**said))

    async def who(self, authenticator: Authenticator, **said: str) -> str | None:
        user = await self.ask(authenticator, **said)
        return user.name if user is not None else None

    async def test_nothing_set(self) -> None:
        """With no users everyone is welcome, whatever they say."""
        authenticator = Authenticator(AuthTable())
        self.assertFalse(authenticator.required)
        self.assertIs(await self.ask(authenticator), ANYONE)
        self.assertIs(await self.ask(authenticator, user="x", password="y"), ANYONE)

    async def test_plain_password(self) -> None:
        authenticator = Authenticator(AuthTable(), user="a", password="x")
        self.assertTrue(authenticator.required)
        self.assertEqual(await self.who(authenticator, user="a", password="x"), "a")
        for said in (
            {"user": "a", "password": "y"},
            {"user": "a"},
            {"user": "b", "password": "x"},
            {"user": "b"},
            {"token": "x"},
            {"password": "x"},
            {},
        ):
            with self.subTest(said=said):
                self.assertIsNone(await self.who(authenticator, **said))

    async def test_unknown_user_with_no_password(self) -> None:
        """An unknown user has no password, which is not the empty one."""
        guest = {"user": "guest", "password": ""}
        authenticator = Authenticator(AuthTable.from_table({"users": [guest]}))
        self.assertEqual(await self.who(authenticator, user="guest"), "guest")
        self.assertIsNone(await self.who(authenticator, user="stranger"))

    async def test_bcrypt(self) -> None:
        secret = bcrypt.hashpw(b"x", bcrypt.gensalt(4)).decode()
        authenticator = Authenticator(AuthTable(), user="a", password=secret)
        self.assertEqual(await self.who(authenticator, user="a", password="x"), "a")
        self.assertIsNone(await self.who(authenticator, user="a", password="y"))
        self.assertIsNone(await self.who(authenticator, user="a", password=secret))

    async def test_broken_hash(self) -> None:
        """What only looks like a hash lets nobody in."""
        authenticator = Authenticator(AuthTable(), user="a", password="$2b$nonsense")
        self.assertIsNone(await self.who(authenticator, user="a", password="$2b$nonsense"))

    async def test_token(self) -> None:
        """A token may also come as the user, as in nats://token@host."""
        authenticator = Authenticator(AuthTable(), token="t")
        self.assertEqual(await self.who(authenticator, token="t"), "")
        self.assertEqual(await self.who(authenticator, user="t"), "")
        self.assertIsNone(await self.who(authenticator, token="u"))
        self.assertIsNone(await self.who(authenticator, user="t", password="t"))

    async def test_nkey(self) -> None:
        private = Ed25519PrivateKey.generate()
        public = nkey_text(bytes([USER]) + private.public_key().public_bytes_raw())
        authenticator = Authenticator(AuthTable.from_table({"users": [{"nkey": public}]}))
        self.assertTrue(authenticator.nonce_needed)

        def signed(text: str) -> str:
            return base64.urlsafe_b64encode(private.sign(text.encode())).decode().rstrip("=")

        async def who(**said: str) -> str | None:
            return await self.who(authenticator, nkey=public, nonce="n", **said)

        self.assertEqual(await who(signature=signed("n")), public)
        self.assertIsNone(await who(signature=signed("m")))
        self.assertIsNone(await who(signature="!"))
        self.assertIsNone(await who())
        self.assertIsNone(await self.who(authenticator, user=public))

    async def test_guest(self) -> None:
        users = [{"user": "guest", "password": "g"}, {"user": "a", "password": "x"}]
        access = AuthTable.from_table({"users": users, "no_auth_user": "guest"})
        authenticator = Authenticator(access)
        self.assertEqual(await self.who(authenticator), "guest")
        self.assertIsNone(await self.who(authenticator, user="a", password="wrong"))


class ReloadTests(SynchronousTestCase):
    """Who stays when users change."""

    def of(self, *users: dict[str, Any], token: str = "") -> Authenticator:
        return Authenticator(AuthTable.from_table({"users": list(users)}), token=token)

    def let_in(self, authenticator: Authenticator, **said: str) -> User:
        user = self.successResultOf(authenticator.authenticate(Credentials(**said)))
        assert user is not None
        return user

    def test_password_changed_or_user_gone(self) -> None:
        a, b = {"user": "a", "password": "x"}, {"user": "b", "password": "y"}
        user = self.let_in(self.of(a, b), user="a", password="x")
        self.assertEqual(self.of(a).recheck(user), user)
        self.assertIsNone(self.of(b).recheck(user))
        self.assertIsNone(self.of({**a, "password": "z"}, b).recheck(user))

    def test_permissions_are_the_new_ones(self) -> None:
        a = {"user": "a", "password": "x"}
        user = self.let_in(self.of(a), user="a", password="x")
        now = self.of({**a, "permissions": {"publish": {"deny": [">"]}}}).recheck(user)
        assert now is not None
        self.assertFalse(now.publish.may_publish("a"))

    def test_users_appear(self) -> None:
        """Who came in when nothing was asked does not stay when something is."""
        self.assertIsNone(self.of({"user": "a", "password": "x"}).recheck(ANYONE))
        self.assertIs(self.of().recheck(ANYONE), ANYONE)

    def test_token_changed(self) -> None:
        user = self.let_in(self.of(token="t"), token="t")
        self.assertEqual(self.of(token="t").recheck(user), user)
        self.assertIsNone(self.of(token="u").recheck(user))
