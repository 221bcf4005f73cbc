"""Charts: lines over time or numbers, bars for names. As SVG by hand, as PNG through matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import escape
from typing import Any

#: Told apart by most eyes, in this order; the ninth series begins again.
COLOURS = (
    "#2a78d6", "#1baf7a", "#eda100", "#e34948", "#6a5acd", "#e87ba4", "#008300", "#eb6834",
)  # fmt: skip

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_ROW = 26
#: About how wide a letter is: nobody measures text here.
_LETTER = 7.2
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
    #: Whether the series add up: lines are then areas on top of each other.
    stacked: bool = False

    @property
    def named(self) -> bool:
        return not all(isinstance(x, (datetime, int, float)) for x in self.x)


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
    return Chart(x, {columns[i]: [row[i] for row in table] for i in numeric}, title)


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
    """Round numbers from at most `low` to at least `high`.

    >>> ticks(0, 87)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(round(i * step, 12)) for i in range(first, last + 1)]


def _time_ticks(low: float, high: float, count: int = 7) -> list[tuple[float, str]]:
    span = max(high - low, 1e-3)
    step = next((s for s in _STEPS if span / s <= count), None)
    if step is None:
        step = _DAY * math.ceil(span / _DAY / count)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < _DAY else "%d %b"
    first = math.ceil(low / step) * step
    found: list[float] = [first + i * step for i in range(int((high - first) // step) + 1)]
    return [(t, datetime.fromtimestamp(t, UTC).strftime(form)) for t in found or [low]]


# SVG


def svg(chart: Chart, width: int = 720, height: int = 260, margin: int = 0) -> str:
    """A picture that stands alone, or in a page, whose colour of text it takes."""
    body, height = _bars(chart, width) if chart.named else _lines(chart, width, height)
    if chart.title:
        body = (
            f'<text x="0" y="-12" font-size="14" font-weight="600">{escape(chart.title)}</text>'
            + body
        )
    top = (32 if chart.title else 8) + margin
    whole, tall = width + 2 * margin, height + top + margin
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-margin} {-top} {whole} {tall}"'
        f' width="{whole}" height="{tall}" role="img" font-family="{_FONT}" font-size="12"'
        f' fill="currentColor" style="max-width:100%;height:auto">{body}</svg>'
    )


def _legend(names: Sequence[str], width: int) -> tuple[str, int]:
    """The names of the series, in lines as wide as the chart; and how high that is."""
    if len(names) < 2:
        return "", 0
    parts, x, y = [], 0.0, 10
    for i, name in enumerate(names):
        shown = name if len(name) <= 40 else name[:39] + "…"
        wide = 26 + len(shown) * _LETTER
        if x and x + wide > width:
            x, y = 0.0, y + 20
        parts.append(
            f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" rx="2"'
            f' fill="{COLOURS[i % len(COLOURS)]}"/>'
            f'<text x="{x + 15:.0f}" y="{y}" opacity=".8">{escape(shown)}</text>'
        )
        x += wide
    return "".join(parts), y + 14


def _lines(chart: Chart, width: int, height: int) -> tuple[str, int]:
    moments = bool(chart.x) and isinstance(chart.x[0], datetime)
    xs = [x.timestamp() if isinstance(x, datetime) else float(x) for x in chart.x]
    order = sorted(range(len(xs)), key=xs.__getitem__)
    xs = [xs[i] for i in order]
    series = {name: [values[i] for i in order] for name, values in chart.series.items()}
    bases: dict[str, list[float]] = {}
    if chart.stacked:
        below = [0.0] * len(xs)
        for name, values in series.items():
            bases[name] = below
            below = [b + (v or 0.0) for b, v in zip(below, values, strict=True)]
            series[name] = list(below)
    known = [v for values in series.values() for v in values if v is not None] or [0.0]
    marks = ticks(min(0.0, *known) if min(known) < max(known) * 0.5 or chart.stacked
                  else min(known), max(known))  # fmt: skip
    legend, offset = _legend(list(series), width)
    labels = [short(m) + chart.unit for m in marks]
    left = max(len(label) for label in labels) * _LETTER + 8
    x0, x1 = (xs[0], xs[-1]) if xs else (0.0, 1.0)
    span = (x1 - x0) or 1.0

    def across(x: float) -> float:
        return round(left + (x - x0) / span * (width - left - 12), 1)

    def down(y: float) -> float:
        return round(offset + height - (y - marks[0]) / (marks[-1] - marks[0]) * height, 1)

    parts = [legend]
    for mark, label in zip(marks, labels, strict=True):
        parts.append(
            f'<line x1="{left:.0f}" x2="{width}" y1="{down(mark)}" y2="{down(mark)}"'
            f' stroke="currentColor" stroke-opacity="{0.35 if mark == marks[0] else 0.12}"/>'
            f'<text x="{left - 8:.0f}" y="{down(mark) + 4}" text-anchor="end" opacity=".65">'
            f"{escape(label)}</text>"
        )
    most = max(2, int(width // 100))
    named = _time_ticks(x0, x1, most) if moments else [(t, short(t)) for t in ticks(x0, x1, most)]
    for x, label in named:
        if x0 <= x <= x1 and across(x) + len(label) * _LETTER / 2 <= width:
            parts.append(
                f'<text x="{across(x)}" y="{offset + height + 18}" text-anchor="middle"'
                f' opacity=".65">{escape(label)}</text>'
            )
    drawn = []
    for i, (name, values) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        for run in _runs(values):
            points = [(across(xs[j]), down(values[j] or 0.0)) for j in run]
            path = "M" + "L".join(f"{x},{y}" for x, y in points)
            if chart.stacked:
                back = [(across(xs[j]), down(bases[name][j])) for j in reversed(run)]
                path += "L" + "L".join(f"{x},{y}" for x, y in back) + "Z"
                look = f'fill="{colour}" fill-opacity=".85"'
            else:
                look = f'fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"'
            drawn.append(f'<path d="{path}" {look}><title>{escape(name)}</title></path>')
            if len(points) == 1:
                x, y = points[0]
                drawn.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
    return "".join(parts + drawn), offset + height + 28


def _runs(values: Sequence[Number | None]) -> list[list[int]]:
    """The indices of values that follow each other without a gap."""
    runs: list[list[int]] = [[]]
    for i, value in enumerate(values):
        if value is not None:
            runs[-1].append(i)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _bars(chart: Chart, width: int) -> tuple[str, int]:
    """A row for each name, a bar for each series."""
    legend, y = _legend(list(chart.series), width)
    names = [str(x) for x in chart.x]
    shown = [n if len(n) <= 36 else n[:35] + "…" for n in names]
    left = max(map(len, shown), default=0) * _LETTER + 18
    values = [v for s in chart.series.values() for v in s if v is not None]
    most = max([abs(v) for v in values] or [1]) or 1
    room = width - left - 70
    parts = [legend]
    thick = min(16, _ROW - 10) if len(chart.series) == 1 else 10
    for row, name in enumerate(names):
        height = max(_ROW, len(chart.series) * (thick + 2) + 10)
        middle = y + height / 2
        parts.append(
            f'<text x="{left - 10:.0f}" y="{middle + 4:.1f}" text-anchor="end">'
            f"{escape(shown[row])}<title>{escape(name)}</title></text>"
        )
        at = middle - len(chart.series) * (thick + 2) / 2 + 1
        for i, column in enumerate(chart.series.values()):
            value = column[row]
            long = max(1.0, abs(value or 0.0) / most * room)
            parts.append(
                f'<rect x="{left:.0f}" y="{at:.1f}" width="{long:.1f}" height="{thick}" rx="3"'
                f' fill="{COLOURS[i % len(COLOURS)]}"/>'
                f'<text x="{left + long + 6:.1f}" y="{at + thick / 2 + 4:.1f}" opacity=".75"'
                f' font-size="11">{_label(value, chart.unit)}</text>'
            )
            at += thick + 2
        y += height
    return "".join(parts), y + 4


def _label(value: Number | None, unit: str) -> str:
    return "–" if value is None else escape(short(value) + unit)


# PNG


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
    tall = height if not chart.named else 60 + len(chart.x) * _ROW
    figure = Figure(figsize=(width / 100, (tall + 80) / 100), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, (name, values) in enumerate(chart.series.items()):
        colour = COLOURS[i % len(COLOURS)]
        known = [math.nan if v is None else v for v in values]
        if chart.named:
            thick = 0.8 / len(chart.series)
            rows = [row + i * thick for row in range(len(known))]
            axes.barh(rows, known, height=thick, color=colour, label=name)
        else:
            axes.plot(list(chart.x), known, color=colour, label=name)
    if chart.named:
        middle = 0.4 - 0.4 / len(chart.series)
        axes.set_yticks([row + middle for row in range(len(chart.x))], [str(x) for x in chart.x])
        axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x" if chart.named else "y", alpha=0.25)
    if len(chart.series) > 1:
        axes.legend(frameon=False)
    if chart.title:
        axes.set_title(chart.title, loc="left")
    figure.savefig(path, format="png")


def save(chart: Chart, path: str) -> None:
    """Draw to a file whose name says how: `.svg` or `.png`."""
    if path.endswith(".png"):
        png(chart, path)
    elif path.endswith(".svg"):
        with open(path, "w", encoding="utf-8") as file:
            # Alone, it needs a ground to stand on.
            file.write(
                svg(chart, margin=16).replace('style="', 'style="color:#1c2430;background:#fff;', 1)
            )
    else:
        raise ValueError(f"a chart's name ends in .svg or .png: {path}")


def spread(low: datetime, high: datetime, most: int = 240) -> timedelta:
    """A round width for the buckets of a chart over a period: at most so many of them."""
    span = max((high - low).total_seconds(), 1.0)
    step = next((s for s in (*_STEPS, _DAY) if span / s <= most), math.ceil(span / most))
    return timedelta(seconds=step)
