"""rtmb: a real-time message broker. One hub in memory, several doors into it."""

__version__ = "0.1.0"
