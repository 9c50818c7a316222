/*
 * Redisson's RDelayedQueue over an RBlockingQueue, as a peer of bench-chaos.
 * chaos.c describes the work of a peer.
 *
 *     java RedissonChaos work|produce PORT RECORDS JOBS RATE
 *
 * With its defaults Redisson retries each command 4 times. A call that fails
 * nevertheless is repeated. A take removes the job, since the open source
 * edition has no ack. Each worker also creates the delayed queue, since every
 * program that has one moves due jobs.
 */

import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

public class RedissonChaos {
    private static FileOutputStream records;
    private static RBlockingQueue<String> ready;
    private static RDelayedQueue<String> delayed;
    private static int jobs, rate;

    /* On Linux nanoTime() is CLOCK_MONOTONIC, which all peers use. */
    private static long nowUs() {
        return System.nanoTime() / 1000;
    }

    private static void sleepUntil(long us) throws InterruptedException {
        long left = us - nowUs();
        if (left > 0) TimeUnit.MICROSECONDS.sleep(left);
    }

    private static void record(char kind, long a, long b) throws Exception {
        String line = kind + " " + a + " " + b + " " + nowUs() + "\n";
        records.write(line.getBytes(StandardCharsets.US_ASCII));
    }

    private static void log(Throwable t) {
        System.err.println(nowUs() + " " + t);
    }

    private static void work() throws Exception {
        for (;;) {
            String payload;
            try {
                payload = ready.take();
            } catch (Exception e) {
                log(e);
                Thread.sleep(100);
                continue;
            }
            if (payload == null) continue;
            String[] words = payload.split(" ");
            long id = Long.parseLong(words[0]), due = Long.parseLong(words[1]);
            record('B', id, due);
            Thread.sleep(40);
            record('E', id, due);
        }
    }

    private static void offerEach(int thread, long start) throws Exception {
        for (int id = thread; id < jobs; id += 4) {
            long at = start + id * 1000000L / rate;
            long due = at + 500000 + id * 7919L % 1000 * 1000;
            String payload = String.format("%08d %020d ", id, due);
            payload += "x".repeat(100 - payload.length());
            sleepUntil(at);
            for (;;) {
                long delay = Math.max(0, (due - nowUs() + 999) / 1000);
                try {
                    delayed.offer(payload, delay, TimeUnit.MILLISECONDS);
                    break;
                } catch (Exception e) {
                    log(e);
                    Thread.sleep(100);
                }
            }
            record('O', id, due);
        }
    }

    private interface Task {
        void run() throws Exception;
    }

    private static Thread start(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (Exception e) {
                log(e);
                Runtime.getRuntime().halt(1);
            }
        });
        thread.start();
        return thread;
    }

    private static void produce() throws Exception {
        System.out.println("ready");
        long begin = Long.parseLong(new BufferedReader(
            new InputStreamReader(System.in)).readLine());
        Thread[] threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            int thread = i;
            threads[i] = start(() -> offerEach(thread, begin));
        }
        for (Thread thread : threads) thread.join();
        for (;;) {
            try {
                record('L', delayed.size() + ready.size(), 0);
            } catch (Exception e) {
                log(e);
            }
            Thread.sleep(500);
        }
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress("redis://127.0.0.1:" + args[1]);
        RedissonClient redisson = null;
        while (redisson == null) {
            try {
                redisson = Redisson.create(config);
            } catch (Exception e) {
                log(e);
                Thread.sleep(100);
            }
        }
        ready = redisson.getBlockingQueue("chaos");
        delayed = redisson.getDelayedQueue(ready);
        records = new FileOutputStream(args[2], true);
        jobs = Integer.parseInt(args[3]);
        rate = Integer.parseInt(args[4]);
        if (!args[0].equals("work")) {
            produce();
            return;
        }
        for (int i = 0; i < 8; i++) start(RedissonChaos::work);
        System.out.println("ready");
    }
}
