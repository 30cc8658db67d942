import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.Term;
import org.apache.lucene.monitor.Monitor;
import org.apache.lucene.monitor.MonitorConfiguration;
import org.apache.lucene.monitor.MonitorQuery;
import org.apache.lucene.monitor.QueryMatch;
import org.apache.lucene.monitor.TermFilteredPresearcher;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.PhraseQuery;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.TermQuery;

/**
 * Matches documents with stored queries. Arguments: a file of queries ("kind first second"), a file
 * of documents, one in each line. Prints a line: seconds to register, seconds to match all
 * documents, CPU seconds of this thread for it, matches. All documents are matched once before, for the compiler to warm up.
 */
public class MonitorBench {
  public static void main(String[] args) throws Exception {
    List<String> documents = Files.readAllLines(Path.of(args[1]));
    // The purge of the query cache runs in a thread of its own, which is not needed here.
    MonitorConfiguration configuration = new MonitorConfiguration();
    try (Monitor monitor =
        new Monitor(new StandardAnalyzer(), new TermFilteredPresearcher(), configuration)) {
      long began = System.nanoTime();
      List<MonitorQuery> batch = new ArrayList<>();
      int number = 0;
      for (String line : Files.readAllLines(Path.of(args[0]))) {
        String[] parts = line.split(" ");
        batch.add(
            new MonitorQuery(
                Integer.toString(number++),
                query(parts[0], parts[1], parts[2]),
                null,
                Collections.emptyMap()));
        if (batch.size() == 1000) {
          monitor.register(batch);
          batch.clear();
        }
      }
      monitor.register(batch);
      double registered = (System.nanoTime() - began) / 1e9;
      match(monitor, documents);
      began = System.nanoTime();
      long beganCpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
      long matches = match(monitor, documents);
      double matched = (System.nanoTime() - began) / 1e9;
      double cpu = (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - beganCpu) / 1e9;
      System.out.println(registered + " " + matched + " " + cpu + " " + matches);
    }
  }

  private static long match(Monitor monitor, List<String> texts) throws Exception {
    long matches = 0;
    for (String text : texts) {
      Document document = new Document();
      document.add(new TextField("body", text, Field.Store.NO));
      matches += monitor.match(document, QueryMatch.SIMPLE_MATCHER).getMatchCount();
    }
    return matches;
  }

  private static Query query(String kind, String first, String second) {
    if (kind.equals("phrase")) {
      return new PhraseQuery("body", first, second);
    }
    Occur one = kind.equals("or") ? Occur.SHOULD : Occur.MUST;
    Occur other =
        kind.equals("or") ? Occur.SHOULD : kind.equals("not") ? Occur.MUST_NOT : Occur.MUST;
    return new BooleanQuery.Builder()
        .add(new TermQuery(new Term("body", first)), one)
        .add(new TermQuery(new Term("body", second)), other)
        .build();
  }
}
