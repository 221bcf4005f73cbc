"""rtmb in Spark: a source that reads the journal, a sink that publishes, and jobs on both.

With rtmb installed, ``spark.readStream.format("rtmb")`` and ``writeStream.format("rtmb")`` work at
once. pyspark is imported by the modules of this package only, Twisted by none of them: they run in
Spark's processes.
"""
