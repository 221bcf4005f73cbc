"""rtmb: a real-time message broker. One hub in memory, several doors into it."""

from rtmb import compiled as compiled  # first of all: it says which form of a module is loaded

__version__ = "0.1.0"
