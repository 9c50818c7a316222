/*
 * BullMQ as a peer. peers.c describes the commands.
 *
 *     node bullmq.js PORT
 *
 * A batch of 1 is add and a worker with concurrency 1. A batch of 100 is
 * addBulk and concurrency 100. Completed jobs are removed, as with the other
 * peers. By default BullMQ keeps them for ever.
 */
'use strict';
const { Queue, Worker } = require('bullmq');
const readline = require('readline');

const connection = { host: '127.0.0.1', port: Number(process.argv[2]) };
const queue = new Queue('bullmq', {
  connection,
  defaultJobOptions: { removeOnComplete: true, removeOnFail: true },
});

const payload = (i) => String(i).padStart(8, '0') + 'x'.repeat(92);
const wallUs = () =>
  Math.round((performance.timeOrigin + performance.now()) * 1000);

/* Create a worker. `done` resolves when count jobs are completed, each once. */
async function consume(concurrency, count, arrived) {
  const seen = new Set();
  const worker = new Worker('bullmq', async (job) => {
    const now = wallUs();
    const i = Number(job.data.slice(0, 8));
    if (job.data.length !== 100 || i >= count || seen.has(i))
      throw new Error('never offered, or delivered twice');
    seen.add(i);
    arrived(i, now);
  }, { connection, concurrency, autorun: false });
  await worker.waitUntilReady();
  const done = new Promise((resolve, reject) => {
    let completed = 0;
    worker.on('completed', () => ++completed === count && resolve());
    worker.on('failed', (job, error) => reject(error));
    worker.on('error', reject);
    setTimeout(reject, 40000, new Error('none came')).unref();
  });
  return { worker, done };
}

async function offer(batch, count, delay) {
  for (let i = 0; i < count; i += batch) {
    if (batch === 1) {
      await queue.add('job', payload(i), { delay });
      continue;
    }
    const jobs = [];
    for (let k = 0; k < batch; k++)
      jobs.push({ name: 'job', data: payload(i + k), opts: { delay } });
    await queue.addBulk(jobs);
  }
}

async function nothingIsLeft() {
  const counts = await queue.getJobCounts();
  if (Object.values(counts).some((n) => n > 0))
    throw new Error('jobs are left: ' + JSON.stringify(counts));
}

async function take(batch, count) {
  const { worker, done } = await consume(batch, count, () => {});
  const begin = performance.now();
  worker.run();
  await done;
  const ms = performance.now() - begin;
  await worker.close();
  await nothingIsLeft();
  return ms;
}

/* Jobs arrive at a fixed rate. Those that have arrived are added together. */
async function open(rate, count, delay) {
  const first = Date.now() + 300;
  const arrives = (i) => first + i * 1000 / rate;
  const due = Array.from({ length: count },
    (_, i) => Math.ceil(arrives(i) + delay));
  const us = [];
  let last = 0;
  const { worker, done } = await consume(100, count, (i, now) => {
    us[i] = now - due[i] * 1000;
    last = now;
  });
  worker.run();
  for (let i = 0; i < count;) {
    const wait = arrives(i) - wallUs() / 1000;
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    const jobs = [];
    do {
      jobs.push({ name: 'job', data: payload(i),
        opts: { delay: Math.max(0, due[i] - Date.now()) } });
      i++;
    } while (i < count && jobs.length < 100 && arrives(i) <= Date.now());
    await queue.addBulk(jobs);
  }
  await done;
  await worker.close();
  await nothingIsLeft();
  return [(last / 1000 - first - delay) / 1000, ...us];
}

async function answer(line) {
  const [verb, ...rest] = line.split(' ');
  const [a, b, c] = rest.map(Number);
  const begin = performance.now();
  if (verb === 'open') return (await open(a, b, c)).join(' ');
  if (verb === 'take') return (await take(a, b)) / 1000;
  await offer(a, b, c);
  return (performance.now() - begin) / 1000;
}

const version = (name) => require(name + '/package.json').version;
console.log(`ready BullMQ ${version('bullmq')}, ioredis ${version('ioredis')},` +
  ` node ${process.versions.node}: add, concurrency 1; batch 100: addBulk,` +
  ' concurrency 100; removeOnComplete');
readline.createInterface({ input: process.stdin })
  .on('line', async (line) => {
    try {
      console.log('ok', String(await answer(line)));
    } catch (error) {
      console.log('error:', error.message);
    }
  })
  .on('close', () => process.exit(0));
