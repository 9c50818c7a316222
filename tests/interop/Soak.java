/*
 * The Java side of soak.sh. One thread offers numbers, another one takes. The
 * log has lines as in soak.c, and J: an item was taken, and is gone.
 *
 *     java Soak redis://127.0.0.1:PORT LOG FROM END
 */

import java.io.FileOutputStream;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

public class Soak {
    private static FileOutputStream log;

    private static void note(char letter, String id, long ms) throws Exception {
        String line = letter + " " + id + " " + ms + "\n";
        synchronized (log) {
            log.write(line.getBytes()); // not buffered
        }
    }

    public static void main(String[] args) throws Exception {
        log = new FileOutputStream(args[1], true);
        Config config = new Config();
        config.useSingleServer().setAddress(args[0])
            .setRetryAttempts(0); // a second try would add to the mirror twice
        RedissonClient redisson = Redisson.create(config);
        RBlockingQueue<String> ready =
            redisson.getBlockingQueue("soak", StringCodec.INSTANCE);
        RDelayedQueue<String> delayed = redisson.getDelayedQueue(ready);
        Thread consumer = new Thread(() -> {
            for (;;) {
                try {
                    String id = ready.take();
                    if (id != null) note('J', id, System.currentTimeMillis());
                } catch (Exception e) {
                    // no server
                }
            }
        });
        consumer.start();
        Random random = new Random();
        long id = Long.parseLong(args[2]), end = Long.parseLong(args[3]);
        for (; System.currentTimeMillis() < end; id++) {
            int delay = random.nextInt(random.nextInt(4) > 0 ? 400 : 3000);
            note('o', "" + id, System.currentTimeMillis() + delay);
            try {
                delayed.offer("" + id, delay, TimeUnit.MILLISECONDS);
                note('O', "" + id, System.currentTimeMillis());
            } catch (Exception e) {
                Thread.sleep(50); // it may be stored, or not
            }
            Thread.sleep(random.nextInt(8));
        }
    }
}
