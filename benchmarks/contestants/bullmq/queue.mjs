// Shared by BullMQ's driver and workers.
export const QUEUE = "bench";
export const connection = { url: process.env.BENCH_REDIS, maxRetriesPerRequest: null };
