"""The description of the API, and the API as it is described: schemathesis asks for all of it."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok

from rtmb.doors.http.json_socket import Said
from rtmb.test.support.http import HttpTests
from rtmb.test.support.processes import slow
from rtmb.test.support.sockets import WebSocket

#: What does not end by itself, or is no request.
STREAMS = ("/events/{pattern}", "/ws", "/nats", "/journal/wait")
#: What must hold of every answer.
WANTED = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


@schemathesis.serializer("application/vnd.apache.arrow.stream")
def as_it_is(context: Any, value: Any) -> bytes:
    """Bodies that are no Arrow, to see them refused."""
    return value if isinstance(value, bytes) else str(value).encode()


class ApiTests(HttpTests):
    options: ClassVar[tuple[str, ...]] = ("--journal", "kept.>")

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", "/openapi.json").json
        return found

    def test_everything_is_described(self) -> None:
        """Each path and method that is described is known, and each that is known is described."""
        document = self.document()
        self.assertEqual(document["openapi"], "3.1.0")
        for path, item in document["paths"].items():
            allowed = self.ask("OPTIONS", path.replace("{", "").replace("}", "")).headers["allow"]
            known = {method.lower() for method in allowed.split(", ")} - {"head", "options"}
            self.assertEqual(known, item.keys() - {"parameters"}, path)
            for method in known:
                self.assertTrue(item[method]["summary"], (method, path))

    def test_the_page_to_read_it(self) -> None:
        page = self.ask("GET", "/api")
        self.assertEqual(page.headers["content-type"], "text/html; charset=utf-8")
        text = page.body.decode()
        for path in self.document()["paths"]:
            self.assertIn(f"<code>{path}</code>", text)
        self.assertIn("METHOD_NOT_ALLOWED", text)

    def test_it_is_open_to_all(self) -> None:
        for path in ("/openapi.json", "/asyncapi.json", "/api"):
            self.assertEqual(self.ask("GET", path).status, 200)

    def test_what_is_said_over_websocket(self) -> None:
        """All kinds of what the broker says are as /asyncapi.json has them."""
        document = self.ask("GET", "/asyncapi.json").json
        self.assertEqual(document["channels"]["ws"]["address"], "/ws")
        self.assertIn("Command", document["components"]["schemas"])
        with WebSocket(self.port) as socket:
            said = [
                socket.ask(type="ping", request_id=1),
                socket.subscribe("api.a", max_rate=5),
                socket.subscribe("api.b", request_id="r"),
                socket.ask(type="shout"),
            ]
            body = {"payload": 1, "headers": {"a": "b"}, "reply": "c"}
            socket.say(type="publish", topic="api.b", message=body)
            said += [socket.hear(), socket.hear()]
            self.ask("DELETE", "/topics/api.b")
            said.append(socket.hear())
            for i in range(50):
                self.ask("POST", "/publish/api.a", b"%d" % i)
            while "sampled" not in said[-1]:
                said.append(socket.hear())
        for one in said:
            msgspec.convert(one, Said)
        kinds = {one["type"] for one in said}
        self.assertEqual(kinds, {"pong", "ack", "error", "event", "info"})

    def check(self, document: dict[str, Any], *paths: str) -> int:
        """Ask what a description says can be asked, with all kinds of values, and hold the answers
        to it; how many operations there were."""
        load_all_checks()
        checks: list[Any] = [CHECKS.get_one(name) for name in WANTED]
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=f"http://127.0.0.1:{self.port}")
        asked = 0
        for result in schema.get_all_operations():
            assert isinstance(result, Ok)
            operation = result.ok()
            if operation.path in STREAMS or (paths and operation.path not in paths):
                continue
            asked += 1

            @settings(
                max_examples=25,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def ask(case: Case[Any]) -> None:
                answer = case.call(timeout=30)
                self.assertNotEqual(answer.status_code, 500, case.as_curl_command())
                try:
                    case.validate_response(answer, checks=checks)
                except FailureGroup as found:  # which is not an Exception
                    self.fail("\n".join(map(str, found.exceptions)))

            ask()
        return asked

    def test_as_described(self) -> None:
        slow(self)
        self.assertGreater(self.check(self.document()), 30)
        self.assertNotIn("Traceback", self.broker.log())

    def test_a_wrong_description_is_noticed(self) -> None:
        document = self.document()
        vitals = document["components"]["schemas"]["Vitals"]["properties"]
        vitals["uptime_sec"] = {"type": "string"}
        with self.assertRaisesRegex(AssertionError, "uptime_sec"):
            self.check(document, "/health")
