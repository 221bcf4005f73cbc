"""Servers to measure beside, written as a user would write them."""
