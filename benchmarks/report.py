"""The readings of all rounds, as a Markdown table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.measure import Reading


@dataclass
class Row:
    """What one line of the table is made of: for each server the values by round."""

    reading: Reading
    rounds: dict[str, dict[int, float]] = field(default_factory=dict)

    def values(self, name: str) -> list[float]:
        return list(self.rounds.get(name, {}).values())

    def ratios(self, name: str, baseline: str) -> list[float]:
        """One ratio a round: neighbours in time share whatever else the machine was doing.

        Memory may have shrunk meanwhile: to nothing and less than it there is no ratio.
        """
        base = self.rounds.get(baseline, {})
        mine = self.rounds.get(name, {})
        return [value / base[turn] for turn, value in mine.items() if base.get(turn, 0) > 0]


@dataclass
class Report:
    """Collects readings; the last server is the one the others are divided by."""

    servers: Sequence[str]
    versions: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    _rows: dict[str, Row] = field(default_factory=dict)

    def add(self, server: str, turn: int, readings: Iterable[Reading]) -> None:
        for reading in readings:
            row = self._rows.setdefault(reading.label, Row(reading))
            row.rounds.setdefault(server, {})[turn] = reading.value

    def values(self, label: str, server: str) -> list[float]:
        """What one server was read, round by round; nothing where it failed."""
        row = self._rows.get(label)
        return row.values(server) if row else []

    def markdown(self) -> str:
        *others, baseline = self.servers
        head = ["", "unit", *self.servers, *(f"{name}/{baseline}" for name in others)]
        lines = [head, ["---", "---", *("---:" for _ in head[2:])]]
        for label, row in self._rows.items():
            direction = "↓" if row.reading.lower_is_better else "↑"
            cells = [label, f"{row.reading.unit} {direction}"]
            cells += [spread(row.values(name)) for name in self.servers]
            cells += [spread(row.ratios(name, baseline), bold=True) for name in others]
            lines.append(cells)
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = [self._heading(), "", table, "", "Median (least…most). ↑ more is better, ↓ less."]
        return "\n".join([*notes, *(f"- failed: {failure}" for failure in self.failures)])

    def json(self) -> str:
        baseline = self.servers[-1]
        rows: list[dict[str, Any]] = [
            {
                "label": label,
                "unit": row.reading.unit,
                "lower_is_better": row.reading.lower_is_better,
                "values": {name: row.values(name) for name in self.servers},
                "ratios": {name: row.ratios(name, baseline) for name in self.servers[:-1]},
            }
            for label, row in self._rows.items()
        ]
        about = {"machine": machine(), "versions": self.versions, "failures": self.failures}
        return json.dumps({**about, "rows": rows}, indent=2, ensure_ascii=False) + "\n"

    def _heading(self) -> str:
        return ", ".join([*(f"{name} {text}" for name, text in self.versions.items()), machine()])


def machine() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores"


def spread(values: Sequence[float], bold: bool = False) -> str:
    if not values:
        return "-"
    middle = f"**{number(median(values))}**" if bold else number(median(values))
    return f"{middle} ({number(min(values))}…{number(max(values))})" if len(values) > 1 else middle


def number(value: float) -> str:
    """Three digits that matter, which is more than the spread deserves."""
    for size, suffix in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}" if abs(value) < 999.5 * size else f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
