/*
 * The Java side of the interop tests, with unmodified Redisson. It reads
 * commands from stdin, one per line, and answers each with one line. Payloads
 * are in hex: the bytes of a byte[], or the UTF-8 bytes of a String.
 *
 *     java Peer redis://127.0.0.1:PORT string|bytes|json|default
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisTimeoutException;
import org.redisson.client.codec.ByteArrayCodec;
import org.redisson.client.codec.Codec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.JsonJacksonCodec;
import org.redisson.config.Config;

public class Peer {
    private final Config config = new Config();
    private RedissonClient redisson;
    private final Codec codec;
    private final boolean bytes;
    private final Map<String, RDelayedQueue<Object>> delayed = new HashMap<>();
    private final List<String> consumed = new ArrayList<>();
    private Thread consumer;

    Peer(String url, String codecName) {
        config.useSingleServer().setAddress(url)
            .setSubscriptionsPerConnection(50); // 3.20.0 fails at a sixth queue
        bytes = codecName.equals("bytes");
        codec = codecName.equals("string") ? StringCodec.INSTANCE
            : bytes ? ByteArrayCodec.INSTANCE
            : codecName.equals("json") ? new JsonJacksonCodec()
            : null;
        if (codec != null) config.setCodec(codec);
        redisson = Redisson.create(config);
    }

    private RBlockingQueue<Object> ready(String name) {
        return codec == null ? redisson.getBlockingQueue(name)
            : redisson.getBlockingQueue(name, codec);
    }

    /*
     * The first call for a queue also starts the transfer, which subscribes. In
     * 3.20.0 the first call of a process sometimes never gets Redisson's own
     * lock for this. Then nothing has been done, and a new client tries again.
     */
    private RDelayedQueue<Object> pending(String name) {
        for (int tries = 1; !delayed.containsKey(name); tries++) {
            try {
                delayed.put(name, redisson.getDelayedQueue(ready(name)));
            } catch (RedisTimeoutException e) {
                if (tries == 3 || !e.getMessage().contains("subscription lock"))
                    throw e;
                if (delayed.isEmpty() && consumer == null) redisson.shutdown();
                redisson = Redisson.create(config);
            }
        }
        return delayed.get(name);
    }

    private Object value(String hex) {
        byte[] b = new byte[hex.length() / 2];
        for (int i = 0; i < b.length; i++)
            b[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        return bytes ? b : new String(b, StandardCharsets.UTF_8);
    }

    private String hex(Object value) {
        if (value == null) return "-";
        byte[] b = bytes ? (byte[]) value
            : value.toString().getBytes(StandardCharsets.UTF_8);
        StringBuilder s = new StringBuilder("x");
        for (byte x : b) s.append(String.format("%02x", x));
        return s.toString();
    }

    private String hex(List<Object> values) {
        StringBuilder s = new StringBuilder();
        for (Object v : values) s.append(hex(v)).append(' ');
        return s.length() == 0 ? "-" : s.toString().trim();
    }

    private List<Object> values(String[] w, int from) {
        List<Object> list = new ArrayList<>();
        for (int i = from; i < w.length; i++) list.add(value(w[i].substring(1)));
        return list;
    }

    private synchronized void note(Object v) {
        consumed.add(hex(v));
    }

    private synchronized String noted() {
        return consumed.isEmpty() ? "-" : String.join(" ", consumed);
    }

    private synchronized int count() {
        return consumed.size();
    }

    /* Take items in a new thread until it is interrupted. */
    private void consume(String name) {
        RBlockingQueue<Object> q = ready(name);
        consumer = new Thread(() -> {
            try {
                for (;;) note(q.take());
            } catch (Exception e) {
                /* interrupted */
            }
        });
        consumer.start();
    }

    private String answer(String[] w) throws Exception {
        String name = w.length > 1 ? w[1] : "";
        switch (w[0]) {
        case "watch": pending(name); return "ok";
        case "unwatch":
            if (delayed.containsKey(name)) delayed.remove(name).destroy();
            return "ok";
        case "offer":
            pending(name).offer(value(w[3].substring(1)),
                Long.parseLong(w[2]), TimeUnit.MILLISECONDS);
            return "ok";
        case "fill": /* NAME FROM COUNT DELAY: offer COUNT numbers */
            for (int i = 0; i < Integer.parseInt(w[3]); i++) {
                String text = String.valueOf(Integer.parseInt(w[2]) + i);
                pending(name).offer(
                    bytes ? text.getBytes(StandardCharsets.UTF_8) : text,
                    Long.parseLong(w[4]) + i % 50, TimeUnit.MILLISECONDS);
            }
            return "ok";
        case "push": return "" + ready(name).add(value(w[2].substring(1)));
        case "take":
            return hex(ready(name).poll(Long.parseLong(w[2]),
                TimeUnit.MILLISECONDS));
        case "consume": consume(name); return "ok";
        case "interrupt":
            consumer.interrupt();
            consumer.join();
            return "ok";
        case "consumed": return noted();
        case "count": return "" + count();
        case "size": return "" + pending(name).size();
        case "contains": return "" + pending(name).contains(value(w[2].substring(1)));
        case "peek": return hex(pending(name).peek());
        case "poll": return hex(pending(name).poll());
        case "polln": return hex(pending(name).poll(Integer.parseInt(w[2])));
        case "readall": return hex(pending(name).readAll());
        case "remove": return "" + pending(name).remove(value(w[2].substring(1)));
        case "removeall": return "" + pending(name).removeAll(values(w, 2));
        case "clock": return "" + System.currentTimeMillis();
        case "offerall": /* NAME DELAY PAYLOAD...: offer the payloads */
            for (Object v : values(w, 3))
                pending(name).offer(v, Long.parseLong(w[2]),
                    TimeUnit.MILLISECONDS);
            return "ok";
        case "drain": { /* NAME COUNT: take COUNT ready items */
            List<Object> list = new ArrayList<>();
            for (int i = 0; i < Integer.parseInt(w[2]); i++)
                list.add(ready(name).poll());
            return hex(list);
        }
        default: return "what? " + w[0];
        }
    }

    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(args[0], args[1]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line; (line = in.readLine()) != null;) {
            String answer;
            try {
                answer = peer.answer(line.split(" "));
            } catch (Throwable t) {
                answer = "error " + t.toString().replace('\n', ' ');
            }
            System.out.println(answer);
        }
        Runtime.getRuntime().halt(0);
    }
}
