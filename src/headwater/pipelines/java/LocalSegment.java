package headwater.pipelines;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.CurrentBatchTimestamp;
import org.apache.spark.sql.catalyst.expressions.CurrentDate;
import org.apache.spark.sql.catalyst.expressions.CurrentTime;
import org.apache.spark.sql.catalyst.expressions.CurrentTimestamp;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.LocalTimestamp;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.Now;
import org.apache.spark.sql.catalyst.expressions.Predicate$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType$;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * A part of a streaming plan, from its inputs (sources and operators) to its output, evaluated in
 * the driver for one small batch.
 *
 * <p>What the user wrote is analysed and optimised by Catalyst once. Projections and filters are
 * compiled by Spark's code generator and applied to the rows of each batch: no planning, no job, no
 * task. Any other plan (functions in Python, generators, joins with tables that are no streams) is
 * planned for each batch over local relations and runs as a job. Both give the rows that a
 * micro-batch of a streaming query gives.
 */
public final class LocalSegment {

  private final SparkSession session;
  private final LogicalPlan plan;
  private final List<LogicalPlan> inputs;
  private final StructType output;
  private final String nowColumn;
  private final Step compiled; // null: it needs a job
  private final int[] columns; // of the only input, if it is only chosen from; else null

  /**
   * @param inputs nodes of the plan that are replaced by rows
   * @param nowColumn an output of this name is the time of the batch, which the caller fills in
   */
  public LocalSegment(
      SparkSession session, LogicalPlan plan, List<LogicalPlan> inputs, String nowColumn) {
    this.session = session;
    this.inputs = inputs;
    this.nowColumn = nowColumn;
    this.plan = withoutNow(plan);
    this.output = plan.schema();
    LogicalPlan optimised = optimised();
    this.compiled = optimised == null ? null : compile(optimised);
    this.columns = compiled == null || inputs.size() != 1 ? null : chosen(optimised);
  }

  /** Whether it runs without a job. */
  public boolean isCompiled() {
    return compiled != null;
  }

  /** Of each output the column of the only input that it is (-1: the time of the batch), or null. */
  public int[] columns() {
    return columns;
  }

  public String explain() {
    LogicalPlan optimised = optimised();
    return (optimised == null ? plan : optimised).treeString();
  }

  /** Rows of each input as an Arrow stream, to rows of the output as an Arrow stream. */
  public synchronized byte[] run(List<byte[]> given, long nowMs) throws IOException {
    List<ArrowRows> rows = new ArrayList<>();
    try {
      for (byte[] stream : given) {
        rows.add(new ArrowRows(stream));
      }
      if (compiled != null) {
        return written(compiled.rows(rows));
      }
      Map<LogicalPlan, LogicalPlan> local = new IdentityHashMap<>();
      for (int at = 0; at < inputs.size(); at++) {
        local.put(inputs.get(at), localRelation(inputs.get(at), rows.get(at)));
      }
      LogicalPlan bound = replaced(plan, local).transformAllExpressions(new At(nowMs));
      QueryExecution execution = Dataset.ofRows(session, bound).queryExecution();
      return written(List.of(execution.executedPlan().executeCollect()).iterator());
    } finally {
      rows.forEach(ArrowRows::close);
    }
  }

  // Compiling

  /** With opaque leaves as inputs. Null if it depends on time, chance or other tables. */
  private LogicalPlan optimised() {
    if (!isSimple(plan)) {
      return null;
    }
    Map<LogicalPlan, LogicalPlan> opaque = new IdentityHashMap<>();
    for (LogicalPlan input : inputs) {
      opaque.put(
          input,
          new LogicalRDD(
              input.output(),
              null,
              new UnknownPartitioning(0),
              CollectionConverters.asScala(
                      List.<org.apache.spark.sql.catalyst.expressions.SortOrder>of())
                  .toSeq(),
              false,
              Option.empty(),
              session,
              Option.empty(),
              Option.empty()));
    }
    LogicalPlan bounded = replaced(plan, opaque);
    // Only above the inputs: below an operator there is always the time of the batch.
    Finding found = new Finding();
    bounded.foreach(
        node -> {
          node.expressions().foreach(expression -> found.in(expression));
          return null;
        });
    return found.unrepeatable ? null : session.sessionState().optimizer().execute(bounded);
  }

  private boolean isSimple(LogicalPlan node) {
    if (inputs.stream().anyMatch(input -> input == node)) {
      return true;
    }
    boolean isLeaf = node.children().isEmpty();
    return !isLeaf
        && node.subqueries().isEmpty()
        && CollectionConverters.asJava(node.children()).stream().allMatch(this::isSimple);
  }

  private interface Step {
    Iterator<InternalRow> rows(List<ArrowRows> given);
  }

  /** Null if there is a step that only a job can do. */
  private Step compile(LogicalPlan node) {
    if (node instanceof LogicalRDD leaf) {
      int at = inputOf(leaf);
      return given -> given.get(at).iterator();
    }
    if (node instanceof Union) {
      List<Step> steps = new ArrayList<>();
      for (LogicalPlan child : CollectionConverters.asJava(node.children())) {
        Step step = compile(child);
        if (step == null) {
          return null;
        }
        steps.add(step);
      }
      return given -> new Concatenated(steps, given);
    }
    if (node instanceof Filter filter) {
      Step child = compile(filter.child());
      if (child == null) {
        return null;
      }
      BasePredicate predicate =
          Predicate$.MODULE$.create(filter.condition(), filter.child().output());
      predicate.initialize(0);
      return given -> new Filtered(child.rows(given), predicate);
    }
    if (node instanceof Project project) {
      Step child = compile(project.child());
      if (child == null) {
        return null;
      }
      UnsafeProjection projection =
          UnsafeProjection.create(expressions(project), project.child().output());
      projection.initialize(0);
      return given -> {
        Iterator<InternalRow> rows = child.rows(given);
        return new Iterator<>() {
          @Override
          public boolean hasNext() {
            return rows.hasNext();
          }

          @Override
          public InternalRow next() {
            return projection.apply(rows.next());
          }
        };
      };
    }
    return null;
  }

  private static Seq<Expression> expressions(Project project) {
    List<Expression> list = new ArrayList<>();
    CollectionConverters.asJava(project.projectList()).forEach(one -> list.add((Expression) one));
    return CollectionConverters.asScala(list).toSeq();
  }

  /** Which input a leaf stands for; the optimiser leaves its columns as they are. */
  private int inputOf(LogicalRDD leaf) {
    for (int at = 0; at < inputs.size(); at++) {
      if (leaf.output() == inputs.get(at).output() || leaf.output().equals(inputs.get(at).output())) {
        return at;
      }
    }
    throw new IllegalStateException("no input has the columns " + leaf.output());
  }

  private int[] chosen(LogicalPlan node) {
    if (node instanceof LogicalRDD leaf) {
      int[] all = new int[leaf.output().size()];
      for (int at = 0; at < all.length; at++) {
        all[at] = at;
      }
      return all;
    }
    if (!(node instanceof Project project && project.child() instanceof LogicalRDD leaf)) {
      return null;
    }
    List<Attribute> from = CollectionConverters.asJava(leaf.output());
    int[] found = new int[project.projectList().size()];
    for (int at = 0; at < found.length; at++) {
      NamedExpression expression = project.projectList().apply(at);
      Expression value =
          expression instanceof Alias alias ? alias.child() : (Expression) expression;
      if (value instanceof AttributeReference reference) {
        found[at] = indexOf(from, reference);
      } else if (value instanceof Literal && expression.name().equals(nowColumn)) {
        found[at] = -1;
      } else {
        return null;
      }
    }
    return found;
  }

  private static int indexOf(List<Attribute> columns, AttributeReference reference) {
    for (int at = 0; at < columns.size(); at++) {
      if (columns.get(at).exprId().equals(reference.exprId())) {
        return at;
      }
    }
    throw new IllegalStateException("no such column: " + reference);
  }

  /** The time of the batch as an output: the caller knows it. */
  private LogicalPlan withoutNow(LogicalPlan plan) {
    if (!(plan instanceof Project project)) {
      return plan;
    }
    List<NamedExpression> list = new ArrayList<>();
    for (NamedExpression one : CollectionConverters.asJava(project.projectList())) {
      boolean isNow =
          one.name().equals(nowColumn)
              && one instanceof Alias alias
              && alias.child() instanceof CurrentTimestamp;
      list.add(
          isNow
              ? new Alias(
                  Literal.create(0L, TimestampType$.MODULE$),
                  one.name(),
                  one.exprId(),
                  one.qualifier(),
                  Option.empty(),
                  CollectionConverters.asScala(List.<String>of()).toSeq())
              : one);
    }
    return new Project(CollectionConverters.asScala(list).toSeq(), project.child());
  }

  private static LogicalPlan replaced(LogicalPlan node, Map<LogicalPlan, LogicalPlan> by) {
    LogicalPlan found = by.get(node);
    if (found != null) {
      return found;
    }
    List<LogicalPlan> children = new ArrayList<>();
    boolean isChanged = false;
    for (LogicalPlan child : CollectionConverters.asJava(node.children())) {
      LogicalPlan other = replaced(child, by);
      isChanged |= other != child;
      children.add(other);
    }
    return isChanged
        ? node.withNewChildren(CollectionConverters.asScala(children).toSeq())
        : node;
  }

  private static final class Finding {
    boolean unrepeatable;

    Object in(Expression expression) {
      expression.foreach(
          one -> {
            unrepeatable |= !one.deterministic() || isTime(one) || one instanceof CurrentTime;
            return null;
          });
      return null;
    }
  }

  private static boolean isTime(Object expression) {
    return expression instanceof CurrentTimestamp
        || expression instanceof Now
        || expression instanceof CurrentDate
        || expression instanceof LocalTimestamp
        || expression instanceof CurrentBatchTimestamp;
  }

  /** The time of the batch in the place of the current one, as streaming queries have it. */
  private static final class At extends AbstractPartialFunction<Expression, Expression> {
    private final long nowMs;

    At(long nowMs) {
      this.nowMs = nowMs;
    }

    @Override
    public boolean isDefinedAt(Expression expression) {
      return isTime(expression);
    }

    @Override
    @SuppressWarnings("unchecked")
    public <A extends Expression, B> B applyOrElse(A one, scala.Function1<A, B> otherwise) {
      if (one instanceof CurrentTimestamp || one instanceof Now) {
        return (B) new CurrentBatchTimestamp(nowMs, one.dataType(), Option.empty());
      }
      if (one instanceof CurrentDate date) {
        return (B) new CurrentBatchTimestamp(nowMs, one.dataType(), date.timeZoneId());
      }
      if (one instanceof LocalTimestamp local) {
        return (B) new CurrentBatchTimestamp(nowMs, one.dataType(), local.timeZoneId());
      }
      return otherwise.apply(one);
    }
  }

  // Rows

  private static LocalRelation localRelation(LogicalPlan input, ArrowRows rows) {
    List<DataType> types = new ArrayList<>();
    for (StructField field : input.schema().fields()) {
      types.add(field.dataType());
    }
    UnsafeProjection projection = UnsafeProjection.create(types.toArray(new DataType[0]));
    List<InternalRow> copied = new ArrayList<>();
    rows.iterator().forEachRemaining(row -> copied.add(projection.apply(row).copy()));
    return new LocalRelation(
        input.output(), CollectionConverters.asScala(copied).toSeq(), false, Option.empty());
  }

  private byte[] written(Iterator<InternalRow> rows) throws IOException {
    ArrowWriter writer = ArrowWriter.create(output, "UTC", false, false);
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (VectorSchemaRoot root = writer.root()) {
      while (rows.hasNext()) {
        writer.write(rows.next());
      }
      writer.finish();
      try (ArrowStreamWriter stream = new ArrowStreamWriter(root, null, bytes)) {
        stream.writeBatch();
      }
    }
    return bytes.toByteArray();
  }

  /** Not a stream of Java's: those read ahead, and a row is valid only until the next one. */
  private static final class Concatenated implements Iterator<InternalRow> {
    private final Iterator<Step> steps;
    private final List<ArrowRows> given;
    private Iterator<InternalRow> rows = List.<InternalRow>of().iterator();

    Concatenated(List<Step> steps, List<ArrowRows> given) {
      this.steps = steps.iterator();
      this.given = given;
    }

    @Override
    public boolean hasNext() {
      while (!rows.hasNext() && steps.hasNext()) {
        rows = steps.next().rows(given);
      }
      return rows.hasNext();
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      return rows.next();
    }
  }

  private static final class Filtered implements Iterator<InternalRow> {
    private final Iterator<InternalRow> rows;
    private final BasePredicate predicate;
    private InternalRow next;

    Filtered(Iterator<InternalRow> rows, BasePredicate predicate) {
      this.rows = rows;
      this.predicate = predicate;
    }

    @Override
    public boolean hasNext() {
      while (next == null && rows.hasNext()) {
        InternalRow row = rows.next();
        if (predicate.eval(row)) {
          next = row;
        }
      }
      return next != null;
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      InternalRow row = next;
      next = null;
      return row;
    }
  }

  /** The rows of an Arrow stream, as often as they are asked for. */
  private static final class ArrowRows {
    private final byte[] stream;
    private final List<Batches> opened = new ArrayList<>();

    ArrowRows(byte[] stream) {
      this.stream = stream;
    }

    Iterator<InternalRow> iterator() {
      Batches batches = new Batches(stream);
      opened.add(batches);
      return batches;
    }

    void close() {
      opened.forEach(Batches::close);
    }
  }

  /** A row is valid until the next one is asked for. */
  private static final class Batches implements Iterator<InternalRow> {
    private final BufferAllocator allocator =
        ArrowUtils.rootAllocator().newChildAllocator("headwater", 0, Long.MAX_VALUE);
    private final ArrowStreamReader reader;
    private Iterator<InternalRow> batch = List.<InternalRow>of().iterator();

    Batches(byte[] stream) {
      reader = new ArrowStreamReader(new ByteArrayInputStream(stream), allocator);
    }

    @Override
    public boolean hasNext() {
      try {
        while (!batch.hasNext() && reader.loadNextBatch()) {
          batch = rows();
        }
      } catch (IOException error) {
        throw new java.io.UncheckedIOException(error);
      }
      return batch.hasNext();
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      return batch.next();
    }

    private Iterator<InternalRow> rows() throws IOException {
      VectorSchemaRoot root = reader.getVectorSchemaRoot();
      List<ColumnVector> columns = new ArrayList<>();
      for (FieldVector vector : root.getFieldVectors()) {
        columns.add(new ArrowColumnVector(vector));
      }
      return new ColumnarBatch(columns.toArray(new ColumnVector[0]), root.getRowCount())
          .rowIterator();
    }

    void close() {
      try {
        reader.close();
      } catch (IOException error) {
        throw new java.io.UncheckedIOException(error);
      } finally {
        allocator.close();
      }
    }
  }
}
