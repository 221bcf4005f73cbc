"""Jobs on Spark that give the broker a past: archive, rollup, query, replay and report.

Each is a module with functions to call from a program of your own; `rtmb pipeline` and
`spark-submit` run the same functions (`rtmb.cli.pipeline`). docs/pipeline.md is the manual.
"""
