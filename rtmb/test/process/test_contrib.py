"""What is in contrib/, as far as neither Kubernetes, Prometheus nor Grafana is needed to try it."""

from __future__ import annotations

import itertools
import json
import re
import time
import tomllib
import unittest
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from prometheus_client.parser import text_string_to_metric_families

import rtmb
from rtmb.config import from_environment, read_table
from rtmb.test.support.processes import PATIENCE, BrokerProcess, RawClient, need

CONTRIB = Path(rtmb.__file__).parents[1] / "contrib"
#: What Prometheus itself adds to what it scrapes.
_ADDED_LABELS = {"instance", "job", "le"}
#: What is not there before it has happened.
_RARE = ("rtmb_slow_consumers", "rtmb_dropped_messages")


def read(test: unittest.TestCase, name: str) -> str:
    path = CONTRIB / name
    need(test, path.is_file(), "contrib/ is no part of what is installed")
    return path.read_text()


class PrometheusTests(unittest.TestCase):
    """Each expression is one, and each metric and label in it is in /metrics."""

    def scrape(self) -> dict[str, set[str]]:
        """The labels of each metric of a broker with a journal, a reader of it, a client that was
        cut off for being slow, and one that messages are left out for."""
        limits = ("--max-pending", "1MiB", "--max-payload", "512KiB", "--ws-queue", "1")
        with BrokerProcess("--journal", ">", *limits, "--ws-stuck", "60") as broker:
            url = f"http://127.0.0.1:{broker.http_port}"
            lease = json.dumps({"position": 1, "ttl": 600}).encode()
            leasing = urllib.request.Request(f"{url}/journal/leases/reader", lease, method="PUT")
            urllib.request.urlopen(leasing).close()
            with (
                RawClient(broker.port, receive_buffer=4096) as slow,
                RawClient(broker.http_port, info=False, receive_buffer=4096) as slower,
                RawClient(broker.port) as fast,
            ):
                slow.connect()
                slow.subscribe("flood")
                slower.send(b"GET /events/flood HTTP/1.1\r\nHost: x\r\n\r\n")
                slower.read_until(b"\r\n\r\n")
                fast.connect()
                end = time.monotonic() + PATIENCE
                text = ""
                while not all(f"\n{name}_total{{" in text for name in _RARE):
                    self.assertLess(time.monotonic(), end)
                    fast.publish("flood", bytes(256 << 10))
                    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as response:
                        text = response.read().decode()
        labels: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text):
            labels.setdefault(family.name, set())
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
        return labels

    def expressions(self) -> Iterator[tuple[str, str]]:
        for group in yaml.safe_load(read(self, "prometheus-alerts.yml"))["groups"]:
            for rule in group["rules"]:
                yield rule["alert"], rule["expr"]
        for panel in json.loads(read(self, "grafana-dashboard.json"))["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "1m")
                yield panel["title"], expression

    def test_metrics_and_labels(self) -> None:
        labels = self.scrape()
        expressions = list(self.expressions())
        self.assertGreater(len(expressions), 20)
        for where, expression in expressions:
            with self.subTest(where=where, expression=expression):
                promql_parser.parse(expression)
                used = set(re.findall(r"\b(?:rtmb|process)_\w+|\bup\b", expression)) - {"up"}
                for name in used:
                    self.assertIn(name, labels)
                there = set().union(*(labels[name] for name in used)) | _ADDED_LABELS
                asked = re.findall(r"\bby \(([^)]*)\)", expression)
                asked += re.findall(r"{(\w+)=~?", expression)
                for label in re.split(r"[,\s]+", " ".join(asked).strip()):
                    self.assertIn(label or "instance", there)

    def test_legends_and_texts_name_labels_that_are_there(self) -> None:
        labels = self.scrape()
        named = {label for each in labels.values() for label in each} | _ADDED_LABELS
        board = read(self, "grafana-dashboard.json")
        rules = read(self, "prometheus-alerts.yml")
        for label in re.findall(r"{{(\w+)}}", board) + re.findall(r"\$labels\.(\w+)", rules):
            self.assertIn(label, named)

    def test_panels_do_not_overlap(self) -> None:
        taken: set[tuple[int, int]] = set()
        panels = json.loads(read(self, "grafana-dashboard.json"))["panels"]
        for panel in panels:
            place = panel["gridPos"]
            columns = range(place["x"], place["x"] + place["w"])
            lines = range(place["y"], place["y"] + place["h"])
            cells = set(itertools.product(columns, lines))
            self.assertTrue(max(x for x, _ in cells) < 24)
            self.assertFalse(taken & cells, panel["title"])
            taken |= cells
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))


class KubernetesTests(unittest.TestCase):
    def setUp(self) -> None:
        objects = list(yaml.safe_load_all(read(self, "kubernetes.yaml")))
        self.objects = {each["kind"]: each for each in objects}
        self.pod = self.objects["Deployment"]["spec"]["template"]
        (self.container,) = self.pod["spec"]["containers"]

    def variables(self) -> dict[str, str]:
        secret = self.objects["Secret"]["stringData"]
        return {
            each["name"]: each["value"]
            if "value" in each
            else secret[each["valueFrom"]["secretKeyRef"]["key"]]
            for each in self.container["env"]
        }

    def test_names_agree(self) -> None:
        selector = self.objects["Deployment"]["spec"]["selector"]["matchLabels"]
        labels = self.pod["metadata"]["labels"]
        self.assertEqual(selector, labels)
        self.assertEqual(self.objects["Service"]["spec"]["selector"], labels)
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        for port in self.objects["Service"]["spec"]["ports"]:
            self.assertEqual(ports[port["targetPort"]], port["port"])
        annotations = self.pod["metadata"]["annotations"]
        self.assertEqual(int(annotations["prometheus.io/port"]), ports["http"])
        volumes = {volume["name"]: volume for volume in self.pod["spec"]["volumes"]}
        for mount in self.container["volumeMounts"]:
            self.assertIn(mount["name"], volumes)
        config = volumes["settings"]["configMap"]["name"]
        self.assertEqual(config, self.objects["ConfigMap"]["metadata"]["name"])

    def test_a_broker_with_these_settings(self) -> None:
        """It starts with the file and the variables, and the probes find it well."""
        variables = self.variables()
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        settings = from_environment({k: v for k, v in variables.items() if k != "RTMB_CONFIG"})
        self.assertEqual(settings["interface"], "0.0.0.0")
        (name,) = self.objects["ConfigMap"]["data"]
        self.assertEqual(Path(variables.pop("RTMB_CONFIG")).name, name)
        file = self.objects["ConfigMap"]["data"][name]
        self.assertTrue(read_table(tomllib.loads(file), name))
        with BrokerProcess(env=variables, config=file) as broker:
            where = {"http": broker.http_port, "nats": broker.port}
            for probe in ("startupProbe", "readinessProbe"):
                asked: dict[str, Any] = self.container[probe]["httpGet"]
                url = f"http://127.0.0.1:{where[asked['port']]}{asked['path']}"
                with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                    self.assertEqual(response.status, 200)
            self.assertIn(self.container["livenessProbe"]["tcpSocket"]["port"], ports)
            with RawClient(where["nats"]) as client:
                self.assertTrue(client.info["auth_required"])

    def test_it_runs_as_nobody(self) -> None:
        self.assertIs(self.pod["spec"]["securityContext"]["runAsNonRoot"], True)
        limits = self.container["securityContext"]
        self.assertIs(limits["allowPrivilegeEscalation"], False)
        self.assertIs(limits["readOnlyRootFilesystem"], True)
        self.assertEqual(limits["capabilities"]["drop"], ["ALL"])
        self.assertEqual(self.objects["Deployment"]["spec"]["replicas"], 1)
