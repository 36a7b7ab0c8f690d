// What the driver and the workers of BullMQ share.
export const QUEUE = "bench";
export const connection = { url: process.env.BENCH_REDIS, maxRetriesPerRequest: null };
