// nats.js over a WebSocket: node websocket.mjs ws://HOST:PORT prints one JSON object.
import { connect } from "nats.ws";

if (typeof WebSocket === "undefined") {
  console.error("no WebSocket");
  process.exit(1);
}

const nc = await connect({ servers: process.argv[2] });
const text = new TextEncoder(), read = new TextDecoder();
const next = async (sub) => { for await (const message of sub) return message; };

const sub = nc.subscribe("js.plain", { max: 1 });
nc.publish("js.plain", text.encode("hello"));
const plain = read.decode((await next(sub)).data);

nc.subscribe("js.ask", { callback: (_, m) => m.respond(text.encode("42")) });
const reply = read.decode((await nc.request("js.ask", text.encode("?"), { timeout: 5000 })).data);

const data = new Uint8Array(1 << 20).map((_, i) => i % 251);
const whole = nc.subscribe("js.large", { max: 1 });
nc.publish("js.large", data);
const back = (await next(whole)).data;
const large = back.length === data.length && back.every((b, i) => b === data[i]);

let nobody = "answered";
try {
  await nc.request("js.nobody", text.encode("?"), { timeout: 5000 });
} catch (error) {
  nobody = error.code;
}
console.log(JSON.stringify({ plain, reply, large, nobody }));
await nc.close();
process.exit(0);
