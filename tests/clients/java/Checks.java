import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;

/**
 * Runs every check in one JVM and prints one line for each: "PASS name", or "FAIL name: reason".
 *
 * <p>Several checks run at a time, because most of their time is spent waiting for a group; so each
 * one uses topics and groups that carry its own name.
 *
 * <p>Usage: Checks BOOTSTRAP [NAME...], all of them without a name.
 */
public final class Checks {
    static final int AT_A_TIME = 4;
    static final int TIMEOUT_S = 60;

    interface Body {
        void run(Cluster cluster, String name) throws Exception;
    }

    private final Map<String, Body> bodies = new LinkedHashMap<>();

    void add(String name, Body body) {
        bodies.put(name, body);
    }

    public static void main(String[] args) {
        var checks = new Checks();
        ProducerChecks.register(checks);
        ConsumerChecks.register(checks);
        GroupChecks.register(checks);
        ShareChecks.register(checks);
        AdminChecks.register(checks);
        TransactionChecks.register(checks);

        var cluster = new Cluster(args[0]);
        if (args.length > 1) {
            checks.bodies.keySet().retainAll(List.of(args));
        }
        var pool = Executors.newFixedThreadPool(AT_A_TIME);
        var watch = Executors.newFixedThreadPool(AT_A_TIME);
        checks.bodies.forEach((name, body) -> watch.submit(() -> {
            var thread = new AtomicReference<Thread>();
            Future<?> run = pool.submit(() -> {
                thread.set(Thread.currentThread());
                body.run(cluster, name);
                return null;
            });
            report(name, run, thread);
        }));
        watch.shutdown();
        try {
            watch.awaitTermination(10, TimeUnit.MINUTES);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
        Runtime.getRuntime().halt(0); // a client stuck in close() must not keep the verdicts back
    }

    private static void report(String name, Future<?> run, AtomicReference<Thread> thread) {
        String line;
        try {
            run.get(TIMEOUT_S, TimeUnit.SECONDS);
            line = "PASS " + name;
        } catch (TimeoutException slow) {
            var stuck = new AssertionError("not done after " + TIMEOUT_S + " s");
            stuck.setStackTrace(thread.get().getStackTrace());
            run.cancel(true);
            line = "FAIL " + name + ": " + describe(stuck);
        } catch (ExecutionException failed) {
            line = "FAIL " + name + ": " + describe(failed.getCause());
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
            line = "FAIL " + name + ": interrupted";
        }
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static String describe(Throwable failure) {
        var text = new StringWriter();
        failure.printStackTrace(new PrintWriter(text));
        return text.toString().strip().replace("\n", " | ").replace("\t", "");
    }

    // What a check asserts with.

    static void equal(Object actual, Object expected, String what) {
        if (!Objects.deepEquals(actual, expected)) {
            throw new AssertionError(what + ": " + actual + " instead of " + expected);
        }
    }

    static void that(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    interface Action {
        Object run() throws Exception;
    }

    /** The action fails with this exception, alone or as the cause of an ExecutionException. */
    static void throwsError(Class<? extends Exception> expected, Action action) {
        try {
            action.run();
        } catch (Exception actual) {
            Throwable cause = actual instanceof ExecutionException ? actual.getCause() : actual;
            if (!expected.isInstance(cause)) {
                throw new AssertionError("expected " + expected.getSimpleName(), cause);
            }
            return;
        }
        throw new AssertionError("expected " + expected.getSimpleName() + ", nothing was thrown");
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void eventually(String what, Condition condition) throws Exception {
        eventually(() -> what, condition);
    }

    static void eventually(Supplier<String> what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(40);
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("did not happen: " + what.get());
            }
            TimeUnit.MILLISECONDS.sleep(20);
        }
    }
}
