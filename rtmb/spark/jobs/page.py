"""The report's page: one HTML file with all it needs inside, readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from rtmb.spark.jobs.charts import Chart, short
from rtmb.spark.jobs.charts_svg import svg
from rtmb.spark.jobs.report import Facts, Latency, Traffic

_STYLE = """
:root { color-scheme: light dark; --paper: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #5b6675;
  --line: #e3e7ec; --mark: #2a78d6; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --card: #1a2029; --ink: #e6eaf0;
  --soft: #98a3b3; --line: #2c3542; --mark: #5aa2f2; --bad: #ff7a6b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 17px; margin: 0 0 12px; }
p { margin: 0 0 12px; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(125px, 1fr)); gap: 12px;
  margin: 20px 0; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 22px; font-weight: 650; letter-spacing: -.02em;
  white-space: nowrap; }
.tile span { color: var(--soft); font-size: 13px; }
.tile.bad b { color: var(--bad); }
section { padding: 18px 20px; margin: 0 0 16px; overflow-x: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(400px, 1fr)); gap: 16px; }
.pair section { margin: 0; }
.pair { margin-bottom: 16px; }
.pictures { margin: 18px 0 0; }
svg { display: block; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line); }
th, td { padding: 6px 12px 6px 0; }
td { border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.share { display: flex; align-items: center; gap: 8px; white-space: nowrap; min-width: 130px;
  font-variant-numeric: tabular-nums; }
.share i { flex: 0 0 70px; height: 7px; border-radius: 4px; background: var(--line); }
.share i b { display: block; height: 100%; border-radius: 4px; background: var(--mark); }
footer { color: var(--soft); font-size: 13px; }
"""


def page(facts: Facts, title: str = "What the broker carried") -> str:
    """The whole page."""
    period = f"{_moment(facts.since)} to {_moment(facts.until)}, {_length(facts.seconds)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1><p>{period}</p>{_tiles(facts)}{_traffic(facts)}"
        f"{_subjects(facts)}{_talkers(facts)}{_troubles(facts)}{_gaps(facts)}{_latencies(facts)}"
        f"<footer>Made by rtmb on {_moment(datetime.now(UTC))}.</footer></main></body></html>\n"
    )


def _tiles(facts: Facts) -> str:
    peak = max((sum(rates) for rates in zip(*facts.by_door.values(), strict=True)), default=0.0)
    dropped = sum(t.dropped for t in facts.troubles)
    slow = sum(t.slow for t in facts.troubles)
    tiles = [
        (f"{short(facts.messages)}", "messages", ""),
        (_size(facts.bytes), "of payload", ""),
        (f"{short(facts.messages / facts.seconds)}/s", "on average", ""),
        (f"{short(peak)}/s", f"at the peak, over {_length(facts.bucket.total_seconds())}", ""),
        (f"{facts.different:,}", "subjects", ""),
        (f"{slow:,}", "slow consumers", "bad" if slow else ""),
        (f"{short(dropped)}", "messages dropped", "bad" if dropped else ""),
    ]
    made = "".join(
        f'<div class="tile {kind}"><b>{value}</b><span>{name}</span></div>'
        for value, name, kind in tiles
    )
    return f'<div class="tiles">{made}</div>'


def _traffic(facts: Facts) -> str:
    if not facts.messages:
        return _section("Traffic", "<p>No message was published in this period.</p>")
    by_subject = Chart(facts.times, dict(facts.by_subject), unit="/s", stacked=True)
    by_door = Chart(facts.times, dict(facts.by_door), unit="/s")
    totals = Chart([t.name for t in facts.doors], {"messages": [t.messages for t in facts.doors]})
    return (
        _section("Traffic by subject", "<p>Messages a second, one on top of the other.</p>"
                 + svg(by_subject, 1000, 240))
        + '<div class="pair">'
        + _section("Traffic by door", "<p>Messages a second.</p>" + svg(by_door, 470, 160))
        + _section("Messages by door", svg(totals, 470))
        + "</div>"
    )  # fmt: skip


def _subjects(facts: Facts) -> str:
    rows = [
        [t.name, t.door, f"{t.messages:,}", _share(t.messages, facts.messages), _size(t.bytes),
         f"{short(t.messages / facts.seconds)}/s", f"{short(t.peak)}/s"]
        for t in facts.subjects
    ]  # fmt: skip
    head = ["subject", "doors", "#messages", "share", "#payload", "#mean", "#peak"]
    more = facts.different - len(rows)
    note = f"<p>And {more:,} more.</p>" if more > 0 else ""
    return _section("Busiest subjects", _table(head, rows) + note) if rows else ""


def _talkers(facts: Facts) -> str:
    """Who fills the wires: subject and door, by bytes."""

    def row(t: Traffic) -> list[str]:
        mean = t.bytes / t.messages if t.messages else 0
        return [
            t.name,
            t.door,
            _size(t.bytes),
            _share(t.bytes, facts.bytes),
            f"{t.messages:,}",
            _size(mean),
        ]

    head = ["subject", "door", "#payload", "share", "#messages", "#mean size"]
    rows = [row(t) for t in facts.talkers[:10]]
    return _section("Top talkers, by bytes", _table(head, rows)) if rows else ""


def _troubles(facts: Facts) -> str:
    if not facts.troubles:
        heard = sum(facts.events.values())
        told = (
            f"Everyone kept up; {heard:,} other events were told."
            if heard
            else "No one is told of. That is so, too, where !system/events/slow_consumer and"
            " !system/events/drop are not in the journal."
        )
        return _section("Slow consumers and drops", f"<p>{told}</p>")
    rows = [
        [t.client, t.door, f"{t.slow:,}", f"{t.dropped:,}", ", ".join(sorted(t.policies)) or "–",
         ", ".join(sorted(t.subjects)[:5]), _moment(datetime.fromtimestamp(t.last, UTC))]
        for t in facts.troubles[:20]
    ]  # fmt: skip
    head = ["client", "door", "#slow", "#dropped", "what was done", "on", "last"]
    picture = ""
    if any(facts.drops):
        chart = Chart(facts.times, {"dropped": facts.drops})
        length = _length(facts.bucket.total_seconds())
        picture = f"<p>Messages dropped in each {length}.</p>" + svg(chart, 1000, 120)
    return _section("Slow consumers and drops", picture + _table(head, rows))


def _gaps(facts: Facts) -> str:
    rows = [
        [
            str(gap["from"]),
            str(gap["to"] or "its end"),
            str(gap["count"] or "unknown"),
            gap["cause"],
        ]
        for gap in facts.gaps
    ]
    head = ["#from", "#to", "#messages", "why"]
    note = "<p>Numbers of the journal that never reached the archive.</p>"
    return _section("Gaps in the archive", note + _table(head, rows)) if rows else ""


def _latencies(facts: Facts) -> str:
    if not facts.latencies:
        return _section(
            "Latency",
            "<p>Nothing to measure it by: no request whose answer is here too, and no field with"
            " the time of sending was named (--sent-field).</p>",
        )
    rows = [
        [t.name, f"{t.count:,}", *(_milliseconds(v) for v in (t.p50, t.p90, t.p99, t.most))]
        for t in facts.latencies
    ]
    table = _table(["what", "#measured", "#p50", "#p90", "#p99", "#longest"], rows)
    pictures = "".join(map(_histogram, facts.latencies))
    return _section("Latency", f'{table}<div class="pair pictures">{pictures}</div>')


def _histogram(latency: Latency) -> str:
    names = [f"up to {_milliseconds(end)}" for end, _ in latency.spread]
    chart = Chart(names, {"messages": [count for _, count in latency.spread]})
    return f"<div><p>{escape(latency.name)}</p>{svg(chart, 470)}</div>"


# Small parts


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a column whose name begins with # is of numbers. `share` holds HTML already."""
    kinds = [' class="n"' if name.startswith("#") else "" for name in head]
    top = "".join(f"<th{k}>{escape(n.lstrip('#'))}</th>" for n, k in zip(head, kinds, strict=True))
    body = ""
    for row in rows:
        cells = zip(head, kinds, row, strict=True)
        body += "<tr>" + "".join(
            f"<td{k}>{cell if name == 'share' else escape(cell)}</td>" for name, k, cell in cells
        ) + "</tr>"  # fmt: skip
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _share(part: float, whole: float) -> str:
    percent = 100 * part / whole if whole else 0.0
    return f'<span class="share"><i><b style="width:{percent:.1f}%"></b></i>{percent:.1f} %</span>'


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def _milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.3g} ms" if value >= 0.1 else f"{value * 1000:.3g} µs"


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _length(seconds: float) -> str:
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = seconds / size
            return f"{count:.3g} {name}{'' if count == 1 else 's'}"
    return f"{seconds:.3g} second{'' if seconds == 1 else 's'}"
