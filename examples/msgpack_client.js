// A client of the msgpack door, to read and to copy. Needs `npm install @msgpack/msgpack`.
//
//   node examples/msgpack_client.js localhost:36912 publish weather/oslo '{"celsius": 3.5}'
//   node examples/msgpack_client.js localhost:36912 subscribe 'weather/*' '!system/metrics/*'
const net = require("node:net");
const { encode, decodeMultiStream } = require("@msgpack/msgpack");

function publish(socket, topic, text) {
  socket.end(encode({ Publish: [[topic, JSON.parse(text)]] }));
}

// Print what comes: first the last message of each topic, then every new one.
async function subscribe(socket, ...patterns) {
  for (const pattern of patterns) {
    socket.write(encode({ Subscribe: [pattern] }));
  }
  for await (const [topic, value] of decodeMultiStream(socket)) {
    console.log(topic, JSON.stringify(value));
  }
}

const [address, command, ...words] = process.argv.slice(2);
const colon = address.lastIndexOf(":");
const socket = net.connect(Number(address.slice(colon + 1)), address.slice(0, colon));
({ publish, subscribe })[command](socket, ...words);
