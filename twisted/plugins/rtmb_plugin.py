"""Makes ``twistd rtmb`` work."""

from twisted.application.service import ServiceMaker

rtmb = ServiceMaker(
    "rtmb",
    "rtmb.twistd",
    "A real-time message broker: NATS clients, telnet and more on one hub.",
    "rtmb",
)
