// A BullMQ worker process. Writes a record per job to the sink, as sink.py does.
import { openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { Worker } from "bullmq";
import { connection, QUEUE } from "./queue.mjs";

const CONCURRENCY = 50;
const sink = openSync(join(process.env.BENCH_SINK, `${process.pid}.bin`), "a");

// Date.now() rounds down to milliseconds, so a punctual job would look early.
const nowMicroseconds = () => Math.floor((performance.timeOrigin + performance.now()) * 1000);

async function ran({ data: { n, due } }) {
  const record = Buffer.allocUnsafe(24);
  record.writeBigInt64LE(BigInt(n), 0);
  record.writeBigInt64LE(BigInt(due), 8);
  record.writeBigInt64LE(BigInt(nowMicroseconds()), 16);
  writeSync(sink, record);
}

const worker = new Worker(QUEUE, ran, { connection, concurrency: CONCURRENCY });
worker.on("error", (error) => console.error(error));
process.on("SIGTERM", async () => {
  await worker.close();
  process.exit(0);
});
