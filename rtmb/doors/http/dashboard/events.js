// Events of the broker, and the dialog with the details of a topic or a client

const KINDS = {
  slow_consumer: ["warn", "slow", (f) => `${f.client} at ${f.subject}: ${size(f.pending_bytes ?? 0)} waiting, ${f.policy}`],
  drop: ["bad", "dropped", (f) => `${number(f.count)} for ${f.client} on ${(f.subjects ?? []).join(", ")}`],
  journal_lag: ["warn", "behind", (f) => `${f.consumer}: ${number(f.lag)} messages, about to lose some`],
  connect: ["good", "connected", (f) => f.client],
  disconnect: ["", "gone", (f) => `${f.client}: ${f.reason}`],
};
let onlyProblems = false;

const events = new Socket(
  Object.keys(KINDS).map((kind) => ({ topic: EVENTS + kind, last_n: 20, max_rate: EVENT_RATE })),
  (said) => { if (said.type === "event") showEvent(said.message?.payload, said.ts); },
);
const seenEvents = new Set();

function showEvent(facts, ts) {
  const kind = KINDS[facts?.event];
  if (!kind) return;
  const name = JSON.stringify(facts);  // the past comes again after a reconnection
  if (seenEvents.has(name)) return;
  seenEvents.add(name);
  const [tone, word, tell] = kind, item = make("li"), when = moment(facts.time ?? ts);
  item.dataset.problem = tone === "warn" || tone === "bad";
  item.hidden = onlyProblems && item.dataset.problem === "false";
  item.at = when.getTime();
  item.append(make("span", "badge " + tone, word), make("span", "what", tell(facts)), make("time", "", clock(when)));
  const feed = $("feed"), later = [...feed.children].find((other) => other.at <= item.at);
  feed.insertBefore(item, later ?? null);
  while (feed.children.length > KEPT_EVENTS) feed.lastChild.remove();
  if (seenEvents.size > 4 * KEPT_EVENTS) seenEvents.clear();
  showQuiet();
}

function showQuiet() {
  $("feed-empty").hidden = [...$("feed").children].some((item) => !item.hidden);
}

$("problems").addEventListener("click", () => {
  onlyProblems = !onlyProblems;
  $("problems").setAttribute("aria-pressed", onlyProblems);
  for (const item of $("feed").children) item.hidden = onlyProblems && item.dataset.problem === "false";
  showQuiet();
});

function startSockets() {
  events.open();
  watching.socket?.open();
}

function stopSockets() {
  events.close();
  watching.socket?.close();
}

// Details

function openDetail(title, topic) {
  say($("detail-title"), title);
  $("detail-watch").hidden = $("detail-publish").hidden = !topic;
  $("detail-list").replaceChildren();
  $("detail-patterns").replaceChildren();
  $("detail-patterns").hidden = Boolean(topic);
  $("detail-empty").hidden = false;
  say($("detail-empty"), "Reading…");
  $("detail").showModal();
}

async function showHistory(topic) {
  openDetail(topic, true);
  try {
    const messages = await read(`/topics/${encodeURIComponent(topic)}/messages?last_n=50`);
    $("detail-list").replaceChildren(...messages.reverse().map((m) => entry("", m, m.ts)));
    say($("detail-empty"), "Nothing is remembered of this subject.");
    $("detail-empty").hidden = messages.length > 0;
  } catch (error) {
    if (!(error instanceof Refused)) say($("detail-empty"), error.message);
  }
}

async function showClient(cid, name) {
  openDetail(name, false);
  try {
    const [client] = (await read(`/connz?cid=${cid}&subs=1`)).connections;
    const patterns = client?.subscriptions_list ?? [];
    $("detail-patterns").replaceChildren(...patterns.map((p) => make("li", "", p)));
    say($("detail-empty"), client ? "No subscriptions." : "It has left.");
    $("detail-empty").hidden = patterns.length > 0;
  } catch (error) {
    if (!(error instanceof Refused)) say($("detail-empty"), error.message);
  }
}

$("detail-close").addEventListener("click", () => $("detail").close());
$("detail-watch").addEventListener("click", () => {
  $("detail").close();
  $("pattern").value = $("detail-title").textContent;
  watch($("pattern").value);
});
$("detail-publish").addEventListener("click", () => {
  $("detail").close();
  $("subject").value = $("detail-title").textContent;
  $("payload").focus();
});
