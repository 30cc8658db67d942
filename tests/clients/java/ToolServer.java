import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after another, until stdin ends: most of what a tool takes
 * is the start of its JVM. A call is a line (class, stdin, arguments), its answer another (status,
 * stdout, stderr); all in base64, with blanks between.
 */
final class ToolServer {
    /** What Exit.exit ends a tool with, as System.exit would end the process. */
    private static final class Exited extends Error {}

    private static final ByteArrayOutputStream OUT = new ByteArrayOutputStream();
    private static final ByteArrayOutputStream ERR = new ByteArrayOutputStream();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static String answer;

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in));
        // Once, for Scala's Console and log4j keep what they find.
        System.setOut(new PrintStream(OUT, true));
        System.setErr(new PrintStream(ERR, true));
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        for (String call = calls.readLine(); call != null; call = calls.readLine()) {
            String[] words = call.split(" ", -1);
            String[] args = new String[words.length - 2];
            for (int i = 0; i < args.length; i++) args[i] = new String(decoded(words[i + 2]));
            System.setIn(new ByteArrayInputStream(decoded(words[1])));
            answer = null;
            OUT.reset();
            ERR.reset();
            run(new String(decoded(words[0])), args);
            answers.println(answer);
            answers.flush();
        }
    }

    private static void run(String tool, String[] args) throws ReflectiveOperationException {
        int status = 0;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Exited)) e.getCause().printStackTrace();
            status = 1; // as a JVM ends whose main has thrown
        }
        end(status);
    }

    private static void exit(int status) {
        end(status);
        throw new Exited();
    }

    /** The first end counts: a tool that catches all there is goes on from here, unheard. */
    private static void end(int status) {
        if (answer != null) return;
        List.copyOf(HOOKS).forEach(Runnable::run);
        HOOKS.clear();
        answer = status + " " + taken(OUT) + " " + taken(ERR);
    }

    private static byte[] decoded(String text) {
        return Base64.getDecoder().decode(text);
    }

    private static String taken(ByteArrayOutputStream stream) {
        synchronized (stream) {
            String text = Base64.getEncoder().encodeToString(stream.toByteArray());
            stream.reset();
            return text;
        }
    }
}
