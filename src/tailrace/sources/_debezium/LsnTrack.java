package tailrace;

import com.fasterxml.jackson.core.JsonGenerator;
import io.debezium.engine.DebeziumEngine;
import java.io.IOException;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;

/** PostgreSQL: whole transactions up to an LSN, then how many events of the next one; see stand.py. */
public class LsnTrack extends Track {

    private long commit, xid, lsn, count;
    private long messageLsn;
    private long skipXid, skipLsn, skipCount;
    /** Where we went on from, as long as nothing but what lies before it has come: a stand never goes back. */
    private String resumed;

    public void resume(String stand) {
        String[] parts = stand.split(" ");
        commit = Long.parseLong(parts[0]);
        skipXid = Long.parseLong(parts[1]);
        skipLsn = Long.parseLong(parts[2]);
        skipCount = Long.parseLong(parts[3]);
        resumed = stand;
    }

    public String stand() {
        return resumed != null ? resumed : commit + " " + xid + " " + lsn + " " + count;
    }

    public long message() {
        return messageLsn;
    }

    public boolean streaming(Map offset) {
        return offset.get("snapshot") == null || Boolean.TRUE.equals(offset.get("snapshot_completed"));
    }

    public void snapshot(Map offset) {
    }

    public void advance(Map offset) {
        Number done = (Number) offset.get("lsn_commit");
        if (done != null && done.longValue() > commit) {
            commit = done.longValue();
            resumed = null;
            xid = 0;
            lsn = 0;
            count = 0;
            skipXid = 0;
        }
    }

    public void message(Struct value, Struct source) {
        if ("tailrace".equals(value.getStruct("message").getString("prefix"))) {
            messageLsn = Math.max(messageLsn, source.getInt64("lsn").longValue());
        }
        Long writer = source.getInt64("txId");
        // Another transaction has begun, so the one we were in is complete; its commit is in the offset.
        if (writer != null && writer.longValue() != xid) {
            xid = 0;
        }
    }

    public boolean seen(Struct source, Map offset) {
        Long writer = source.getInt64("txId");
        long place = source.getInt64("lsn").longValue();
        long transaction = writer == null ? -1 : writer.longValue();
        if (transaction == xid && place == lsn) {
            count++;
        } else {
            xid = transaction;
            lsn = place;
            count = 1;
        }
        if (skipXid == 0) {
            resumed = null;
            return false;
        }
        if (transaction != skipXid) {
            throw new IllegalStateException("transaction " + transaction + " came where " + skipXid + " was expected");
        }
        boolean skipped = place < skipLsn || (place == skipLsn && count <= skipCount);
        if (!skipped) {
            resumed = null;
        }
        return skipped;
    }

    public String table(Struct source) {
        return source.getString("schema") + "." + source.getString("table");
    }

    // A type that the engine does not know arrives as the bytes of its text.
    public boolean isText(Schema schema) {
        Object declared = declared(schema);
        return declared != null && schema.name() == null && !"BYTEA".equals(declared) && !"_BYTEA".equals(declared);
    }

    // A row that was written before the commit of another transaction and committed after it comes after it: see ADR 33.
    public void write(JsonGenerator out, Struct source, Map offset) throws IOException {
        long place = source.getInt64("lsn").longValue();
        out.writeNumberField("lsn", place);
        if (place < commit) {
            out.writeNumberField("behind", commit - 1);
        }
        Long transaction = source.getInt64("txId");
        if (transaction != null) {
            out.writeNumberField("txId", transaction.longValue());
        }
    }

    public void mark(DebeziumEngine.Offsets offsets, Long place) {
        offsets.set("lsn", place);
        offsets.set("lsn_commit", place);
    }
}
