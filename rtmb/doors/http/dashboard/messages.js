// Messages, sockets that come back by themselves, watching and publishing.

// Messages: as JSON where they are, coloured piece by piece, always as text

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

function layout(value, indent = "") {  // as JSON.stringify, but what fits on a line stays on one
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const list = Array.isArray(value), inner = indent + "  ", [first, last] = list ? "[]" : "{}";
  const parts = list
    ? value.map((v) => layout(v, inner))
    : Object.entries(value).map(([k, v]) => JSON.stringify(k) + ": " + layout(v, inner));
  const line = parts.join(", ");
  if (indent && line.length + indent.length < LINE && !line.includes("\n")) return first + line + last;
  return parts.length ? `${first}\n${inner}${parts.join(",\n" + inner)}\n${indent}${last}` : first + last;
}

function pretty(value) {
  const pre = make("pre");
  let text = typeof value === "string" ? value : layout(value);
  if (text.length > LONGEST) text = text.slice(0, LONGEST) + `\n… ${number(text.length - LONGEST)} more characters`;
  if (typeof value === "string" || text.length > COLOURED) { pre.textContent = text; return pre; }
  let at = 0;
  for (const found of text.matchAll(TOKEN)) {
    pre.append(text.slice(at, found.index));
    const [all, quoted, colon, word] = found;
    pre.append(make("span", quoted ? (colon ? "k" : "s") : word ? "w" : "n", quoted ?? all));
    if (colon) pre.append(colon);
    at = found.index + all.length;
  }
  pre.append(text.slice(at));
  return pre;
}

function entry(subject, message, ts) {
  const item = make("li"), top = make("div", "top"), when = moment(ts);
  const time = make("time", "", exactly(when));
  time.dateTime = when.toISOString();
  if (subject) top.append(make("span", "subject", subject));
  if (message?.encoding) top.append(make("span", "badge", message.encoding));
  top.append(time);
  item.append(top, pretty(message?.payload));
  return item;
}

// Sockets that come back by themselves

class Socket {
  constructor(subscriptions, heard) {
    this.subscriptions = subscriptions;
    this.heard = heard;
    this.socket = null;
    this.opening = false;
  }

  async open() {
    if (this.socket || this.opening) return;
    const address = new URL("/ws", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    if (access) {  // a socket cannot say who we are, but it can show a ticket
      this.opening = true;
      try {
        const answer = await ask("/ticket", { method: "POST" });
        address.searchParams.set("ticket", (await answer.json()).ticket);
      } catch { this.opening = false; }
      if (!this.opening) return;  // closed meanwhile, or no ticket: `poll` opens it again
      this.opening = false;
    }
    const socket = this.socket = new WebSocket(address);
    socket.onopen = () => {
      for (const wanted of this.subscriptions)
        socket.send(JSON.stringify({ type: "subscribe", client_id: "page", ...wanted }));
    };
    socket.onmessage = (e) => { if (this.socket === socket) this.heard(JSON.parse(e.data)); };
    socket.onclose = () => { if (this.socket === socket) this.socket = null; };  // `poll` opens it again
  }

  close() {
    const { socket } = this;
    this.socket = null;
    this.opening = false;
    socket?.close();
  }
}

// Watching

const watching = { socket: null, pattern: "", received: 0, paused: false, waiting: [], sampled: "" };

function watch(pattern) {
  stopWatching();
  watching.pattern = pattern;
  watching.received = 0;
  watching.sampled = "";
  watching.socket = new Socket([{ topic: pattern, max_rate: WATCH_RATE }], heard);
  watching.socket.open();
  say($("watch-go"), "Stop");
  say($("watch-note"), pattern);
  showReceived();
}

function stopWatching() {
  watching.socket?.close();
  watching.socket = null;
  watching.pattern = "";
  say($("watch-go"), "Watch");
  say($("watch-note"), "messages as they arrive");
}

function heard(said) {
  if (said.type === "event") {
    watching.received += 1;
    if (!watching.paused) {
      if (!watching.waiting.length) requestAnimationFrame(showWaiting);
      watching.waiting.push([said.topic, said.message, said.ts]);
      if (watching.waiting.length > KEPT_MESSAGES) watching.waiting.shift();  // nobody is looking
    }
    showReceived();
  } else if (said.type === "info" && said.sampled) {
    const { seen, sent } = said.sampled;
    watching.sampled = seen > sent ? `showing ${number(sent)} of ${number(seen)} a second` : "";
    showReceived();
  } else if (said.type === "error" && said.error.code !== "SLOW_CONSUMER") {
    stopWatching();
    say($("sampling"), said.error.message);
    $("sampling").classList.add("bad");
  }
}

function showReceived() {
  const parts = [`${number(watching.received)} received`];
  if (watching.sampled) parts.unshift(watching.sampled);
  else if (watching.paused) parts.push("paused");
  say($("sampling"), parts.join(" · "));
  $("sampling").classList.remove("bad");
}

function showWaiting() {
  const stream = $("stream"), fresh = watching.waiting.splice(0).reverse();
  stream.prepend(...fresh.map(([topic, message, ts]) => entry(topic, message, ts)));
  while (stream.children.length > KEPT_MESSAGES) stream.lastChild.remove();
  $("stream-empty").hidden = stream.children.length > 0;
}

function pause() {
  watching.paused = !watching.paused;
  $("pause").setAttribute("aria-pressed", watching.paused);
  say($("pause"), watching.paused ? "Go on" : "Pause");
  showReceived();
}

function clearStream() {
  $("stream").replaceChildren();
  watching.waiting = [];
  watching.received = 0;
  $("stream-empty").hidden = false;
  showReceived();
}

$("watch-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const pattern = $("pattern").value.trim();
  if (watching.socket && pattern === watching.pattern) stopWatching();
  else if (pattern) watch(pattern);
});
$("pattern").addEventListener("input", () => {
  say($("watch-go"), watching.socket && $("pattern").value.trim() === watching.pattern ? "Stop" : "Watch");
});
$("pause").addEventListener("click", pause);
$("clear").addEventListener("click", clearStream);

// Publishing

async function publish() {
  const subject = $("subject").value.trim(), note = $("published");
  if (!$("publish-form").reportValidity()) return;
  note.className = "note";
  try {
    const answer = await ask("/publish/" + encodeURIComponent(subject), { method: "POST", body: $("payload").value });
    if (!answer.ok) throw new Error(await problem(answer));
    note.classList.add("good");
    say(note, `Published on ${subject} at ${clock(new Date())}`);
  } catch (error) {
    note.classList.add("bad");
    say(note, error instanceof Refused ? "Not published: the broker asks who you are" : "Not published: " + error.message);
  }
}

async function problem(answer) {
  const text = (await answer.text()).trim();
  try { return JSON.parse(text).error.message; } catch { return text || answer.statusText; }
}

$("publish-form").addEventListener("submit", (e) => { e.preventDefault(); publish(); });
$("publish-form").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); publish(); }
});
