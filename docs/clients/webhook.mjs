// Receive webhooks and check their signatures: WEBHOOK_SECRET=whsec_... node webhook.mjs 8080
// The signature is that of Standard Webhooks. Store the id where your effects are: a message may come twice.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const TOLERANCE_SECONDS = 300;
const secret = Buffer.from(process.env.WEBHOOK_SECRET.replace(/^whsec_/, ""), "base64");

function isSigned(headers, body) {
  if (secret.length === 0) return false; // anybody can sign with an empty key
  const id = headers["webhook-id"], timestamp = headers["webhook-timestamp"];
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) < TOLERANCE_SECONDS)) return false;
  const expected = createHmac("sha256", secret).update(`${id}.${timestamp}.`).update(body).digest();
  return (headers["webhook-signature"] ?? "").split(" ").some((signature) => {
    const given = Buffer.from(signature.replace(/^v1,/, ""), "base64");
    return signature.startsWith("v1,") && given.length === expected.length && timingSafeEqual(given, expected);
  });
}

createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => { // not if the sender breaks off, which must not end this program
    const body = Buffer.concat(chunks); // the bytes as they came: parsed and written again they may differ
    const signed = isSigned(request.headers, body);
    if (signed) console.log("received", request.headers["webhook-id"], body.toString());
    response.writeHead(signed ? 204 : 401).end();
  });
}).listen(Number(process.argv[2]), "127.0.0.1", () => console.log("ready"));
