package tailrace;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.io.SerializedString;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.runtime.WorkerConfig;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.MemoryOffsetBackingStore;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.LoggerConfig;
import org.apache.logging.log4j.core.config.Property;

/**
 * Packs each batch of the engine into column buffers and hands it over whole; the batch is marked as
 * processed only with the place that the other side names when it releases it.
 *
 * Compiled at start by Janino, hence plain Java: no lambdas, no inferred generics. One thread (the
 * engine's) packs; one thread (the reader's) calls poll, release and close. The buffers of a batch are
 * valid until its release.
 */
public class Consumer implements DebeziumEngine.ChangeConsumer, DebeziumEngine.CompletionCallback {

    private static final int NUMBER = 0, REAL = 1, BOOL = 2, TEXT = 3, BINARY = 4, TEXT_BYTES = 5, ARRAY = 6, NESTED = 7, DECIMAL = 8;
    private static final int ROW = 0, MESSAGE = 1, HEARTBEAT = 2, OTHER = 3;
    private static final int MANY_SCHEMAS = 4096;
    private static final int MANY_DIGITS = 2000;

    /** The shape of one table's messages, worked out once per schema object. */
    private static final class Layout {
        int role;
        int id;
        Field before, after, source, op, time;
        Field[] columns;
        SerializedString[] names;
        int[] kinds;
        int[] elements;
        /** Which columns the database sends of a row as it was; null for all of them. */
        boolean[] sent;
        boolean keyed;
        Layout key;
    }

    private static final class Bytes extends ByteArrayOutputStream {
        Bytes(int size) { super(size); }
        byte[] array() { return buf; }
    }

    private final String prefix;
    private final String unavailable;
    private final Map keysOf;
    private final Map sentOf;
    private final Object[] placeholders;
    private final byte[] unavailableBytes;
    private final IdentityHashMap layouts = new IdentityHashMap();
    private final HashMap identifiers = new HashMap();

    private final SynchronousQueue handover = new SynchronousQueue();
    private final SynchronousQueue releases = new SynchronousQueue();
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile boolean closing = false;
    private volatile Throwable failure = null;
    private volatile String failureText = null;
    private DebeziumEngine engine;
    private Thread thread;

    private final Bytes keys = new Bytes(1 << 16);
    private final Bytes values = new Bytes(1 << 20);
    private final JsonGenerator keyWriter;
    private final JsonGenerator valueWriter;
    private final ArrayList unchanged = new ArrayList();
    private final ArrayList lost = new ArrayList();
    private long[] times = new long[1024];
    private int[] schemas = new int[1024];
    private int[] keyEnds = new int[1025];
    private int[] valueEnds = new int[1025];
    private byte[] keyNull = new byte[1024];

    /** What a handed-over batch is; read by the other side between poll and release. */
    public int rows;
    public ByteBuffer keyData, valueData, keyOffsets, valueOffsets, keyNulls, timestamps, layoutIds;
    public List descriptions = new ArrayList();
    public boolean snapshotDone;
    public long snapshotRows;
    public long received;

    private final Track track;

    /** The first half of a changed key, kept back until the second half can be in the same page. */
    private SourceRecord held;

    /**
     * `keysOf` names the tables to read, each with the list of its key columns. `sentOf` lists the columns that the
     * database sends of a row as it was, for the tables of which it does not send all: the engine makes values up for others.
     */
    public Consumer(String prefix, String unavailable, Map keysOf, Map sentOf, Track track) throws IOException {
        this.prefix = prefix;
        this.track = track;
        this.unavailable = unavailable;
        this.unavailableBytes = unavailable.getBytes(StandardCharsets.UTF_8);
        this.keysOf = keysOf;
        this.sentOf = sentOf;
        ArrayList ints = new ArrayList();
        ArrayList longs = new ArrayList();
        for (int i = 0; i < unavailableBytes.length; i++) {
            ints.add(Integer.valueOf(unavailableBytes[i]));
            longs.add(Long.valueOf(unavailableBytes[i]));
        }
        this.placeholders = new Object[] {
            Arrays.asList(new Object[] {unavailable}), ints, longs,
            Arrays.asList(new Object[] {UUID.nameUUIDFromBytes(unavailableBytes).toString()})
        };
        JsonFactory factory = new JsonFactory();
        this.keyWriter = factory.createGenerator(keys);
        this.valueWriter = factory.createGenerator(values);
        this.keyWriter.setRootValueSeparator(null);
        this.valueWriter.setRootValueSeparator(null);
    }

    /** Say that the engine resumes behind a snapshot; the track knows where. */
    public void resume() {
        this.snapshotDone = true;
    }

    public void start(DebeziumEngine engine) {
        this.engine = engine;
        thread = new Thread(engine, "tailrace-engine");
        thread.setDaemon(true);
        thread.start();
    }

    /** Wait for a batch; false when there was none in time or the engine has ended. */
    public boolean poll(long millis) throws InterruptedException {
        Object got = handover.poll(ended.getCount() == 0 ? 0 : millis, TimeUnit.MILLISECONDS);
        return got != null;
    }

    /** Let the engine go on; everything up to `place` is durable, or nothing new if it is negative. */
    public void release(long place) throws InterruptedException {
        while (!releases.offer(Long.valueOf(place), 50, TimeUnit.MILLISECONDS)) {
            if (closing || ended.getCount() == 0) {
                return;
            }
        }
    }

    public boolean hasEnded() {
        return ended.getCount() == 0;
    }

    /** The causes of the failure, outermost first, as class, SQL state and message; empty after a clean end. */
    public String[] failure() {
        ArrayList lines = new ArrayList();
        for (Throwable cause = failure; cause != null && lines.size() < 30; cause = cause.getCause()) {
            String state = cause instanceof SQLException ? ((SQLException) cause).getSQLState() : null;
            lines.add(cause.getClass().getName());
            lines.add(state == null ? "" : state);
            lines.add(cause.getMessage() == null ? "" : cause.getMessage());
        }
        if (lines.isEmpty() && failureText != null) {
            lines.add("");
            lines.add("");
            lines.add(failureText);
        }
        return (String[]) lines.toArray(new String[0]);
    }

    /** Stop the engine and wait for its threads; what was not released is not marked. */
    public boolean close(long millis) throws InterruptedException {
        long deadline = System.currentTimeMillis() + millis;
        closing = true;
        while (engine != null && ended.getCount() > 0 && System.currentTimeMillis() < deadline) {
            try {
                engine.close();
                break;
            } catch (IllegalStateException starting) {
                ended.await(20, TimeUnit.MILLISECONDS);
            } catch (IOException ignored) {
                break;
            }
        }
        if (thread != null) {
            thread.join(Math.max(1, deadline - System.currentTimeMillis()));
        }
        return thread == null || !thread.isAlive();
    }

    public void handle(boolean success, String message, Throwable error) {
        if (!success && !closing) {
            failure = error;
            failureText = message;
        }
        ended.countDown();
    }

    public void handleBatch(List records, DebeziumEngine.RecordCommitter committer) throws InterruptedException {
        try {
            pack(records);
        } catch (IOException error) {
            throw new IllegalStateException("could not write a row as JSON", error);
        }
        Object last = records.isEmpty() ? null : records.get(records.size() - 1);
        while (!handover.offer(Boolean.TRUE, 50, TimeUnit.MILLISECONDS)) {
            refuseWhenClosing();
        }
        Long place = null;
        while (place == null) {
            refuseWhenClosing();
            place = (Long) releases.poll(50, TimeUnit.MILLISECONDS);
        }
        descriptions = new ArrayList();
        if (last != null && place.longValue() >= 0) {
            DebeziumEngine.Offsets offsets = committer.buildOffsets();
            track.mark(offsets, place);
            committer.markProcessed(last, offsets);
            committer.markBatchFinished();
        }
    }

    private void refuseWhenClosing() throws InterruptedException {
        if (closing) {
            throw new InterruptedException("closed by the reader");
        }
    }

    private void pack(List records) throws IOException {
        if (Tripwire.lost != null) {
            throw new IllegalStateException("something cannot be carried: " + Tripwire.lost);
        }
        rows = 0;
        keys.reset();
        values.reset();
        received += records.size();
        int size = records.size() + 1;
        if (times.length < size) {
            times = new long[size];
            schemas = new int[size];
            keyNull = new byte[size];
            keyEnds = new int[size + 1];
            valueEnds = new int[size + 1];
        }
        for (int i = 0; i < records.size(); i++) {
            SourceRecord record = (SourceRecord) ((RecordChangeEvent) records.get(i)).record();
            if (held != null) {
                pack(held);
            }
            held = record.headers().lastWithName("__debezium.newkey") == null ? null : record;
            if (held == null) {
                pack(record);
            }
        }
        keyData = direct(keyData, keys.size()).put(keys.array(), 0, keys.size());
        valueData = direct(valueData, values.size()).put(values.array(), 0, values.size());
        keyNulls = direct(keyNulls, rows).put(keyNull, 0, rows);
        keyOffsets = direct(keyOffsets, 4 * (rows + 1));
        keyOffsets.asIntBuffer().put(keyEnds, 0, rows + 1);
        valueOffsets = direct(valueOffsets, 4 * (rows + 1));
        valueOffsets.asIntBuffer().put(valueEnds, 0, rows + 1);
        timestamps = direct(timestamps, 8 * rows);
        timestamps.asLongBuffer().put(times, 0, rows);
        layoutIds = direct(layoutIds, 4 * rows);
        layoutIds.asIntBuffer().put(schemas, 0, rows);
    }

    private static ByteBuffer direct(ByteBuffer have, int size) {
        if (have == null || have.capacity() < size) {
            have = ByteBuffer.allocateDirect(Math.max(64, size + size / 2)).order(ByteOrder.nativeOrder());
        }
        have.clear();
        return have;
    }

    private void pack(SourceRecord record) throws IOException {
        if (record.value() == null) {
            return;
        }
        Layout layout = layout(record);
        Struct value = (Struct) record.value();
        Map offset = record.sourceOffset();
        if (layout.role == HEARTBEAT) {
            if (track.streaming(offset)) {
                snapshotDone = true;
                track.advance(offset);
            }
            return;
        }
        Struct source = (Struct) value.get(layout.source);
        String op = (String) value.get(layout.op);
        boolean snapshot = "r".equals(op);
        if (snapshot) {
            snapshotRows++;
            track.snapshot(offset);
            Object marker = source.get("snapshot");
            if ("last".equals(marker)) {
                snapshotDone = true;
            }
        } else {
            snapshotDone = true;
            track.advance(offset);
        }
        if (layout.role == MESSAGE) {
            track.message(value, source);
            return;
        }
        if (layout.role == OTHER || (!snapshot && track.seen(source, offset))) {
            return;
        }
        write(record, layout, value, source, op, snapshot);
    }

    private void write(SourceRecord record, Layout layout, Struct value, Struct source, String op, boolean snapshot)
            throws IOException {
        JsonGenerator out = valueWriter;
        Struct before = (Struct) value.get(layout.before);
        Struct after = (Struct) value.get(layout.after);
        out.writeStartObject();
        out.writeStringField("op", op);
        out.writeFieldName("before");
        writeRow(out, layout, before, null, true);
        out.writeFieldName("after");
        writeRow(out, layout, after, before, false);
        if (after != null) {
            writeNames(out, "unchanged", unchanged);
            writeNames(out, "lost", lost);
        }
        Header old = "c".equals(op) && layout.keyed ? record.headers().lastWithName("__debezium.oldkey") : null;
        if (old != null) {
            out.writeFieldName("old_key");
            writeRow(out, layout.key, (Struct) old.value(), null, false);
        }
        out.writeObjectFieldStart("source");
        track.write(out, source, record.sourceOffset());
        out.writeNumberField("ts_ms", source.getInt64("ts_ms").longValue());
        if (snapshot) {
            out.writeBooleanField("snapshot", true);
        }
        out.writeEndObject();
        Long seenAt = (Long) value.get(layout.time);
        if (seenAt != null) {
            out.writeNumberField("ts_ms", seenAt.longValue());
        }
        out.writeEndObject();
        out.flush();

        boolean keyed = layout.keyed && record.key() != null;
        if (keyed) {
            writeRow(keyWriter, layout.key, (Struct) record.key(), null, false);
            keyWriter.flush();
        }
        keyNull[rows] = (byte) (keyed ? 1 : 0);
        schemas[rows] = layout.id;
        times[rows] = source.getInt64("ts_us").longValue();
        rows++;
        keyEnds[rows] = keys.size();
        valueEnds[rows] = values.size();
    }

    private static void writeNames(JsonGenerator out, String what, ArrayList names) throws IOException {
        if (!names.isEmpty()) {
            out.writeArrayFieldStart(what);
            for (int i = 0; i < names.size(); i++) {
                out.writeString((SerializedString) names.get(i));
            }
            out.writeEndArray();
        }
    }

    private void writeRow(JsonGenerator out, Layout layout, Struct row, Struct before, boolean old) throws IOException {
        unchanged.clear();
        lost.clear();
        if (row == null) {
            out.writeNull();
            return;
        }
        out.writeStartObject();
        for (int i = 0; i < layout.columns.length; i++) {
            boolean sent = layout.sent == null || layout.sent[i];
            if (old && !sent) {
                continue;
            }
            // Connect's plain get would put the column's default in the place of a NULL.
            Object value = row.getWithoutDefault(layout.columns[i].name());
            if (value == Known.LOST) {
                lost.add(layout.names[i]);
                value = null;
            } else if (value != null && layout.kinds[i] >= TEXT && isUnavailable(layout.kinds[i], value)) {
                value = before == null || !sent ? null : before.getWithoutDefault(layout.columns[i].name());
                if (value == null || isUnavailable(layout.kinds[i], value)) {
                    unchanged.add(layout.names[i]);
                    continue;
                }
                if (value == Known.LOST) {
                    lost.add(layout.names[i]);
                    value = null;
                }
            }
            out.writeFieldName(layout.names[i]);
            writeValue(out, layout.kinds[i], layout.elements[i], value);
        }
        out.writeEndObject();
    }

    private boolean isUnavailable(int kind, Object value) {
        switch (kind) {
            case TEXT:
            case DECIMAL:
                String text = value.toString();
                // An hstore as JSON carries the marker as key and value.
                return text.length() >= unavailable.length() && text.length() < 3 * unavailable.length()
                    && text.contains(unavailable);
            case BINARY:
            case TEXT_BYTES:
                return Arrays.equals(bytes(value), unavailableBytes);
            case ARRAY:
                for (int i = 0; i < placeholders.length; i++) {
                    if (placeholders[i].equals(value)) {
                        return true;
                    }
                }
                List list = (List) value;
                Object first = list.size() == 1 ? list.get(0) : null;
                return (first instanceof byte[] || first instanceof ByteBuffer)
                    && Arrays.equals(bytes(first), unavailableBytes);
            default:
                return false;
        }
    }

    private void writeValue(JsonGenerator out, int kind, int element, Object value) throws IOException {
        if (value == null) {
            out.writeNull();
            return;
        }
        switch (kind) {
            case NUMBER:
                out.writeNumber(((Number) value).longValue());
                break;
            case REAL:
                if (value instanceof Float) {
                    out.writeNumber(((Float) value).floatValue());
                } else {
                    out.writeNumber(((Number) value).doubleValue());
                }
                break;
            case BOOL:
                out.writeBoolean(((Boolean) value).booleanValue());
                break;
            case TEXT:
                out.writeString(value.toString());
                break;
            case DECIMAL:
                out.writeString(value instanceof BigDecimal ? ((BigDecimal) value).toPlainString() : decimal(value.toString()));
                break;
            case BINARY:
                out.writeBinary(bytes(value));
                break;
            case TEXT_BYTES:
                out.writeString(new String(bytes(value), StandardCharsets.UTF_8));
                break;
            case ARRAY:
                out.writeStartArray();
                for (Iterator each = ((Collection) value).iterator(); each.hasNext();) {
                    writeValue(out, element, NESTED, each.next());
                }
                out.writeEndArray();
                break;
            default:
                StringWriter text = new StringWriter();
                JsonGenerator inner = new JsonFactory().createGenerator(text);
                writeNested(inner, value);
                inner.close();
                out.writeString(text.toString());
        }
    }

    // PostgreSQL's own words for what is not a number; and a negative scale comes as thousands of zeros.
    private static String decimal(String text) {
        if (text.length() > MANY_DIGITS && text.indexOf('.') > 0) {
            return new BigDecimal(text).stripTrailingZeros().toPlainString();
        } else if ("NAN".equals(text)) {
            return "NaN";
        } else if ("POSITIVE_INFINITY".equals(text)) {
            return "Infinity";
        }
        return "NEGATIVE_INFINITY".equals(text) ? "-Infinity" : text;
    }

    private void writeNested(JsonGenerator out, Object value) throws IOException {
        if (value == null) {
            out.writeNull();
        } else if (value instanceof Struct) {
            Struct struct = (Struct) value;
            out.writeStartObject();
            for (Iterator each = struct.schema().fields().iterator(); each.hasNext();) {
                Field field = (Field) each.next();
                out.writeFieldName(field.name());
                writeNested(out, struct.getWithoutDefault(field.name()));
            }
            out.writeEndObject();
        } else if (value instanceof Map) {
            out.writeStartObject();
            for (Iterator each = ((Map) value).entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                out.writeFieldName(String.valueOf(entry.getKey()));
                writeNested(out, entry.getValue());
            }
            out.writeEndObject();
        } else if (value instanceof Collection) {
            out.writeStartArray();
            for (Iterator each = ((Collection) value).iterator(); each.hasNext();) {
                writeNested(out, each.next());
            }
            out.writeEndArray();
        } else if (value instanceof Boolean) {
            out.writeBoolean(((Boolean) value).booleanValue());
        } else if (value instanceof Float || value instanceof Double) {
            out.writeNumber(((Number) value).doubleValue());
        } else if (value instanceof Number) {
            out.writeNumber(((Number) value).longValue());
        } else if (value instanceof byte[] || value instanceof ByteBuffer) {
            out.writeBinary(bytes(value));
        } else {
            out.writeString(value.toString());
        }
    }

    private static byte[] bytes(Object value) {
        if (value instanceof byte[]) {
            return (byte[]) value;
        }
        ByteBuffer buffer = (ByteBuffer) ((ByteBuffer) value).duplicate();
        byte[] copy = new byte[buffer.remaining()];
        buffer.get(copy);
        return copy;
    }

    private Layout layout(SourceRecord record) throws IOException {
        Layout layout = (Layout) layouts.get(record.valueSchema());
        if (layout != null) {
            return layout;
        }
        layout = describe(record);
        if (layouts.size() > MANY_SCHEMAS) {
            layouts.clear();
        }
        // A truncate has no key, so what it teaches is not the whole shape.
        if (record.keySchema() != null || !layout.keyed) {
            layouts.put(record.valueSchema(), layout);
        }
        return layout;
    }

    private Layout describe(SourceRecord record) throws IOException {
        Schema schema = record.valueSchema();
        Layout layout = new Layout();
        layout.op = schema.field("op");
        layout.source = schema.field("source");
        layout.time = schema.field("ts_ms");
        if (layout.op == null || layout.source == null) {
            layout.role = HEARTBEAT;
            return layout;
        }
        if (schema.field("message") != null) {
            layout.role = MESSAGE;
            return layout;
        }
        layout.before = schema.field("before");
        layout.after = schema.field("after");
        Struct source = ((Struct) record.value()).getStruct("source");
        String table = track.table(source);
        List keys = (List) keysOf.get(table);
        layout.role = keys == null ? OTHER : ROW;
        columns(layout, layout.after.schema());
        List sent = (List) sentOf.get(table);
        layout.sent = sent == null ? null : new boolean[layout.columns.length];
        for (int i = 0; sent != null && i < layout.sent.length; i++) {
            layout.sent[i] = sent.contains(layout.columns[i].name());
        }
        layout.keyed = keys != null && !keys.isEmpty();
        if (layout.keyed && record.keySchema() == null && !"t".equals(((Struct) record.value()).get(layout.op))) {
            throw new IllegalStateException("changes of table " + table + " came without the key " + keys + " that it has by now");
        }
        if (layout.keyed && record.keySchema() != null) {
            layout.key = new Layout();
            columns(layout.key, record.keySchema());
        }
        String text = description(table, layout, keys);
        Integer known = (Integer) identifiers.get(text);
        if (known == null) {
            known = Integer.valueOf(identifiers.size());
            identifiers.put(text, known);
            descriptions.add(new Object[] {known, text});
        }
        layout.id = known.intValue();
        return layout;
    }

    /** Describe a table that no row has come of, from what the engine knows; null if it has not met the table. */
    public String table(Known known, String table) throws IOException {
        Map columns = known.columns(table);
        if (columns == null) {
            return null;
        }
        SchemaBuilder row = SchemaBuilder.struct();
        for (Iterator each = columns.entrySet().iterator(); each.hasNext();) {
            Map.Entry column = (Map.Entry) each.next();
            row.field((String) column.getKey(), (Schema) column.getValue());
        }
        Layout layout = new Layout();
        columns(layout, row.build());
        List keys = (List) keysOf.get(table);
        layout.keyed = keys != null && !keys.isEmpty();
        return description(table, layout, keys);
    }

    private void columns(Layout layout, Schema schema) {
        List fields = schema.fields();
        int size = fields.size();
        layout.columns = new Field[size];
        layout.names = new SerializedString[size];
        layout.kinds = new int[size];
        layout.elements = new int[size];
        for (int i = 0; i < size; i++) {
            Field field = (Field) fields.get(i);
            layout.columns[i] = field;
            layout.names[i] = new SerializedString(field.name());
            layout.kinds[i] = kind(field.schema());
            layout.elements[i] = layout.kinds[i] == ARRAY ? kind(field.schema().valueSchema()) : NESTED;
        }
    }

    private int kind(Schema schema) {
        Schema.Type type = schema.type();
        if (type == Schema.Type.INT8 || type == Schema.Type.INT16 || type == Schema.Type.INT32 || type == Schema.Type.INT64) {
            return NUMBER;
        } else if (type == Schema.Type.FLOAT32 || type == Schema.Type.FLOAT64) {
            return REAL;
        } else if (type == Schema.Type.BOOLEAN) {
            return BOOL;
        } else if (type == Schema.Type.STRING) {
            return "NUMERIC".equals(Track.declared(schema)) ? DECIMAL : TEXT;
        } else if (type == Schema.Type.BYTES) {
            return Decimal.LOGICAL_NAME.equals(schema.name()) ? DECIMAL : track.isText(schema) ? TEXT_BYTES : BINARY;
        } else if (type == Schema.Type.ARRAY) {
            int element = kind(schema.valueSchema());
            return element == ARRAY ? NESTED : ARRAY;
        }
        return NESTED;
    }

    private String description(String table, Layout layout, List keys) throws IOException {
        StringWriter text = new StringWriter();
        JsonGenerator out = new JsonFactory().createGenerator(text);
        out.writeStartObject();
        out.writeStringField("topic", prefix + "." + table);
        out.writeStringField("table", table);
        out.writeArrayFieldStart("keys");
        for (int i = 0; i < (layout.key == null ? 0 : layout.key.columns.length); i++) {
            out.writeString(layout.key.columns[i].name());
        }
        for (int i = 0; layout.keyed && layout.key == null && i < keys.size(); i++) {
            out.writeString((String) keys.get(i));
        }
        out.writeEndArray();
        out.writeArrayFieldStart("columns");
        for (int i = 0; i < layout.columns.length; i++) {
            describe(out, layout.columns[i].name(), layout.columns[i].schema(), layout.kinds[i]);
        }
        out.writeEndArray();
        out.writeEndObject();
        out.close();
        return text.toString();
    }

    private void describe(JsonGenerator out, String name, Schema schema, int kind) throws IOException {
        out.writeStartObject();
        out.writeStringField("name", name);
        out.writeStringField("type", schema.type().getName());
        out.writeStringField("semantic", schema.name() == null ? "" : schema.name());
        out.writeBooleanField("optional", schema.isOptional());
        out.writeBooleanField("text", kind == TEXT_BYTES || kind == NESTED);
        Map parameters = schema.parameters();
        if (parameters != null) {
            out.writeObjectFieldStart("parameters");
            for (Iterator each = parameters.entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                out.writeStringField((String) entry.getKey(), (String) entry.getValue());
            }
            out.writeEndObject();
        }
        if (kind == ARRAY) {
            out.writeFieldName("element");
            describe(out, "element", schema.valueSchema(), kind(schema.valueSchema()));
        }
        if (schema.defaultValue() != null && (kind <= TEXT || kind == DECIMAL)) {
            out.writeFieldName("default");
            writeValue(out, kind, NESTED, schema.defaultValue());
        }
        out.writeEndObject();
    }

    /** The engine's offsets, begun with the place that the reader's checkpoint names and forgotten at the end. */
    public static class Offsets extends MemoryOffsetBackingStore {
        public void configure(WorkerConfig config) {
            Object offset = config.originals().get("tailrace.offset");
            if (offset != null) {
                String key = "[\"" + config.originals().get("name") + "\",{\"server\":\"" + config.originals().get("topic.prefix") + "\"}]";
                data.put(ByteBuffer.wrap(key.getBytes(StandardCharsets.UTF_8)), ByteBuffer.wrap(((String) offset).getBytes(StandardCharsets.UTF_8)));
            }
        }

        public Set connectorPartitions(String connectorName) {
            return null;
        }
    }

    /** Remembers that the engine said that it lets something go, so that no row passes behind it. */
    public static class Tripwire extends AbstractAppender {
        static volatile String lost = null;
        private static volatile Pattern watched = null;

        public Tripwire() {
            super("tripwire", null, null, true, new Property[0]);
        }

        /** Listen to the logger called `name`, and to nothing else of the engine. */
        public static void install(String name, boolean details) {
            Tripwire wire = new Tripwire();
            wire.start();
            LoggerContext context = (LoggerContext) LogManager.getContext(DebeziumEngine.class.getClassLoader(), false);
            Level level = details ? Level.DEBUG : Level.WARN;
            LoggerConfig logger = new LoggerConfig(name, level, false);
            logger.addAppender(wire, level, null);
            context.getConfiguration().addLogger(name, logger);
            context.updateLoggers();
        }

        /** Forget what was heard; of the statements that the engine leaves out, those that `pattern` matches count. */
        public static void reset(String pattern) {
            lost = null;
            watched = pattern.isEmpty() ? null : Pattern.compile(pattern, Pattern.CASE_INSENSITIVE | Pattern.DOTALL);
        }

        public void append(LogEvent event) {
            String said = event.getMessage().getFormat();
            if (said.startsWith("Unexpected value") || said.startsWith("Received DML")) {
                lost = event.getMessage().getFormattedMessage();
            } else if (watched != null && said.startsWith("DDL '{}' was filtered")) {
                Object[] parts = event.getMessage().getParameters();
                if (parts.length > 0 && watched.matcher(String.valueOf(parts[0])).matches()) {
                    lost = event.getMessage().getFormattedMessage();
                }
            }
        }
    }
}
