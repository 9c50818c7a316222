/*
 * Example -- the Java side of a queue that is shared with C; example.c is the
 * other one. It is the same with each Redisson from 3.21.1 on; README.md tells
 * how to get one into build/jars.
 *
 *     $ java -cp 'build/jars/*' Example.java "hello from Java"
 *     offered: hello from Java     (due in two seconds)
 *     $ java -cp 'build/jars/*' Example.java
 *     took: hello from C           (or what Java has offered; it waits for it)
 */
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

public class Example {
    public static void main(String[] args) throws Exception {
        String url = System.getenv("DELAYQ_URL");
        Config config = new Config();
        config.useSingleServer().setAddress(
            url == null ? "redis://127.0.0.1:6379" : url);
        RedissonClient redisson = Redisson.create(config);

        // the codec decides what C sees: with this one, UTF-8
        RBlockingQueue<String> ready =
            redisson.getBlockingQueue("jobs", StringCodec.INSTANCE);
        // from here on Redisson moves what is due, as the C program does
        RDelayedQueue<String> delayed = redisson.getDelayedQueue(ready);

        if (args.length > 0) {
            delayed.offer(args[0], 2, TimeUnit.SECONDS);
            System.out.println("offered: " + args[0]);
        } else {
            System.out.println("took: " + ready.take());
        }
        redisson.shutdown();
    }
}
