/*
 * BullMQ as a peer of bench-chaos. chaos.c describes the work of a peer.
 *
 *     node bullmq.js work|produce PORT RECORDS JOBS RATE
 *
 * The options follow docs.bullmq.io, "Going to production". The queue fails
 * fast (enableOfflineQueue false), and the program adds the job again with the
 * same jobId, so BullMQ stores it once. The worker retries for ever
 * (maxRetriesPerRequest null, its default). Both log errors. All other options
 * have their defaults: locks of 30 s, a search for stalled jobs every 30 s,
 * reconnection after 1 to 20 s.
 */
'use strict';
const { Queue, Worker } = require('bullmq');
const fs = require('fs');
const readline = require('readline');

const [role, port, path, jobs, rate] = process.argv.slice(2);
const records = fs.openSync(path, 'a');
const nowUs = () => Number(process.hrtime.bigint() / 1000n);
const record = (kind, a, b) =>
  fs.writeSync(records, `${kind} ${a} ${b} ${nowUs()}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const log = (error) => console.error(nowUs(), String(error));
process.on('unhandledRejection', log);
process.on('uncaughtException', log);

async function handle(job) {
  const [id, due] = job.data.split(' ');
  record('B', Number(id), Number(due));
  await sleep(40);
  record('E', Number(id), Number(due));
}

async function offerEach(queue, thread, start) {
  for (let id = thread; id < Number(jobs); id += 4) {
    const at = start + Math.floor(id * 1e6 / Number(rate));
    const due = at + 500000 + id * 7919 % 1000 * 1000;
    const data = (String(id).padStart(8, '0') + ' ' +
      String(due).padStart(20, '0') + ' ').padEnd(100, 'x');
    if (at > nowUs()) await sleep((at - nowUs()) / 1000);
    for (;;) {
      try {
        const delay = Math.max(0, Math.ceil((due - nowUs()) / 1000));
        await queue.add('job', data, { jobId: `job${id}`, delay });
        break;
      } catch (error) {
        log(error);
        await sleep(100);
      }
    }
    record('O', id, due);
  }
}

async function produce() {
  const queue = new Queue('chaos', {
    connection: { host: '127.0.0.1', port: Number(port),
      enableOfflineQueue: false },
    defaultJobOptions: { removeOnComplete: true },
  });
  queue.on('error', log);
  await queue.waitUntilReady();
  console.log('ready');
  for await (const line of readline.createInterface({ input: process.stdin })) {
    await Promise.all([0, 1, 2, 3].map(
      (thread) => offerEach(queue, thread, Number(line))));
    for (;;) {
      try {
        const { failed, completed, ...rest } = await queue.getJobCounts();
        record('L', Object.values(rest).reduce((a, b) => a + b), failed);
      } catch (error) {
        log(error);
      }
      await sleep(500);
    }
  }
}

async function work() {
  const worker = new Worker('chaos', handle, {
    connection: { host: '127.0.0.1', port: Number(port),
      maxRetriesPerRequest: null },
    concurrency: 8,
  });
  worker.on('error', log);
  worker.on('failed', (job, error) => log(error));
  await worker.waitUntilReady();
  console.log('ready');
}

if (role === 'work') work(); else produce();
