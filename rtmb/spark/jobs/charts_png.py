"""Charts as PNG, through matplotlib."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from rtmb.spark.jobs.charts import (
    COLOURS,
    Chart,
    amounts,
    moments,
    series_of,
    short,
    starts_at_zero,
)

_ROW = 26
_INK = "#1c2430"
#: Letters in a line of a title of 720 points.
_TITLE = 84


class NoPictureError(ValueError):
    """There is no matplotlib to draw a PNG with."""


def png(chart: Chart, path: str, width: int = 720, height: int = 260) -> None:
    """Draw to a file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise NoPictureError(
            "a PNG needs matplotlib (pip install matplotlib); an .svg needs nothing"
        ) from None
    rows = len(chart.x) * max(1, 0.6 * len(chart.series))
    tall = 60 + rows * _ROW if chart.named else height
    title = textwrap.wrap(" ".join(chart.title.split()), _TITLE, max_lines=2, placeholder=" …")
    figure = Figure(
        figsize=(width / 100, (tall + 90 + 20 * len(title)) / 100), dpi=200, layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    (_bars if chart.named else _lines)(axes, chart)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=8)
    if len(chart.series) > 1:
        columns = min(4, len(chart.series))
        figure.legend(frameon=False, fontsize=8, ncols=columns, loc="outside lower left")
    if title:
        axes.set_title("\n".join(title), loc="left", fontsize=10, fontweight="bold", color=_INK)
    figure.savefig(path, format="png")


def _lines(axes: Any, chart: Chart) -> None:
    xs, series = series_of(chart)
    known = [v for values in series.values() for v in values if v is not None]
    scale = amounts(known, starts_at_zero(known))
    for i, (name, values) in enumerate(series.items()):
        ys = [math.nan if v is None else v for v in values]
        mark = "o" if len(xs) == 1 else None
        axes.plot(xs, ys, color=COLOURS[i % len(COLOURS)], label=name, marker=mark)
    axes.set_ylim(scale.low, scale.high)
    axes.set_yticks(scale.marks, [short(mark) + chart.unit for mark in scale.marks])
    if len(xs) > 1:
        axes.set_xlim(xs[0], xs[-1])
    if chart.over_time:
        found = moments(xs[0], xs[-1])
        axes.set_xticks([m for m, *_ in found], [f"{label}\n{day}" for _, label, day in found])
    axes.set_xlabel(chart.x_name, loc="right", fontsize=8, color=_INK)
    axes.set_ylabel(chart.y_name, fontsize=8, color=_INK)
    axes.grid(axis="y", alpha=0.25)


def _bars(axes: Any, chart: Chart) -> None:
    count = len(chart.series)
    thick = 0.8 / count
    for i, (name, values) in enumerate(chart.series.items()):
        rows = [row + i * thick for row in range(len(values))]
        known = [v or 0 for v in values]
        drawn = axes.barh(rows, known, height=thick, color=COLOURS[i % len(COLOURS)], label=name)
        told = ["–" if v is None else short(v) + chart.unit for v in values]
        axes.bar_label(drawn, told, padding=3, fontsize=7)
    middle = 0.4 - 0.4 / count
    axes.set_yticks([row + middle for row in range(len(chart.x))], [str(x) for x in chart.x])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_ylabel(chart.x_name, fontsize=8, color=_INK)
    axes.set_xlabel(chart.y_name, fontsize=8, color=_INK)
    axes.grid(axis="x", alpha=0.25)
