package headwater.pipelines;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Runs segments for the driver's Python process over a Unix socket: rows as bytes, without Py4J's
 * text protocol, in which a call with some hundred rows takes tens of milliseconds.
 *
 * <pre>
 * request:   int segment, long now in ms, int inputs, and of each: int bytes, an Arrow stream
 * response:  byte 0, int bytes, an Arrow stream; or byte 1, int bytes, the error as UTF-8
 * </pre>
 *
 * A connection has one request at a time; each thread of the driver has its own connection.
 */
public final class SegmentServer {

  private final ServerSocketChannel channel;
  private final Map<Integer, LocalSegment> segments = new ConcurrentHashMap<>();
  private final AtomicInteger last = new AtomicInteger();

  /** Listens at the path until the JVM ends; the directory is the caller's, and private. */
  public SegmentServer(String path) throws IOException {
    channel = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    channel.bind(UnixDomainSocketAddress.of(path));
    start(this::accept, "headwater-segments");
  }

  public int add(LocalSegment segment) {
    int number = last.incrementAndGet();
    segments.put(number, segment);
    return number;
  }

  public void remove(int segment) {
    segments.remove(segment);
  }

  private void accept() {
    try {
      while (true) {
        SocketChannel connection = channel.accept();
        start(() -> serve(connection), "headwater-segment");
      }
    } catch (IOException closed) {
      // The JVM ends.
    }
  }

  private void serve(SocketChannel connection) {
    try (connection) {
      DataInputStream in =
          new DataInputStream(new BufferedInputStream(Channels.newInputStream(connection)));
      DataOutputStream out =
          new DataOutputStream(new BufferedOutputStream(Channels.newOutputStream(connection)));
      while (true) {
        int number = in.readInt();
        long nowMs = in.readLong();
        List<byte[]> given = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
          given.add(in.readNBytes(in.readInt()));
        }
        byte[] answer;
        int status = 0;
        try {
          answer = segments.get(number).run(given, nowMs);
        } catch (Throwable error) {
          status = 1;
          StringWriter text = new StringWriter();
          error.printStackTrace(new PrintWriter(text));
          answer = text.toString().getBytes(StandardCharsets.UTF_8);
        }
        out.writeByte(status);
        out.writeInt(answer.length);
        out.write(answer);
        out.flush();
      }
    } catch (EOFException closed) {
      // The thread of the driver has ended.
    } catch (IOException lost) {
      // So has the driver.
    }
  }

  private static void start(Runnable work, String name) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    thread.start();
  }
}
