// Tables: rows stay where they are and only what changed is written

function fill(body, items, name, create, update) {
  const rows = body.rowsByName ??= new Map(), present = new Set();
  let place = body.firstChild;
  for (const item of items) {
    const id = name(item);
    present.add(id);
    let row = rows.get(id);
    if (!row) rows.set(id, row = create(item));
    update(row, item);
    if (row === place) place = place.nextSibling;
    else if (!(row.contains(document.activeElement) && row.isConnected)) body.insertBefore(row, place);
  }
  for (const [id, row] of rows) if (!present.has(id)) { row.remove(); rows.delete(id); }
}

function cells(names) {
  const row = make("tr");
  row.cell = {};
  for (const [name, kind] of names) row.append(row.cell[name] = make("td", kind));
  return row;
}

function count(cell, value, text) {
  say(cell, text ?? short(value));
  cell.classList.toggle("zero", !value);
}

const sorts = { topics: "rate", connections: "cid" };

function sortable(table) {
  const head = $(table + "-head");
  const mark = () => {
    for (const column of head.cells) {
      if (column.dataset.sort !== sorts[table]) column.removeAttribute("aria-sort");
      else column.ariaSort = ["cid", "name"].includes(sorts[table]) ? "ascending" : "descending";
    }
  };
  head.addEventListener("click", (e) => {
    const column = e.target.closest("button") && e.target.closest("th");
    if (!column) return;
    sorts[table] = column.dataset.sort;
    mark();
    poll();
  });
  mark();
}

const smooth = new Map();
let ranks = new Map();

function steady(topics) {  // by rate, but two change places only when they clearly differ
  for (const t of topics) smooth.set(t.name, (smooth.get(t.name) ?? t.rate) * 0.7 + t.rate * 0.3);
  const rank = (t) => ranks.get(t.name) ?? Infinity, rate = (t) => smooth.get(t.name);
  const sorted = topics.toSorted((a, b) => rank(a) - rank(b) || rate(b) - rate(a));
  for (let i = 1; i < sorted.length; i += 1)
    for (let j = i; j > 0 && rate(sorted[j]) > 1.3 * rate(sorted[j - 1]) + 0.5; j -= 1)
      [sorted[j - 1], sorted[j]] = [sorted[j], sorted[j - 1]];
  ranks = new Map(sorted.map((t, i) => [t.name, i]));
  for (const name of smooth.keys()) if (!ranks.has(name)) smooth.delete(name);
  return sorted;
}

function showTopics(topicz) {
  if (sorts.topics === "rate") topicz.topics = steady(topicz.topics);
  const now = Date.parse(topicz.now), most = Math.max(1, ...topicz.topics.map((t) => t.rate));
  fill($("topics"), topicz.topics, (t) => t.name, (t) => {
    const row = cells([["name"], ["rate", "meter"], ["messages", "wide"], ["subs", "wide"], ["last", "left mono"], ["age", "wide"]]);
    const open = make("button", "open mono", t.name);
    open.type = "button";
    open.title = t.name;
    open.addEventListener("click", () => showHistory(t.name));
    row.cell.name.append(open);
    row.cell.rate.append(row.rate = make("span"));
    return row;
  }, (row, t) => {
    say(row.rate, short(t.rate));
    row.cell.rate.classList.toggle("zero", !t.rate);
    row.cell.rate.style.setProperty("--share", (t.rate / most).toFixed(3));
    count(row.cell.messages, t.messages);
    count(row.cell.subs, t.subscribers);
    say(row.cell.last, t.last ?? "");
    say(row.cell.age, t.last_time ? age((now - Date.parse(t.last_time)) / 1000) : "");
  });
  const { length } = topicz.topics;
  say($("topics-note"), length < topicz.matching ? `${length} of ${number(topicz.matching)}` : length ? number(length) : "");
  $("topics-empty").hidden = length > 0;
}

let counted = new Map(), countedAt = 0;

function showConnections(connz) {
  const now = Date.parse(connz.now), passed = (now - countedAt) / 1000, last = counted;
  counted = new Map(connz.connections.map((c) => [c.cid, c]));
  countedAt = now;
  const rate = (c, name) => last.has(c.cid) ? Math.max(0, (c[name] - last.get(c.cid)[name]) / passed) : 0;
  fill($("connections"), connz.connections, (c) => c.cid, (c) => {
    const row = cells([["who"], ["door", "left"], ["subs", "wide"], ["pending"], ["in", "wide"], ["out", "wide"], ["up", "wide"], ["kick"]]);
    row.open = make("button", "open");
    row.open.type = "button";
    row.open.addEventListener("click", () => showClient(c.cid, row.open.textContent));
    row.cell.who.append(row.open, row.under = make("span", "under"));
    row.cell.door.append(make("span", "badge", c.type));
    row.cell.kick.append(kicker(c.cid));
    return row;
  }, (row, c) => {
    const address = c.ip ? `${c.ip}:${c.port}` : "", name = c.name || address || "client " + c.cid;
    say(row.open, name);
    row.open.title = name;
    row.querySelector(".kick").setAttribute("aria-label", "Kick " + name);
    say(row.under, ["cid " + c.cid, c.name ? address : "", c.lang].filter(Boolean).join(" · "));
    count(row.cell.subs, c.subscriptions);
    count(row.cell.pending, c.pending_bytes, size(c.pending_bytes));
    count(row.cell.in, rate(c, "in_msgs"));
    count(row.cell.out, rate(c, "out_msgs"));
    say(row.cell.up, c.uptime);
  });
  const { length } = connz.connections;
  say($("connections-note"), length < connz.total ? `${length} of ${number(connz.total)}` : number(length));
  $("connections-empty").hidden = length > 0;
}

// Who reads the journal, and how far each is behind

function showReaders(journal) {
  const readers = journal?.leases ?? [], span = (s) => s == null ? "–" : age(s);
  $("readers-card").hidden = readers.length === 0;
  if (!readers.length) return;
  say($("readers-note"), `${short(journal.messages)} messages, ${size(journal.bytes)} of ${size(journal.max_bytes)}`);
  fill($("readers"), readers, (r) => r.consumer, () => cells([
    ["who"], ["lag"], ["old"], ["taken", "wide"], ["incoming", "wide"], ["caught"], ["left"], ["lost", "wide"],
  ]), (row, r) => {
    say(row.cell.who, r.consumer);
    count(row.cell.lag, r.lag);
    count(row.cell.old, r.lag_seconds, age(r.lag_seconds));
    say(row.cell.taken, r.taken == null ? "–" : short(r.taken));
    say(row.cell.incoming, r.incoming == null ? "–" : short(r.incoming));
    say(row.cell.caught, r.lag === 0 ? "now" : span(r.catches_up));
    say(row.cell.left, span(r.time_left));
    count(row.cell.lost, r.lost);
    row.cell.left.classList.toggle("bad", r.time_left != null);
    row.cell.lost.classList.toggle("bad", r.lost > 0);
  });
}

function kicker(cid) {  // asks once more before it does it
  const button = make("button", "kick", "Kick");
  let calm = 0;
  const reset = () => { say(button, "Kick"); button.classList.remove("sure"); };
  button.type = "button";
  button.addEventListener("click", async () => {
    clearTimeout(calm);
    if (!button.classList.contains("sure")) {
      button.classList.add("sure");
      say(button, "Sure?");
      calm = setTimeout(reset, 3000);
      return;
    }
    reset();
    try { await ask("/connections/" + cid, { method: "DELETE" }); } catch { /* the state says it */ }
    poll();
  });
  return button;
}
