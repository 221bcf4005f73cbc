"""Throughput, latency and growth of rtmb beside nats-server: `python -m benchmarks --help`."""
