// BullMQ on Redis: add({delay}), addBulk, and two worker processes. Uses the protocol of lines.py.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { Queue } from "bullmq";
import { Redis } from "ioredis";
import { connection, QUEUE } from "./queue.mjs";

const BULK = 1000;
const CONFIGURATION =
  "two worker processes with concurrency 50, ioredis, removeOnComplete; addBulk with 1,000 jobs; delays and the due" +
  " times given here are whole milliseconds; no bulk call to cancel: 1,000 concurrent remove() calls are used instead";
const OPTIONS = { removeOnComplete: true };

const queue = new Queue(QUEUE, { connection, defaultJobOptions: OPTIONS });
const redis = new Redis(connection.url);
let scheduled = []; // the jobs of the last `schedule`

function describe() {
  const worker = [process.execPath, fileURLToPath(new URL("worker.mjs", import.meta.url))];
  return {
    name: "BullMQ on Redis",
    version: `bullmq ${version("bullmq")}, ioredis ${version("ioredis")}, node ${process.versions.node}`,
    configuration: CONFIGURATION,
    workers: [worker, worker],
    extra: [],
    can: "schedule.one schedule.bulk burst punctual pending cancel.one cancel.bulk".split(" "),
  };
}

function version(name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
}

async function setup() {
  await queue.waitUntilReady();
  await one(20, 600);
  await bulk(20, 600);
  await clear();
}

async function schedule({ how, count, delay }) {
  return timed(async () => {
    scheduled = await { one, bulk }[how](count, delay);
  });
}

async function one(count, delay) {
  const jobs = [];
  for (let n = 0; n < count; n += 1) {
    jobs.push(await queue.add("noop", { n, due: 0 }, { delay: delay * 1000 }));
  }
  return jobs;
}

async function bulk(count, delay) {
  const jobs = Array.from({ length: count }, (_, n) => ({
    name: "noop",
    data: { n, due: 0 },
    opts: { delay: delay * 1000 },
  }));
  return addBulk(jobs);
}

async function addBulk(jobs) {
  const added = [];
  for (let start = 0; start < jobs.length; start += BULK) {
    added.push(...(await queue.addBulk(jobs.slice(start, start + BULK))));
  }
  return added;
}

async function fill({ due, kind = "noop" }) {
  if (kind !== "noop") {
    throw new Error(`no handler for kind ${kind}`);
  }
  const timestamp = Date.now();
  return timed(() => addBulk(due.map((at, n) => dueAt(at, n, timestamp))));
}

// The delay counts from the job's timestamp. It is set explicitly, or the time until addBulk would add to the delay.
function dueAt(at, n, timestamp) {
  const dueMs = Math.ceil(at * 1000);
  return { name: "noop", data: { n, due: dueMs * 1000 }, opts: { timestamp, delay: Math.max(0, dueMs - timestamp) } };
}

async function cancel({ how, count }) {
  const jobs = scheduled.slice(0, count);
  const size = how === "bulk" ? BULK : 1;
  const answer = await timed(async () => {
    for (let start = 0; start < jobs.length; start += size) {
      await Promise.all(jobs.slice(start, start + size).map((job) => job.remove()));
    }
  });
  return { ...answer, cancelled: jobs.length };
}

async function left() {
  const counts = await queue.getJobCounts("delayed", "waiting", "prioritized", "active");
  return { left: Object.values(counts).reduce((sum, count) => sum + count, 0) };
}

async function clear() {
  scheduled = [];
  await redis.flushdb();
}

async function timed(work) {
  const begun = performance.now();
  await work();
  return { seconds: (performance.now() - begun) / 1000 };
}

const commands = { describe, setup, schedule, fill, cancel, left, clear };
for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...given } = JSON.parse(line);
  if (name === "bye") {
    process.stdout.write("{}\n");
    break;
  }
  try {
    process.stdout.write(`${JSON.stringify((await commands[name](given)) ?? {})}\n`);
  } catch (error) {
    console.error(error);
    process.stdout.write(`${JSON.stringify({ error: `${name}: ${error.message}` })}\n`);
  }
}
await queue.close();
process.exit(0);
