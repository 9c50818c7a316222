/*
 * Redisson's RDelayedQueue over an RBlockingQueue, as a peer. peers.c describes
 * the commands.
 *
 *     java RedissonPeer redis://127.0.0.1:PORT VERSION
 *
 * A batch of 100 is 100 offerAsync in flight (a delayed queue has no bulk offer
 * and can't be part of an RBatch) and poll(100). With 8 connections these
 * offers are three times as fast as with the default 64, since several share
 * one write. A take removes the job, so there is no ack. The jobs of `offer`
 * are due in the order of their offers. This is Redisson's best case, since it
 * finds them at the head of its list.
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RFuture;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

public class RedissonPeer {
    private final RBlockingQueue<String> ready;
    private final RDelayedQueue<String> delayed;
    private BitSet seen;

    RedissonPeer(String url) {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress(url).setConnectionPoolSize(8)
            .setConnectionMinimumIdleSize(8);
        RedissonClient redisson = Redisson.create(config);
        ready = redisson.getBlockingQueue("redisson");
        delayed = redisson.getDelayedQueue(ready);
    }

    private static String payload(int i) {
        return String.format("%08d", i) + "x".repeat(92);
    }

    /* Returns the number of a job. Each job may come only once. */
    private int note(String payload, int count) {
        if (payload == null) throw new IllegalStateException("none came");
        int i = Integer.parseInt(payload.substring(0, 8));
        if (payload.length() != 100 || i >= count)
            throw new IllegalStateException("was never offered");
        if (seen.get(i)) throw new IllegalStateException("delivered twice");
        seen.set(i);
        return i;
    }

    private void offer(int batch, int count, int delay) throws Exception {
        for (int i = 0; i < count; i += batch) {
            if (batch == 1) {
                delayed.offer(payload(i), delay, TimeUnit.MILLISECONDS);
                continue;
            }
            List<RFuture<Void>> sent = new ArrayList<>();
            for (int k = 0; k < batch; k++)
                sent.add(delayed.offerAsync(payload(i + k), delay,
                    TimeUnit.MILLISECONDS));
            for (RFuture<Void> f : sent) f.get(30, TimeUnit.SECONDS);
        }
    }

    private void take(int batch, int count) throws Exception {
        for (int n = 0; n < count;) {
            List<String> some = batch > 1 ? ready.poll(batch)
                : Collections.emptyList();
            if (some.isEmpty())
                some = Collections.singletonList(
                    ready.poll(10, TimeUnit.SECONDS));
            for (String s : some) note(s, count);
            n += some.size();
        }
        if (!delayed.isEmpty() || !ready.isEmpty())
            throw new IllegalStateException("jobs are left");
    }

    private static long wallUs() {
        Instant t = Instant.now();
        return t.getEpochSecond() * 1000000 + t.getNano() / 1000;
    }

    private static void sleepUntil(long us) throws Exception {
        long left = us - wallUs();
        if (left > 0) TimeUnit.MICROSECONDS.sleep(left);
    }

    /* Offer jobs at a fixed rate, with up to 100 offers in flight. */
    private void offerArrivals(int rate, long first, long[] due)
        throws Exception {
        Semaphore room = new Semaphore(100);
        Throwable[] failed = new Throwable[1];
        for (int i = 0; i < due.length; i++) {
            sleepUntil(first + i * 1000000L / rate);
            room.acquire();
            long delay = Math.max(0, due[i] - System.currentTimeMillis());
            delayed.offerAsync(payload(i), delay, TimeUnit.MILLISECONDS)
                .whenComplete((r, t) -> {
                    if (t != null) failed[0] = t;
                    room.release();
                });
        }
        room.acquire(100);
        if (failed[0] != null) throw new Exception(failed[0]);
    }

    private String open(int rate, int count, int delayMs) throws Exception {
        long first = wallUs() / 1000 * 1000 + 300000, last = 0;
        long[] due = new long[count], late = new long[count];
        for (int i = 0; i < count; i++)
            due[i] = (first + i * 1000000L / rate + 999) / 1000 + delayMs;
        Throwable[] failed = new Throwable[1];
        Thread producer = new Thread(() -> {
            try {
                offerArrivals(rate, first, due);
            } catch (Throwable t) {
                failed[0] = t;
            }
        });
        producer.start();
        for (int n = 0; n < count;) {
            List<String> some = ready.poll(100);
            if (some.isEmpty())
                some = Collections.singletonList(
                    ready.poll(10, TimeUnit.SECONDS));
            last = wallUs();
            for (String s : some) {
                int i = note(s, count);
                late[i] = last - due[i] * 1000;
            }
            n += some.size();
        }
        producer.join();
        if (failed[0] != null) throw new Exception(failed[0]);
        StringBuilder answer = new StringBuilder("ok ");
        answer.append((last - first - delayMs * 1000L) / 1e6);
        for (long us : late) answer.append(' ').append(us);
        return answer.toString();
    }

    private String answer(String[] w) throws Exception {
        int a = Integer.parseInt(w[1]), b = Integer.parseInt(w[2]);
        long begin = System.nanoTime();
        seen = new BitSet();
        switch (w[0]) {
        case "offer": offer(a, b, Integer.parseInt(w[3])); break;
        case "take": take(a, b); break;
        default: return open(a, b, Integer.parseInt(w[3]));
        }
        return "ok " + (System.nanoTime() - begin) / 1e9;
    }

    public static void main(String[] args) throws Exception {
        RedissonPeer peer = new RedissonPeer(args[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready Redisson " + args[1] + ", Java "
            + System.getProperty("java.version")
            + ": offer, poll; batch 100: so many offerAsync, "
            + "poll(100); 8 connections");
        for (String line; (line = in.readLine()) != null;) {
            String answer;
            try {
                answer = peer.answer(line.split(" "));
            } catch (Throwable t) {
                answer = "error: " + t.toString().replace('\n', ' ');
            }
            System.out.println(answer);
        }
        Runtime.getRuntime().halt(0);
    }
}
