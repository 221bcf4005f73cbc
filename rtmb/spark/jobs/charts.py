"""Charts: lines over time or numbers, bars for names; what is drawn of a table, and its scales.

`charts_svg` and `charts_png` draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

#: Told apart by most eyes, in this order; the ninth series begins again.
COLOURS = (
    "#2a78d6", "#1baf7a", "#eda100", "#e34948", "#6a5acd", "#e87ba4", "#008300", "#eb6834",
)  # fmt: skip

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY = 86_400

Number = int | float


@dataclass(frozen=True)
class Chart:
    """Values of each series at each x: a moment, a number or a name. None is a gap."""

    x: Sequence[Any]
    series: dict[str, Sequence[Number | None]]
    title: str = ""
    unit: str = ""
    #: What the axes are called, where what is around the chart does not say it.
    x_name: str = ""
    y_name: str = ""
    #: Whether the series add up: lines are then areas on top of each other.
    stacked: bool = False

    @property
    def named(self) -> bool:
        return not all(isinstance(x, (datetime, int, float)) for x in self.x)

    @property
    def over_time(self) -> bool:
        return bool(self.x) and isinstance(self.x[0], datetime)


def chart_of(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> Chart:
    """The chart of a table: its first column against all the others that are numbers."""
    if not rows:
        raise ValueError("there are no rows to draw")
    table = [[float(v) if isinstance(v, Decimal) else v for v in row] for row in rows]
    numeric = [
        i
        for i in range(1, len(columns))
        if all(row[i] is None or _is_number(row[i]) for row in table)
    ]
    if not numeric:
        raise ValueError("a chart needs a column for x and then at least one column of numbers")
    x = [row[0] if isinstance(row[0], datetime) or _is_number(row[0]) else str(row[0])
         for row in table]  # fmt: skip
    series: dict[str, Sequence[Number | None]] = {
        columns[i]: [row[i] for row in table] for i in numeric
    }
    only = columns[numeric[0]] if len(numeric) == 1 else ""
    chart = Chart(x, series, title, x_name=columns[0], y_name=only)
    return replace(chart, x_name=f"{columns[0]} (UTC)") if chart.over_time else chart


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def short(value: float) -> str:
    """A number as people say it: 1234567 is 1.23M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`.

    >>> ticks(0, 87)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(round(i * step, 12)) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Scale:
    """An axis of values: from where to where, and what is marked on it."""

    low: float
    high: float
    marks: list[float]


def amounts(values: Sequence[Number], zero: bool = True) -> Scale:
    """The scale of some values. Amounts begin at zero: a curve that does not says more than there
    is; with `zero` false, values far from zero need not. A little room is left at the top, and no
    more."""
    low, high = (min(values), max(values)) if values else (0, 0)
    if zero or low < high * 0.5:
        low = min(0, low)
    if high <= low:
        high = low + (abs(low) or 1)
    room = (high - low) * 0.04
    below = room if low and low == min(values, default=0) else 0
    return Scale(low - below, high + room, ticks(low - below, high + room))


def starts_at_zero(values: Sequence[Number | None]) -> bool:
    """Whether values are amounts: whole numbers are counts of something."""
    return all(v is None or float(v).is_integer() for v in values)


def moments(low: float, high: float, count: int = 7) -> list[tuple[float, str, str]]:
    """Marks on an axis of time: where, the time of day, and the day where it is another than that
    of the mark before."""
    found, before = [], ""
    for moment, label in _time_ticks(low, high, count):
        when = datetime.fromtimestamp(moment, UTC)
        day = f"{when.day} {when:%b %Y}"
        told = day == before
        found.append((moment, label, "" if told else day))
        before = day
    return found


def _time_ticks(low: float, high: float, count: int = 7) -> list[tuple[float, str]]:
    span = max(high - low, 1e-3)
    step = next((s for s in _STEPS if span / s <= count), None)
    if step is None:
        step = _DAY * math.ceil(span / _DAY / count)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < _DAY else "%-d %b"
    first = math.ceil(low / step) * step
    found: list[float] = [first + i * step for i in range(int((high - first) // step) + 1)]
    return [(t, datetime.fromtimestamp(t, UTC).strftime(form)) for t in found or [low]]


def series_of(chart: Chart) -> tuple[list[float], dict[str, list[Number | None]]]:
    """The chart's points from left to right, times as seconds."""
    xs = [x.timestamp() if isinstance(x, datetime) else float(x) for x in chart.x]
    order = sorted(range(len(xs)), key=xs.__getitem__)
    series = {name: [values[i] for i in order] for name, values in chart.series.items()}
    return [xs[i] for i in order], series


def save(chart: Chart, path: str) -> None:
    """Draw to a file whose name says how: `.svg` or `.png`."""
    if path.endswith(".png"):
        from rtmb.spark.jobs.charts_png import png

        png(chart, path)
    elif path.endswith(".svg"):
        from rtmb.spark.jobs.charts_svg import alone

        with open(path, "w", encoding="utf-8") as file:
            file.write(alone(chart))
    else:
        raise ValueError(f"a chart's name ends in .svg or .png: {path}")


def spread(low: datetime, high: datetime, most: int = 240) -> timedelta:
    """A round width for the buckets of a chart over a period: at most so many of them."""
    span = max((high - low).total_seconds(), 1.0)
    step = next((s for s in (*_STEPS, _DAY) if span / s <= most), math.ceil(span / most))
    return timedelta(seconds=step)
