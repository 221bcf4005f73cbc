"""How rtmb finds the door: an object that provides IDoor and IPlugin."""

from echo_door import EchoDoor  # type: ignore[import-not-found]  # on the path once installed

echo = EchoDoor()
