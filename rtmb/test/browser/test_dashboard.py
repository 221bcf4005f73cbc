"""The live page in a real browser: headless Chromium, driven as a person would use it."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtmb.test.support.processes import (
    PATIENCE,
    BrokerProcess,
    RawClient,
    WithProcesses,
    need,
    slow,
)

try:
    from selenium import webdriver
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.remote.webelement import WebElement
except ImportError:  # the tests say so
    webdriver = None  # type: ignore[assignment]

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


class PageCase(WithProcesses):
    """A browser, and what can be done with the page in it."""

    #: Whether the browser's console may have errors in it.
    quiet = True
    api_key = ""

    def setUp(self) -> None:
        slow(self)
        need(self, webdriver and CHROMIUM and DRIVER, "no Chromium, chromedriver or selenium")
        profile = Path(tempfile.mkdtemp(prefix="chromium-"))
        self.addCleanup(shutil.rmtree, profile, ignore_errors=True)
        options = Options()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.browser = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        self.addCleanup(self.browser.quit)

    def tearDown(self) -> None:
        if self.quiet:
            log = [e["message"] for e in self.browser.get_log("browser") if e["level"] == "SEVERE"]
            self.assertEqual(log, [], "nothing is refused by the page's policy, and nothing fails")

    def open(self, broker: BrokerProcess) -> None:
        self.browser.get(f"http://127.0.0.1:{broker.http_port}/")

    def live(self) -> None:
        self.shows("state", "Live")

    def element(self, name: str) -> WebElement:
        return self.browser.find_element(By.ID, name)

    def text(self, name: str) -> str:
        return str(self.browser.execute_script(
            "return document.getElementById(arguments[0]).textContent", name
        ))  # fmt: skip

    def until(self, there: Callable[[], Any], what: object) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                found = there()
            except StaleElementReferenceException:
                found = None
            if found:
                return found
            if time.monotonic() > deadline:
                self.fail(f"not seen: {what}")
            time.sleep(0.05)

    def shows(self, name: str, pattern: str) -> re.Match[str]:
        """Wait until the element with that id shows what matches."""
        found: re.Match[str] = self.until(
            lambda: re.search(pattern, self.text(name), re.DOTALL), f"{pattern!r} in #{name}"
        )
        return found

    def fill(self, name: str, text: str) -> None:
        element = self.element(name)
        element.clear()
        element.send_keys(text)

    def receivers(self, broker: BrokerProcess, subject: str) -> int:
        """How many would get a message."""
        query = urllib.parse.urlencode({"test": subject, "api_key": self.api_key})
        url = f"http://127.0.0.1:{broker.http_port}/subsz?{query}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return int(json.load(answer)["total"])

    def watch(self, pattern: str, broker: BrokerProcess) -> None:
        """Watch a pattern, and wait until the broker knows."""
        self.fill("pattern", pattern + Keys.ENTER)
        subject = re.sub(r"[*>]", "x", pattern)
        self.until(lambda: self.receivers(broker, subject), f"a subscription to {pattern}")


class MessageTests(PageCase):
    def test_publish_and_watch(self) -> None:
        broker = self.start()
        self.open(broker)
        self.live()
        self.watch("greetings.*", broker)
        other = self.client(broker)
        other.subscribe("greetings.web")

        self.fill("subject", "greetings.web")
        self.element("payload").send_keys('{"hello":"wörld","list":[1,true,null]}')
        self.element("payload").send_keys(Keys.CONTROL, Keys.ENTER)
        self.shows("published", "Published on greetings.web")
        sent = '{"hello":"wörld","list":[1,true,null]}'.encode()
        other.read_until(b"MSG greetings.web 1 %d\r\n%b\r\n" % (len(sent), sent))
        self.shows("stream", r'\{\n  "hello": "wörld",\n  "list": \[1, true, null\]\n\}')

        other.publish("greetings.nats", b"plain words")
        self.shows("stream", "greetings.nats.*plain words")
        self.shows("sampling", "^2 received")

    def test_messages_are_never_html(self) -> None:
        broker = self.start()
        self.open(broker)
        self.live()
        self.watch("x.>", broker)
        evil = "<img src=x onerror=\"document.title='caught'\"><b>bold</b>"
        client = self.client(broker)
        client.publish("x.<i>.a", evil.encode())
        client.publish("x.json", ('{"<b>": "' + evil.replace('"', "'") + '"}').encode())
        self.shows("stream", "<b>bold</b>.*<i>")
        self.shows("topics", "<img src=x")
        self.until(lambda: len(self.browser.find_elements(By.CSS_SELECTOR, "#stream li")) == 2, 2)
        found = self.browser.find_elements(
            By.CSS_SELECTOR, "main img, main b:not(.empty b), main i"
        )
        self.assertEqual(found, [])
        self.assertNotEqual(self.browser.title, "caught")

    def test_pause_clear_and_stop(self) -> None:
        broker = self.start()
        self.open(broker)
        self.live()
        self.watch("a", broker)
        client = self.client(broker)
        self.element("pause").click()
        client.publish("a", b"unseen")
        self.shows("sampling", "^1 received · paused")
        self.element("pause").click()
        client.publish("a", b"seen")
        self.shows("stream", "seen")
        self.assertNotIn("unseen", self.text("stream"))
        self.element("clear").click()
        self.assertEqual((self.text("stream"), self.text("sampling")), ("", "0 received"))
        self.element("watch-go").click()
        self.shows("watch-go", "Watch")
        self.until(lambda: not self.receivers(broker, "a"), "the end of the subscription")

    def test_a_bad_pattern_is_told(self) -> None:
        broker = self.start()
        self.open(broker)
        self.live()
        self.fill("pattern", "a..b" + Keys.ENTER)
        self.shows("sampling", "a..b")
        self.shows("watch-go", "Watch")

    def test_ten_thousand_a_second(self) -> None:
        """It says that it samples, and stays smooth."""
        broker = self.start()
        self.open(broker)
        self.live()
        self.watch("load.*", broker)
        enough = threading.Event()
        client = self.client(broker)
        batch = b"".join(
            b'PUB load.%d 10\r\n{"n": %3d}\r\n' % (i % 10, i % 1000) for i in range(500)
        )

        def publish() -> None:
            while not enough.wait(0.05):
                client.send(batch)

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            found = self.until(
                lambda: self._much(self.text("sampling")), "showing 50 of thousands a second"
            )
            frames = self.browser.execute_async_script("""
                const done = arguments[0], until = performance.now() + 1000;
                let frames = 0;
                const next = (now) => { frames += 1; now < until ? requestAnimationFrame(next) : done(frames); };
                requestAnimationFrame(next);
            """)  # noqa: E501
        finally:
            enough.set()
            publisher.join()
        self.assertLessEqual(found, 60)
        self.assertGreater(frames, 15, "frames in a second")
        self.assertLessEqual(len(self.browser.find_elements(By.CSS_SELECTOR, "#stream li")), 150)
        self.shows("in-msgs", r"^\d")

    def _much(self, text: str) -> int:
        """How many are shown, once they are some of thousands."""
        found = re.match(r"showing (\d+) of ([\d,]+) a second", text)
        return int(found[1]) if found and int(found[2].replace(",", "")) > 3000 else 0


class AroundTests(PageCase):
    """Connections, topics, events, keys."""

    def test_kick(self) -> None:
        broker = self.start()
        self.open(broker)
        client = self.client(broker)
        client.connect(name="guest")
        client.subscribe("a.b")
        self.shows("connections", "guest")
        self.row("guest", ".open").click()
        self.shows("detail-patterns", "a.b")
        self.element("detail-close").click()
        self.row("guest", ".kick").click()
        self.until(lambda: self.row("guest", ".kick").text == "Sure?", "a question")
        client.settle()  # not yet
        self.row("guest", ".kick").click()
        self.assertEqual(client.read_to_end(), b"")
        self.shows("feed", r"gone.*guest.*kicked by 127\.0\.0\.1")
        broker.expect_log(r"disconnected: kicked by 127\.0\.0\.1")
        self.until(lambda: "guest" not in self.text("connections"), "a row less")

    def row(self, name: str, part: str) -> WebElement:
        rows = self.browser.find_elements(By.CSS_SELECTOR, "#connections tr")
        found = [r for r in rows if name in r.text]
        self.assertEqual(len(found), 1)
        return found[0].find_element(By.CSS_SELECTOR, part)

    def test_topics_and_their_history(self) -> None:
        broker = self.start()
        client = self.client(broker)
        for n in range(3):
            client.publish("weather.oslo", b'{"t": %d}' % n)
        client.publish("other", b"x")
        self.open(broker)
        self.shows("topics", 'weather.oslo.*{"t": 2}')
        self.fill("filter", "weather")
        self.until(lambda: "other" not in self.text("topics"), "only what the filter lets by")
        self.browser.find_element(By.CSS_SELECTOR, "#topics .open").click()
        self.shows("detail-list", r'"t": 2.*"t": 1.*"t": 0')
        self.element("detail-publish").click()
        self.assertEqual(self.element("subject").get_attribute("value"), "weather.oslo")

    def test_readers_of_the_journal(self) -> None:
        with BrokerProcess("--journal", "orders") as broker, RawClient(broker.port) as client:
            self.open(broker)
            self.live()
            self.assertFalse(self.element("readers-card").is_displayed())
            client.connect()
            client.send(b"PUB orders 2\r\nhi\r\n" * 30)
            client.settle()
            url = f"http://127.0.0.1:{broker.http_port}/journal/leases/archive"
            body = b'{"position": 11, "ttl": 600}'
            urllib.request.urlopen(urllib.request.Request(url, body, method="PUT")).close()
            self.shows("readers", "archive.*20")
            self.shows("readers-note", "30 messages")
            self.assertTrue(self.element("readers-card").is_displayed())

    def test_slow_consumers_are_told(self) -> None:
        broker = self.start("--max-pending", "64KiB", "--max-payload", "32KiB")
        self.open(broker)
        self.live()
        self.shows("feed", "connected")  # the page itself: it follows the events
        slow = self.client(broker, receive_buffer=4096)
        slow.subscribe("much")
        publisher = self.client(broker)
        publisher.send(b"PUB much 1000\r\n%b\r\n" % (b"x" * 1000) * 20_000)
        self.shows("feed", "slow.*waiting, close")
        self.shows("n-slow", "^1$")
        self.element("problems").click()
        kinds = [e.text for e in self.browser.find_elements(By.CSS_SELECTOR, "#feed .badge")]
        self.assertEqual({k for k in kinds if k}, {"slow"})

    def test_keys_and_themes(self) -> None:
        broker = self.start()
        self.open(broker)
        self.live()
        body = self.browser.find_element(By.TAG_NAME, "body")
        before = self.theme()
        body.send_keys("t")
        self.assertNotEqual(self.theme(), before)
        self.browser.refresh()
        self.assertNotEqual(self.theme(), before, "remembered")
        body = self.browser.find_element(By.TAG_NAME, "body")
        body.send_keys("?")
        self.assertTrue(self.element("keys").get_attribute("open"))
        self.element("keys-close").click()
        for key, name in {"/": "pattern", "p": "subject", "f": "filter"}.items():
            body.send_keys(key)
            focus = self.browser.switch_to.active_element
            self.assertEqual(focus.get_attribute("id"), name)
            focus.send_keys(Keys.ESCAPE)
        self.element("pattern").send_keys("t?")
        self.assertEqual(self.element("pattern").get_attribute("value"), "t?")

    def theme(self) -> object:
        return self.browser.execute_script("return document.documentElement.dataset.theme")

    def test_on_a_phone(self) -> None:
        broker = self.start()
        self.client(broker).publish("a." + "long" * 40, b"x" * 500)
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
        )
        self.open(broker)
        self.shows("topics", "longlong")
        width = self.browser.execute_script("return document.documentElement.scrollWidth")
        self.assertEqual(width, 360, "nothing sticks out")

    def test_everything_has_a_name(self) -> None:
        """What can be pressed or filled in is told to those who do not see it."""
        broker = self.start()
        self.client(broker).publish("a", b"x")
        self.open(broker)
        self.shows("topics", "a")
        nameless = [
            e.get_attribute("outerHTML")
            for e in self.browser.find_elements(By.CSS_SELECTOR, "button, input, textarea, canvas")
            if e.is_displayed() and not e.accessible_name
        ]
        self.assertEqual(nameless, [])


class ComingBackTests(PageCase):
    quiet = False  # a broker that is away, and a wrong key, are errors to the console

    def test_the_key_is_asked_for(self) -> None:
        self.api_key = "sesame"
        broker = self.start("--api-key", self.api_key)
        self.open(broker)
        self.until(lambda: self.element("access").get_attribute("open"), "a form")
        self.fill("key", "parsley" + Keys.ENTER)
        self.shows("access-note", "not right")
        self.fill("key", self.api_key + Keys.ENTER)
        self.live()
        self.assertFalse(self.element("access").get_attribute("open"))
        self.watch("a.*", broker)
        self.fill("subject", "a.b")
        self.element("publish-go").click()
        self.shows("published", "Published")
        self.shows("stream", "a.b")
        self.browser.refresh()
        self.live()

    def test_the_broker_restarts(self) -> None:
        broker = self.start()
        self.open(broker)
        self.live()
        self.watch("a.*", broker)
        broker.kill()
        self.shows("state", "Away")
        again = self.start("--http-port", str(broker.http_port))
        self.live()
        self.until(lambda: self.receivers(again, "a.b"), "what was watched before")
        self.client(again).publish("a.b", b"welcome back")
        self.shows("stream", "welcome back")
        self.shows("feed", "connected")
