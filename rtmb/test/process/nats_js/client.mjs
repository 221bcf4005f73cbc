// What nats.js does with the broker: one JSON line of results for each feature.
// node client.mjs URL            all features but reconnect
// node client.mjs URL reconnect  says "ready", then waits for the broker to go and come back
import { connect, createInbox, headers, StringCodec } from "nats";

const [url, mode] = process.argv.slice(2);
const text = StringCodec();

function say(feature, result) {
  console.log(JSON.stringify({ feature, result }));
}

async function take(subscription, count) {
  const found = [];
  if (count === 0) return found;
  for await (const message of subscription) {
    found.push(message);
    if (found.length === count) break;
  }
  return found;
}

const strings = (messages) => messages.map((m) => text.decode(m.data));

const features = {
  async publish_subscribe(nc) {
    const sub = nc.subscribe("js.plain");
    nc.publish("js.plain", text.encode("hello"));
    return strings(await take(sub, 1));
  },

  async wildcard(nc) {
    const one = nc.subscribe("js.w.*");
    const rest = nc.subscribe("js.w.>");
    nc.publish("js.w.a.b", text.encode("deep"));
    nc.publish("js.w.a", text.encode("flat"));
    return { one: strings(await take(one, 1)), rest: strings(await take(rest, 2)) };
  },

  async queue_group(nc) {
    const workers = [0, 1, 2].map(() => {
      const worker = { got: [] };
      worker.sub = nc.subscribe("js.work", {
        queue: "workers",
        callback: (_, m) => worker.got.push(text.decode(m.data)),
      });
      return worker;
    });
    for (let i = 0; i < 30; i++) nc.publish("js.work", text.encode(String(i)));
    await nc.flush();
    return workers.map((w) => w.got);
  },

  async request_reply(nc) {
    nc.subscribe("js.ask", { callback: (_, m) => m.respond(text.encode("42")) });
    return text.decode((await nc.request("js.ask", text.encode("?"), { timeout: 5000 })).data);
  },

  async no_responders(nc) {
    try {
      await nc.request("js.nobody", text.encode("?"), { timeout: 5000 });
    } catch (error) {
      return error.code;
    }
    return "answered";
  },

  async headers(nc) {
    const sub = nc.subscribe("js.headers");
    const given = headers();
    given.append("Colour", "blue");
    given.append("Colour", "green");
    nc.publish("js.headers", text.encode("with"), { headers: given });
    const [message] = await take(sub, 1);
    return { colours: message.headers.values("Colour"), payload: text.decode(message.data) };
  },

  async drain(nc) {
    const other = await connect({ servers: url });
    let got = 0;
    other.subscribe("js.drain", { callback: () => got++ });
    await other.flush();
    for (let i = 0; i < 100; i++) nc.publish("js.drain");
    await nc.flush();
    await other.drain();
    return { got, closed: other.isClosed() };
  },

  async auto_unsubscribe(nc) {
    const got = [];
    const sub = nc.subscribe("js.auto", { callback: (_, m) => got.push(text.decode(m.data)) });
    sub.unsubscribe(3);
    for (let i = 0; i < 5; i++) nc.publish("js.auto", text.encode(String(i)));
    await nc.flush();
    return { got, closed: sub.isClosed() };
  },

  async last(nc) {
    for (const place of ["oslo", "rome"]) {
      nc.publish(`js.weather.${place}`, text.encode("old"));
      nc.publish(`js.weather.${place}`, text.encode("new"));
    }
    await nc.flush();
    const found = await take(nc.subscribe("$LAST.js.weather.*"), 2);
    return found.map((m) => [m.subject, text.decode(m.data)]).sort();
  },

  async replay(nc) {
    for (let i = 0; i < 5; i++) nc.publish("js.log", text.encode(String(i)));
    await nc.flush();
    const sub = nc.subscribe("$REPLAY.3.js.log");
    nc.publish("js.log", text.encode("live"));
    return strings(await take(sub, 4));
  },

  async large_payload(nc) {
    const sub = nc.subscribe("js.large");
    const data = new Uint8Array(1 << 20).map((_, i) => i % 251);
    nc.publish("js.large", data);
    const [message] = await take(sub, 1);
    return message.data.length === data.length && message.data.every((b, i) => b === data[i]);
  },
};

async function reconnect() {
  const nc = await connect({
    servers: url,
    reconnectTimeWait: 50,
    reconnectJitter: 0,
    maxReconnectAttempts: -1,
  });
  const subject = createInbox();
  const sub = nc.subscribe(subject);
  await nc.flush();
  const again = (async () => {
    for await (const status of nc.status()) {
      if (status.type === "reconnect") return;
    }
  })();
  say("ready", true);
  await again;
  nc.publish(subject, text.encode("after"));
  say("reconnect", strings(await take(sub, 1)));
  await nc.close();
}

if (mode === "reconnect") {
  await reconnect();
} else {
  const nc = await connect({ servers: url });
  for (const [feature, run] of Object.entries(features)) {
    try {
      say(feature, await run(nc));
    } catch (error) {
      say(feature, `failed: ${error.stack}`);
    }
  }
  await nc.close();
}
process.exit(0);
