// Asking the broker: who we are, and once a second how it is

// What says who we are: the name of a header and its value.
let access = JSON.parse(sessionStorage.getItem("rtmb.access") || "null");

class Refused extends Error {}

async function ask(path, options = {}) {
  const headers = access ? { [access[0]]: access[1], ...options.headers } : options.headers;
  const answer = await fetch(path, { ...options, headers, signal: AbortSignal.timeout(PATIENCE) });
  if (answer.status === 401) { askWho(); throw new Refused(); }
  return answer;
}

const read = async (path) => {
  const answer = await ask(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
};

function askWho() {
  setState("wait", "Locked");
  stopSockets();
  if ($("access").open) return;
  say($("access-note"), access ? "That was not right." : "Kept until this tab is closed.");
  $("access-note").classList.toggle("bad", Boolean(access));
  $("access").showModal();
  $("key").select();
}

$("access").addEventListener("cancel", (e) => e.preventDefault());
$("access-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const user = $("user").value, secret = $("key").value;
  const bytes = new TextEncoder().encode(user + ":" + secret);
  access = user ? ["Authorization", "Basic " + btoa(String.fromCharCode(...bytes))] : ["X-API-Key", secret];
  sessionStorage.setItem("rtmb.access", JSON.stringify(access));
  $("access").close();
  poll();
});

// Once a second, while someone can see it

let before = null, timer = 0, polling = false, failures = 0;

async function poll() {
  clearTimeout(timer);
  if (polling || document.hidden || $("access").open) return;
  polling = true;
  const topics = `/topicz?limit=${TOPICS}&sort=${sorts.topics}&filter=${encodeURIComponent($("filter").value)}`;
  try {
    const [varz, connz, topicz, { journal }] = await Promise.all([
      read("/varz"), read(`/connz?limit=${CONNECTIONS}&sort=${sorts.connections}`), read(topics), read("/journalz"),
    ]);
    if (!before) await showPast();
    failures = 0;
    setState("live", "Live");
    startSockets();
    showServer(varz);
    showConnections(connz);
    showTopics(topicz);
    showReaders(journal);
  } catch (error) {
    if (!(error instanceof Refused)) {
      failures += 1;
      before = null;
      setState("away", "Away, trying again");
    }
  }
  polling = false;
  timer = setTimeout(poll, Math.min(EVERY * Math.max(1, failures), 5 * EVERY));
}

document.addEventListener("visibilitychange", () => {
  before = null;
  poll();
});

function setState(state, text) {
  $("state").dataset.state = state;
  say($("state"), text);
  document.body.classList.toggle("away", state === "away");
}

const TOTALS = ["in_msgs", "out_msgs", "in_bytes", "out_bytes"];

function rates(now, then) {  // of two readings, whose times are in milliseconds
  const passed = (now.time - then.time) / 1000 || 1, point = { when: new Date(now.time) };
  for (const name of TOTALS) point[name] = Math.max(0, (now[name] - then[name]) / passed);
  return point;
}

async function showPast() {  // the broker remembers the minutes when nobody looked
  const { columns, totals } = await read("/ratez");
  const past = totals.map((row) => Object.fromEntries(columns.map((name, i) => [name, name === "time" ? row[i] * 1000 : row[i]])));
  const points = past.slice(1).map((now, i) => rates(now, past[i]));
  for (const chart of charts) {
    chart.points = [];
    chart.add(...points);
  }
}

function showServer(varz) {
  varz.time = Date.parse(varz.now);
  say($("name"), varz.server_name);
  say($("about"), `${varz.version} · up ${varz.uptime}`);
  document.title = varz.server_name + " · rtmb";
  if (before && before.server_id === varz.server_id) {
    const point = rates(varz, before);
    for (const chart of charts) chart.add(point);
    say($("in-msgs"), short(point.in_msgs));
    say($("out-msgs"), short(point.out_msgs));
    say($("in-bytes"), size(point.in_bytes));
    say($("out-bytes"), size(point.out_bytes));
  }
  before = varz;
  say($("n-connections"), number(varz.connections));
  say($("n-subscriptions"), number(varz.subscriptions));
  say($("n-topics"), number(varz.topics));
  say($("n-history"), size(varz.history_bytes));
  say($("n-memory"), size(varz.mem));
  say($("n-cpu"), varz.cpu.toFixed(0) + " %");
  say($("n-slow"), number(varz.slow_consumers));
  say($("n-drops"), number(varz.drops));
  $("n-slow").classList.toggle("bad", varz.slow_consumers > 0);
  $("n-drops").classList.toggle("bad", varz.drops > 0);
}
