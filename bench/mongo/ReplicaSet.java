import de.bwaldvogel.mongo.MongoCollection;
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.Cursor;
import de.bwaldvogel.mongo.backend.aggregation.Aggregation;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.bson.BsonTimestamp;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.exception.MongoServerError;
import de.bwaldvogel.mongo.oplog.Oplog;
import io.netty.channel.Channel;
import java.net.InetSocketAddress;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * mongo-java-server as a replica set of one: what its own oplog lacks, after MongoDB's manual.
 *
 * The wire protocol, storage, queries, sorting, updates and pipelines are mongo-java-server's. Added
 * here: streams on a database and on the deployment, events with `ns`, `documentKey`,
 * `updateDescription` and images, resume tokens with the cluster time in front, post-batch tokens,
 * invalidation, rename and drops, multi-document transactions (writes are applied at the commit; a
 * transaction does not read its own), operation times, snapshot reads, and the fail point
 * `failCommand`. `{trimOplog: 1}` forgets all history, as a small oplog does.
 *
 * Usage: ReplicaSet PORT [MAJOR.MINOR [standalone]]
 */
public final class ReplicaSet extends MemoryBackend {
    private static final int MAX_DOCUMENT_BYTES = 16 * 1024 * 1024;
    private static final int LAST = Integer.MAX_VALUE;

    private record Entry(long time, int index, Document event, Document before, Document after) {}

    private record Place(long time, int index) {
        boolean isBefore(Entry entry) {
            int order = Long.compareUnsigned(time, entry.time);
            return order < 0 || (order == 0 && index < entry.index);
        }
    }

    private static final class Stream_ {
        String database; // null: the deployment
        Document options;
        Aggregation filter;
        Place place;
    }

    private record FailPoint(Set<String> commands, Integer code, boolean closes) {}

    private final int port;
    private final int[] version;
    private final boolean standalone;
    private final List<Entry> log = new ArrayList<>();
    private final Map<String, Map<Object, Document>> images = new HashMap<>(); // as last logged
    private final Set<String> withImages = new HashSet<>();
    private final Map<Long, Stream_> streams = new HashMap<>();
    private final Map<String, List<Object[]>> transactions = new LinkedHashMap<>();
    private final Recorder recorder = new Recorder();
    private long lastTime;
    private long forgottenTime;
    private long nextCursor = 1L << 40;
    private FailPoint failPoint;
    private int failures;
    private Document transaction; // lsid and txnNumber while one is applied
    private int index;

    private ReplicaSet(int port, int[] version, boolean standalone) {
        this.port = port;
        this.version = version;
        this.standalone = standalone;
        this.oplog = recorder;
        this.lastTime = (Instant.now().getEpochSecond() << 32) | 1;
        this.forgottenTime = lastTime - 1;
        int[] wires = {0, 0, 0, 0, 9, 13, 17, 21, 25};
        version(new MongoVersion() {
            @Override
            public List<Integer> getVersionArray() {
                return List.of(version[0], version[1], 0, 0);
            }

            @Override
            public String toVersionString() {
                return version[0] + "." + version[1] + ".0";
            }

            @Override
            public int getWireVersion() {
                return wires[version[0]];
            }
        });
    }

    public static void main(String[] args) {
        int port = Integer.parseInt(args[0]);
        int[] version = Arrays.stream((args.length > 1 ? args[1] : "7.0").split("\\."))
            .mapToInt(Integer::parseInt).toArray();
        ReplicaSet backend = new ReplicaSet(port, version, args.length > 2);
        // A waiting getMore holds its thread, and a thread serves several connections.
        new MongoServer(backend).bind(new InetSocketAddress("127.0.0.1", port), 1, 64);
    }

    @Override
    public Document handleCommand(Channel channel, String database, String command, Document query) {
        Document answer;
        synchronized (this) {
            fail(channel, command);
            answer = answer(channel, database, command, query);
            if (answer != null && !standalone) {
                answer.put("operationTime", new BsonTimestamp(lastTime));
            }
        }
        return answer;
    }

    private Document answer(Channel channel, String database, String command, Document query) {
        switch (command.toLowerCase(Locale.ROOT)) {
            case "hello":
            case "ismaster":
                return hello(super.handleCommand(channel, database, "ismaster", query));
            case "aggregate":
                if (query.get("pipeline") instanceof List<?> stages && !stages.isEmpty()
                    && ((Document) stages.get(0)).containsKey("$changeStream")) {
                    return watch(database, query, stages);
                }
                break;
            case "getmore":
                long cursor = ((Number) query.get(command)).longValue();
                if (streams.containsKey(cursor)) {
                    return more(cursor, database, query);
                }
                break;
            case "killcursors":
                streams.keySet().removeAll((Collection<?>) query.get("cursors"));
                break;
            case "find":
                return find(channel, database, command, query);
            case "insert":
            case "update":
            case "delete":
                return write(channel, database, command, query);
            case "committransaction":
                return commit(channel, query);
            case "aborttransaction":
                transactions.remove(sessionOf(query));
                return ok();
            case "create":
                remember(database, (String) query.get(command), query);
                break;
            case "collmod":
                remember(database, (String) query.get(command), query);
                return ok();
            case "listcollections":
                return withOptions(database, super.handleCommand(channel, database, command, query));
            case "renamecollection":
                return rename(channel, database, command, query);
            case "dropdatabase":
                return dropDatabase(channel, database, command, query);
            case "configurefailpoint":
                return configure(query);
            case "trimoplog":
                log.clear();
                forgottenTime = lastTime;
                return ok();
            default:
        }
        return super.handleCommand(channel, database, command, query);
    }

    // What the server is.

    private Document hello(Document answer) {
        answer.put("isWritablePrimary", true);
        answer.put("helloOk", true);
        answer.put("logicalSessionTimeoutMinutes", 30);
        if (!standalone) {
            String address = "127.0.0.1:" + port;
            answer.put("setName", "rs0");
            answer.put("setVersion", 1);
            answer.put("secondary", false);
            answer.put("hosts", List.of(address));
            answer.put("primary", address);
            answer.put("me", address);
        }
        return answer;
    }

    private Document configure(Document query) {
        Document data = (Document) query.get("data");
        Object mode = query.get("mode");
        failures = mode instanceof Document times ? ((Number) times.get("times")).intValue()
            : mode.equals("off") ? 0 : LAST;
        if (data != null) {
            Set<String> names = ((Collection<?>) data.get("failCommands")).stream()
                .map(name -> name.toString().toLowerCase(Locale.ROOT)).collect(Collectors.toSet());
            failPoint = new FailPoint(names, (Integer) data.get("errorCode"),
                Boolean.TRUE.equals(data.get("closeConnection")));
        }
        return ok();
    }

    private void fail(Channel channel, String command) {
        if (failures == 0 || !failPoint.commands.contains(command.toLowerCase(Locale.ROOT))) {
            return;
        }
        failures--;
        if (failPoint.closes) {
            channel.close();
        }
        throw new MongoServerError(failPoint.code == null ? 1 : failPoint.code, "failCommand",
            "Failing command via 'failCommand' failpoint");
    }

    private void remember(String database, String collection, Document query) {
        if (query.get("changeStreamPreAndPostImages") instanceof Document setting) {
            String namespace = database + "." + collection;
            if (Boolean.TRUE.equals(setting.get("enabled"))) {
                withImages.add(namespace);
            } else {
                withImages.remove(namespace);
            }
        }
    }

    private Document withOptions(String database, Document answer) {
        for (Object each : (List<?>) ((Document) answer.get("cursor")).get("firstBatch")) {
            Document collection = (Document) each;
            if (withImages.contains(database + "." + collection.get("name"))) {
                ((Document) collection.get("options"))
                    .put("changeStreamPreAndPostImages", new Document("enabled", true));
            }
        }
        return answer;
    }

    private Document find(Channel channel, String database, String command, Document query) {
        if (query.get("filter") instanceof Document filter && filter.get("_id") instanceof Document id
            && id.get("$type") instanceof Collection<?> types) {
            // mongo-java-server can neither store these nor name them.
            id.put("$type", types.stream().filter(type -> !type.toString().startsWith("javascript"))
                .collect(Collectors.toList()));
        }
        Document answer = super.handleCommand(channel, database, command, query);
        Document cursor = (Document) answer.get("cursor");
        // The answer is encoded later, by when an update may have changed the stored document.
        List<Document> batch = new ArrayList<>();
        long size = 0;
        for (Object document : (List<?>) cursor.get("firstBatch")) {
            size += roughSize(document);
            if (!batch.isEmpty() && size > MAX_DOCUMENT_BYTES && Boolean.TRUE.equals(query.get("singleBatch"))) {
                break;
            }
            batch.add(((Document) document).cloneDeeply());
        }
        cursor.put("firstBatch", batch);
        if (query.get("readConcern") instanceof Document concern
            && "snapshot".equals(concern.get("level"))) {
            if (version[0] < 5) {
                throw new MongoServerError(246, "SnapshotUnavailable", "needs a transaction");
            }
            cursor.put("atClusterTime", new BsonTimestamp(lastTime));
        }
        return answer;
    }

    // Writes, and the log of them.

    private Document write(Channel channel, String database, String command, Document query) {
        if (Boolean.FALSE.equals(query.get("autocommit"))) {
            transactions.computeIfAbsent(sessionOf(query), key -> new ArrayList<>())
                .add(new Object[] {database, command, query});
            String part = command.equals("insert") ? "documents" : command + "s";
            Document answer = ok();
            answer.put("n", ((Collection<?>) query.get(part)).size());
            return answer;
        }
        Document answer = super.handleCommand(channel, database, command, query);
        notifyAll();
        return answer;
    }

    private Document commit(Channel channel, Document query) {
        List<Object[]> writes = transactions.remove(sessionOf(query));
        if (writes != null) {
            tick();
            transaction = new Document("lsid", query.get("lsid")).append("txnNumber", query.get("txnNumber"));
            index = 0;
            for (Object[] each : writes) {
                super.handleCommand(channel, (String) each[0], (String) each[1], (Document) each[2]);
            }
            transaction = null;
            notifyAll();
        }
        return ok();
    }

    private Document rename(Channel channel, String database, String command, Document query) {
        Document answer = super.handleCommand(channel, database, command, query);
        String from = (String) query.get(command);
        String to = (String) query.get("to");
        Map<Object, Document> moved = images.remove(from);
        if (moved != null) {
            images.put(to, moved);
        }
        add(event("rename", from).append("to", namespace(to)), null, null);
        return answer;
    }

    private Document dropDatabase(Channel channel, String database, String command, Document query) {
        Document answer = super.handleCommand(channel, database, command, query);
        add(new Document("operationType", "dropDatabase").append("ns", new Document("db", database)), null, null);
        add(new Document("operationType", "invalidate").append("of", database), null, null);
        return answer;
    }

    private void tick() {
        lastTime = Math.max(lastTime + 1, (Instant.now().getEpochSecond() << 32) | 1);
    }

    private void add(Document event, Document before, Document after) {
        if (transaction == null) {
            tick();
            index = 0;
        } else {
            event.putAll(transaction);
        }
        event.put("clusterTime", new BsonTimestamp(lastTime));
        if (version[0] >= 6) {
            event.put("wallTime", Instant.now());
        }
        log.add(new Entry(lastTime, index++, event, before, after));
        notifyAll();
    }

    private final class Recorder implements Oplog {
        @Override
        public void handleInsert(String namespace, List<Document> documents) {
            Map<Object, Document> known = images.computeIfAbsent(namespace, key -> new HashMap<>());
            for (Document document : documents) {
                Object id = document.get("_id");
                Document stored = stored(namespace, id); // not if it was refused as a duplicate
                if (stored != null && !known.containsKey(id)) {
                    known.put(id, stored);
                    add(event("insert", namespace).append("documentKey", new Document("_id", id)), null, stored);
                }
            }
        }

        @Override
        public void handleUpdate(String namespace, Document selector, Document update, List<Object> ids) {
            Map<Object, Document> known = images.computeIfAbsent(namespace, key -> new HashMap<>());
            for (Object id : ids) {
                Document before = known.get(id);
                Document after = stored(namespace, id);
                known.put(id, after);
                boolean modifies = update.keySet().stream().anyMatch(name -> name.startsWith("$"));
                Document event = event(modifies ? "update" : "replace", namespace)
                    .append("documentKey", new Document("_id", id));
                if (modifies) {
                    event.append("updateDescription", difference(before, after));
                }
                add(event, before, after);
            }
        }

        @Override
        public void handleDelete(String namespace, Document query, List<Object> ids) {
            for (Object id : ids) {
                Document before = images.get(namespace).remove(id);
                add(event("delete", namespace).append("documentKey", new Document("_id", id)), before, null);
            }
        }

        @Override
        public void handleDropCollection(String namespace) {
            if (images.remove(namespace) != null) {
                withImages.remove(namespace);
                add(event("drop", namespace), null, null);
            }
        }

        @Override
        public Cursor createCursor(Document options, String namespace, Aggregation aggregation) {
            throw new UnsupportedOperationException();
        }
    }

    private Document stored(String namespace, Object id) {
        int dot = namespace.indexOf('.');
        MongoCollection<?> collection = resolveDatabase(namespace.substring(0, dot))
            .resolveCollection(namespace.substring(dot + 1), false);
        if (collection == null) {
            return null;
        }
        // By the index, unless it could be taken for an expression.
        Object value = id instanceof Document ? new Document("$eq", id) : id;
        return collection.handleQueryAsStream(new Document("_id", value))
            .findFirst().map(Document::cloneDeeply).orElse(null);
    }

    private static Document difference(Document before, Document after) {
        Document updated = new Document();
        List<String> removed = new ArrayList<>();
        compare("", before, after, updated, removed);
        return new Document("updatedFields", updated).append("removedFields", removed)
            .append("truncatedArrays", new ArrayList<>());
    }

    private static void compare(
        String path, Document before, Document after, Document updated, List<String> removed) {
        for (String name : before.keySet()) {
            if (!after.containsKey(name)) {
                removed.add(path + name);
            }
        }
        for (Map.Entry<String, Object> each : after.entrySet()) {
            Object old = before.get(each.getKey());
            if (old instanceof Document from && each.getValue() instanceof Document to) {
                compare(path + each.getKey() + ".", from, to, updated, removed);
            } else if (!before.containsKey(each.getKey()) || !Objects.equals(old, each.getValue())) {
                updated.put(path + each.getKey(), each.getValue());
            }
        }
    }

    // Streams.

    private Document watch(String database, Document query, List<?> stages) {
        if (standalone) {
            throw new MongoServerError(40573, "Location40573",
                "The $changeStream stage is only supported on replica sets");
        }
        Stream_ stream = new Stream_();
        stream.options = (Document) ((Document) stages.get(0)).get("$changeStream");
        boolean all = Boolean.TRUE.equals(stream.options.get("allChangesForCluster"));
        stream.database = all ? null : database;
        List<Document> filter = stages.stream().skip(1).map(stage -> (Document) stage)
            .filter(stage -> !stage.containsKey("$changeStreamSplitLargeEvent")).collect(Collectors.toList());
        stream.filter = Aggregation.fromPipeline(filter, this::resolveDatabase,
            resolveDatabase(database), null, recorder);
        stream.place = begin(stream.options);
        if (Long.compareUnsigned(stream.place.time, forgottenTime) < 0) {
            throw new MongoServerError(286, "ChangeStreamHistoryLost",
                "Resume of change stream was not possible, as the resume point may no longer be in the oplog.");
        }
        long cursor = nextCursor++;
        streams.put(cursor, stream);
        return batch(cursor, stream, database, "firstBatch", (Document) query.get("cursor"));
    }

    private Place begin(Document options) {
        if (options.get("startAtOperationTime") instanceof BsonTimestamp time) {
            return new Place(time.getValue() - 1, LAST);
        }
        Document after = (Document) options.getOrDefault("startAfter", options.get("resumeAfter"));
        if (after == null) {
            return new Place(lastTime, LAST);
        }
        String token = (String) after.get("_data");
        if (token.endsWith("FF") && options.containsKey("resumeAfter")) {
            throw new MongoServerError(260, "InvalidResumeToken",
                "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.");
        }
        try {
            long time = Long.parseUnsignedLong(token.substring(2, 18), 16);
            return new Place(time, token.startsWith("2B022C", 18)
                ? Integer.parseInt(token.substring(24, 32), 16) : LAST);
        } catch (RuntimeException e) {
            throw new MongoServerError(50811, "Location50811", "KeyString format error: Unknown type");
        }
    }

    private Document more(long cursor, String database, Document query) {
        Stream_ stream = streams.get(cursor);
        long wait = ((Number) query.getOrDefault("maxTimeMS", 1000)).longValue();
        long deadline = System.nanoTime() + wait * 1_000_000;
        while (true) {
            Document answer = batch(cursor, stream, database, "nextBatch", query);
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0 || !((List<?>) ((Document) answer.get("cursor")).get("nextBatch")).isEmpty()) {
                return answer;
            }
            try {
                wait(left);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    private Document batch(long cursor, Stream_ stream, String database, String name, Document limits) {
        int limit = ((Number) limits.getOrDefault("batchSize", LAST)).intValue();
        List<Document> batch = new ArrayList<>();
        long size = 0;
        boolean ended = true;
        boolean invalidated = false;
        for (int each = firstBehind(stream.place); each < log.size(); each++) {
            Entry entry = log.get(each);
            long bytes = sizeOf(entry);
            if (batch.size() >= limit || !batch.isEmpty() && size + bytes > MAX_DOCUMENT_BYTES) {
                ended = false;
                break;
            }
            stream.place = new Place(entry.time, entry.index);
            if (!isSeen(stream, entry)) {
                continue;
            }
            List<Document> passed = stream.filter.runStages(Stream.of(told(stream, entry)));
            batch.addAll(passed);
            size += passed.isEmpty() ? 0 : bytes;
            invalidated = entry.event.get("operationType").equals("invalidate");
            if (invalidated) {
                streams.remove(cursor);
                break;
            }
        }
        if (ended && !invalidated) {
            stream.place = new Place(lastTime, LAST);
        }
        Document last = batch.isEmpty() ? null : (Document) batch.get(batch.size() - 1).get("_id");
        boolean tellsEnd = last == null || ended && !last.get("_data").toString().startsWith(hex(lastTime));
        Document token = tellsEnd && !invalidated
            ? new Document("_data", hex(stream.place.time) + "2B0229296E04") : last;
        Document answer = ok();
        answer.put("cursor", new Document("id", invalidated ? 0L : cursor)
            .append("ns", database + ".$cmd.aggregate").append(name, batch).append("postBatchResumeToken", token));
        return answer;
    }

    private int firstBehind(Place place) {
        int low = 0;
        int high = log.size();
        while (low < high) {
            int middle = (low + high) >>> 1;
            if (place.isBefore(log.get(middle))) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        return low;
    }

    private static boolean isSeen(Stream_ stream, Entry entry) {
        if (entry.event.get("operationType").equals("invalidate")) {
            return entry.event.get("of").equals(stream.database);
        }
        return stream.database == null
            || ((Document) entry.event.get("ns")).get("db").equals(stream.database);
    }

    private Document told(Stream_ stream, Entry entry) {
        String kind = (String) entry.event.get("operationType");
        boolean invalidates = kind.equals("invalidate");
        String data = String.format("%s2B022C%08X%s", hex(entry.time), entry.index, invalidates ? "FF" : "04");
        Document told = new Document("_id", new Document("_data", data));
        told.putAll(entry.event);
        told.remove("of");
        Document ns = (Document) entry.event.get("ns");
        if (ns == null || ns.get("coll") == null) {
            return told;
        }
        String namespace = ns.get("db") + "." + ns.get("coll");
        boolean hasImages = withImages.contains(namespace);
        Object mode = stream.options.get("fullDocument");
        if (kind.equals("insert") || kind.equals("replace")) {
            told.put("fullDocument", entry.after);
        } else if (kind.equals("update") && "updateLookup".equals(mode)) {
            told.put("fullDocument", stored(namespace, ((Document) entry.event.get("documentKey")).get("_id")));
        } else if (kind.equals("update") && "whenAvailable".equals(mode)) {
            told.put("fullDocument", hasImages ? entry.after : null);
        }
        if ("whenAvailable".equals(stream.options.get("fullDocumentBeforeChange"))
            && Set.of("update", "replace", "delete").contains(kind)) {
            told.put("fullDocumentBeforeChange", hasImages ? entry.before : null);
        }
        return told;
    }

    private static String hex(long time) {
        return String.format("82%016X", time);
    }

    private static long sizeOf(Entry entry) {
        return 500 + roughSize(entry.before) + roughSize(entry.after);
    }

    private static long roughSize(Object value) {
        if (value instanceof String text) {
            return text.length();
        } else if (value instanceof Document document) {
            long size = 5;
            for (Map.Entry<String, Object> each : document.entrySet()) {
                size += each.getKey().length() + 2 + roughSize(each.getValue());
            }
            return size;
        } else if (value instanceof Collection<?> values) {
            return values.stream().mapToLong(ReplicaSet::roughSize).sum();
        }
        return 8;
    }

    private static Document event(String type, String namespace) {
        return new Document("operationType", type).append("ns", namespace(namespace));
    }

    private static Document namespace(String name) {
        int dot = name.indexOf('.');
        return new Document("db", name.substring(0, dot)).append("coll", name.substring(dot + 1));
    }

    private static String sessionOf(Document query) {
        return ((Document) query.get("lsid")).get("id") + ":" + query.get("txnNumber");
    }

    private static Document ok() {
        return new Document("ok", 1.0);
    }
}
