"""The pytest fixtures. pytest loads this in every test run of whoever has rtmb installed, so it
imports nothing but pytest until a fixture is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from rtmb.testing import BrokerProcess

    _Brokers = list[BrokerProcess]
    _Start = Callable[..., BrokerProcess]

#: The brokers that a test uses, for who wants to know what went over them.
_USED: pytest.StashKey[_Brokers] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "rtmb(**settings): settings of the broker that the fixture rtmb_broker gives"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what went over the brokers of a test that failed."""
    report = yield
    if report.failed:
        brokers: _Brokers = [*item.stash.get(_USED, [])]
        if isinstance(item, pytest.Function) and "rtmb_session_broker" in item.funcargs:
            brokers.append(cast("BrokerProcess", item.funcargs["rtmb_session_broker"]))
        for broker in brokers:
            report.sections.append((f"traffic of {broker.url}", _traffic(broker)))
    return report


def _traffic(broker: BrokerProcess) -> str:
    try:
        return broker.traffic()
    except (ConnectionError, OSError) as error:  # it has ended, perhaps as the test wanted
        return str(error)


def _settings(item: pytest.Item) -> dict[str, Any]:
    """What the markers of a test say; the nearest has the last word."""
    settings: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("rtmb"))):
        if marker.args:
            raise pytest.UsageError(
                f"@pytest.mark.rtmb takes settings by name, such as rtmb(token='x'),"
                f" not {marker.args[0]!r}"
            )
        settings.update(marker.kwargs)
    return settings


@pytest.fixture(scope="session")
def _rtmb_brokers() -> Iterator[_Start]:
    """Brokers by their settings, one for all tests that want the same."""
    from rtmb.testing.process import start_broker

    brokers: dict[str, BrokerProcess] = {}

    def broker(**settings: Any) -> BrokerProcess:
        key = json.dumps(settings, sort_keys=True, default=repr)
        if key in brokers and brokers[key].running:
            brokers[key].reset()
        else:  # the first one, or a test has ended it
            brokers[key] = start_broker(**settings)
        return brokers[key]

    yield broker
    for each in brokers.values():
        each.stop()


@pytest.fixture
def rtmb_broker(request: pytest.FixtureRequest, _rtmb_brokers: _Start) -> BrokerProcess:
    """A broker that is like new: one process for all tests with the same settings, in which each
    test finds no clients and no messages of those before."""
    broker = _rtmb_brokers(**_settings(request.node))
    request.node.stash.setdefault(_USED, []).append(broker)
    return broker


@pytest.fixture(scope="session")
def rtmb_session_broker() -> Iterator[BrokerProcess]:
    """One broker for all tests, for what is started once and connected to it. Nothing in it is
    forgotten between the tests, unless they call its `reset`."""
    from rtmb.testing.process import start_broker

    with start_broker() as broker:
        yield broker


@pytest.fixture
def rtmb_broker_factory(request: pytest.FixtureRequest) -> Iterator[_Start]:
    """Call it with settings for a broker of one's own; as often as needed. All are gone after the
    test."""
    from rtmb.testing.process import start_broker

    started: list[BrokerProcess] = []

    def start(**settings: Any) -> BrokerProcess:
        broker = start_broker(**settings)
        started.append(broker)
        request.node.stash.setdefault(_USED, []).append(broker)
        return broker

    yield start
    for broker in started:
        broker.stop()
