"""By this name Spark finds the source and the sink ``rtmb``; they are in `rtmb.spark`."""

from rtmb.spark.source import RtmbDataSource as DefaultSource

__all__ = ["DefaultSource"]
