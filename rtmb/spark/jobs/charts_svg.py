"""Charts as SVG, by hand: for a page, whose colours they take, or to stand alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from rtmb.spark.jobs.charts import (
    COLOURS,
    Chart,
    Number,
    Scale,
    amounts,
    moments,
    series_of,
    short,
    starts_at_zero,
    ticks,
)

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_ROW = 26
#: About how wide a letter is: nobody measures text here.
_LETTER = 7.2
#: A title has at most so many lines.
_TITLE_LINES = 2
#: Alone, a chart needs a ground to stand on; it follows the reader's theme.
_ALONE = (
    "<style>svg{color:#1c2430;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#e6eaf0;background:#12161c}}</style>"
)


def svg(chart: Chart, width: int = 720, height: int = 260, margin: int = 0, more: str = "") -> str:
    """A picture for a page, whose colour of text it takes."""
    title, top = _title(chart.title, width)
    legend, below = _legend(list(chart.series), width)
    body, tall = _bars(chart, width) if chart.named else _lines(chart, width, height)
    whole, high = width + 2 * margin, top + below + tall + 2 * margin
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-margin} {-margin} {whole} {high}"'
        f' width="{whole}" height="{high}" role="img" font-family="{_FONT}" font-size="12"'
        f' fill="currentColor" style="max-width:100%;height:auto">{more}{title}'
        f'<g transform="translate(0 {top})">{legend}</g>'
        f'<g transform="translate(0 {top + below})">{body}</g></svg>'
    )


def alone(chart: Chart) -> str:
    """A picture that stands alone, light or dark as its reader likes."""
    return svg(chart, margin=16, more=_ALONE)


def _title(title: str, width: int) -> tuple[str, int]:
    """The title in lines as wide as the chart, and how high they are."""
    if not title:
        return "", 8
    most = int(width / (_LETTER * 1.12))
    lines = textwrap.wrap(" ".join(title.split()), most, max_lines=_TITLE_LINES, placeholder=" …")
    parts = [
        f'<text x="0" y="{14 + 19 * i}" font-size="14" font-weight="600">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    return "".join(parts), 19 * len(lines) + 12


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


def _text(x: float, y: float, text: str, anchor: str = "middle", strength: str = ".65") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" opacity="{strength}">'
        f"{escape(text)}</text>"
    )


# Lines


class _Place(NamedTuple):
    """Where values are on the picture."""

    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: Scale

    def across(self, x: float) -> float:
        low, high = self.x
        return round(self.left + (x - low) / ((high - low) or 1) * (self.right - self.left), 1)

    def down(self, y: float) -> float:
        part = (y - self.y.low) / (self.y.high - self.y.low)
        return round(self.bottom - part * (self.bottom - self.top), 1)


def _lines(chart: Chart, width: int, height: int) -> tuple[str, int]:
    xs, series = series_of(chart)
    bases: dict[str, list[float]] = {}
    if chart.stacked:
        below = [0.0] * len(xs)
        for name, values in series.items():
            bases[name] = below
            below = [b + (v or 0.0) for b, v in zip(below, values, strict=True)]
            series[name] = list(below)
    known = [v for values in series.values() for v in values if v is not None]
    scale = amounts(known, chart.stacked or starts_at_zero(known))
    labels = [short(mark) + chart.unit for mark in scale.marks]
    left = max((len(label) for label in labels), default=1) * _LETTER + 8
    top = 22.0 if chart.y_name else 4.0
    place = _Place(left, width - 12, top, top + height, (xs[0], xs[-1]) if xs else (0, 1), scale)
    parts = [_text(0, 12, chart.y_name, "start")] if chart.y_name else []
    parts += [_mark(place, mark, label) for mark, label in zip(scale.marks, labels, strict=True)]
    below_axis, used = _x_axis(chart, place, width)
    parts.append(below_axis)
    for i, (name, values) in enumerate(series.items()):
        parts += _line(place, xs, values, bases.get(name), name, COLOURS[i % len(COLOURS)])
    return "".join(parts), int(place.bottom + used)


def _mark(place: _Place, mark: float, label: str) -> str:
    y, strength = place.down(mark), 0.35 if mark == 0 else 0.12
    return (
        f'<line x1="{place.left:.0f}" x2="{place.right}" y1="{y}" y2="{y}"'
        f' stroke="currentColor" stroke-opacity="{strength}"/>'
        + _text(place.left - 8, y + 4, label, "end")
    )


def _x_axis(chart: Chart, place: _Place, width: int) -> tuple[str, int]:
    """What is written below the axis, and how high that is."""
    low, high = place.x
    most = max(2, int(width // 100))
    found = (
        moments(low, high, most)
        if chart.over_time
        else [(t, short(t), "") for t in ticks(low, high, most)]
    )
    parts, used = [], 28
    for x, label, day in found:
        at = place.across(x)
        if at + len(label) * _LETTER / 2 > width:
            continue
        parts.append(_text(at, place.bottom + 18, label))
        if day:
            parts.append(_text(max(at, len(day) * _LETTER / 2), place.bottom + 34, day))
            used = 44
    if chart.x_name:
        parts.append(_text(place.right, place.bottom + used + 6, chart.x_name, "end"))
        used += 16
    return "".join(parts), used


def _line(
    place: _Place, xs: Sequence[float], values: Sequence[Number | None],
    base: Sequence[float] | None, name: str, colour: str,
) -> list[str]:  # fmt: skip
    """One series: a line, or an area above a base."""
    drawn = []
    for run in _runs(values):
        points = [(place.across(xs[j]), place.down(values[j] or 0.0)) for j in run]
        path = "M" + "L".join(f"{x},{y}" for x, y in points)
        look = f'fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"'
        if base is not None:
            back = [(place.across(xs[j]), place.down(base[j])) for j in reversed(run)]
            path += "L" + "L".join(f"{x},{y}" for x, y in back) + "Z"
            look = f'fill="{colour}" fill-opacity=".85"'
        drawn.append(f'<path d="{path}" {look}><title>{escape(name)}</title></path>')
        if len(points) == 1:
            x, y = points[0]
            drawn.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
    return drawn


def _runs(values: Sequence[Number | None]) -> list[list[int]]:
    """The indices of values that follow each other without a gap."""
    runs: list[list[int]] = [[]]
    for i, value in enumerate(values):
        if value is not None:
            runs[-1].append(i)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


# Bars


def _bars(chart: Chart, width: int) -> tuple[str, int]:
    """A row for each name, a bar for each series. Bars begin at zero, to either side."""
    names = [str(x) for x in chart.x]
    shown = [n if len(n) <= 36 else n[:35] + "…" for n in names]
    left = max([*map(len, shown), len(chart.x_name)], default=0) * _LETTER + 18
    values = [v for s in chart.series.values() for v in s if v is not None]
    least, most = min([0, *values]), max([0, *values])
    room = (width - left - 70) / ((most - least) or 1)
    zero = left - least * room

    def bar(value: Number | None, y: float, thick: int, colour: str) -> str:
        long = max(1.0 if value else 0.0, abs(value or 0.0) * room)
        begin = zero - long if (value or 0) < 0 else zero
        label = "–" if value is None else short(value) + chart.unit
        return (
            f'<rect x="{begin:.1f}" y="{y:.1f}" width="{long:.1f}" height="{thick}" rx="3"'
            f' fill="{colour}"/>'
            f'<text x="{max(zero, begin + long) + 6:.1f}" y="{y + thick / 2 + 4:.1f}"'
            f' opacity=".75" font-size="11">{escape(label)}</text>'
        )

    parts, y = _bar_names(chart, left)
    thick = min(16, _ROW - 10) if len(chart.series) == 1 else 10
    height = max(_ROW, len(chart.series) * (thick + 2) + 10)
    for row, name in enumerate(names):
        parts.append(
            f'<text x="{left - 10:.0f}" y="{y + height / 2 + 4:.1f}" text-anchor="end">'
            f"{escape(shown[row])}<title>{escape(name)}</title></text>"
        )
        at = y + height / 2 - len(chart.series) * (thick + 2) / 2 + 1
        for i, column in enumerate(chart.series.values()):
            parts.append(bar(column[row], at, thick, COLOURS[i % len(COLOURS)]))
            at += thick + 2
        y += height
    return "".join(parts), int(y + 4)


def _bar_names(chart: Chart, left: float) -> tuple[list[str], float]:
    """What the rows and the bars are of, and how high that is."""
    if not (chart.x_name or chart.y_name):
        return [], 0.0
    return [
        _text(left - 10, 12, chart.x_name, "end"),
        _text(left, 12, chart.y_name, "start"),
    ], 18.0
