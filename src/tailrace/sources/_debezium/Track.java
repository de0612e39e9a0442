package tailrace;

import com.fasterxml.jackson.core.JsonGenerator;
import io.debezium.engine.DebeziumEngine;
import java.io.IOException;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;

/**
 * What a database calls a place: how far its records have come, and which of them were seen before.
 *
 * Consumer calls it with each record, in order. Compiled at start by Janino, like Consumer.
 */
public abstract class Track {

    /** Say what the reader's checkpoint names, in the notation of `stand`; called before the engine starts. */
    public abstract void resume(String stand);

    /** How far the records have come, as text for the reader. */
    public abstract String stand();

    /** The place of the newest message of ours among the records, 0 if there was none. */
    public abstract long message();

    /** Whether this offset is of a record behind the snapshot. */
    public abstract boolean streaming(Map offset);

    /** Take note of a row of the snapshot. */
    public abstract void snapshot(Map offset);

    /** Take note of what a record behind the snapshot says is done. */
    public abstract void advance(Map offset);

    /** Take note of a message that is no row. */
    public abstract void message(Struct value, Struct source);

    /** Take note of a row, and say whether the reader has it already. */
    public abstract boolean seen(Struct source, Map offset);

    /** The qualified name of the table. */
    public abstract String table(Struct source);

    /** Whether the bytes of such a value are text. */
    public abstract boolean isText(Schema schema);

    /** Write the place of a row into its message. */
    public abstract void write(JsonGenerator out, Struct source, Map offset) throws IOException;

    /** Tell the engine that everything up to `place` is durable. */
    public abstract void mark(DebeziumEngine.Offsets offsets, Long place);

    /** The database's own name of a value's type. */
    public static Object declared(Schema schema) {
        Map parameters = schema.parameters();
        return parameters == null ? null : parameters.get("__debezium.source.column.type");
    }

    protected static long number(Object value) {
        return value == null ? 0 : ((Number) value).longValue();
    }
}
