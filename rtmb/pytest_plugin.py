"""The pytest fixtures. pytest loads this in every test run of whoever has rtmb installed, so it
imports nothing but pytest until a fixture is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rtmb.testing import BrokerProcess


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "rtmb(**settings): settings of the broker that the fixture rtmb_broker starts"
    )


@pytest.fixture
def rtmb_broker_factory() -> Iterator[Callable[..., BrokerProcess]]:
    """Call it with settings for a broker; as often as needed. All are gone after the test."""
    from rtmb.testing.process import start_broker

    started: list[BrokerProcess] = []

    def start(**settings: Any) -> BrokerProcess:
        started.append(start_broker(**settings))
        return started[-1]

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def rtmb_broker(
    request: pytest.FixtureRequest, rtmb_broker_factory: Callable[..., BrokerProcess]
) -> BrokerProcess:
    """A running broker on free ports, with `url`, `http_url` and `ws_url`."""
    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("rtmb"))):  # the nearest has the say
        settings.update(marker.kwargs)
    return rtmb_broker_factory(**settings)
