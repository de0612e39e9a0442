package tailrace;

import com.fasterxml.jackson.core.JsonGenerator;
import io.debezium.engine.DebeziumEngine;
import java.io.IOException;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.Struct;

/**
 * A binlog: whole transactions up to a place in a file, then how far into the next one; see _binlog_stand.py.
 *
 * An offset of the engine names the place at which the current transaction begins, and how many of its events, and
 * rows of the event in hand, are done. A transaction lies in the binlog in one piece, so those numbers are the same
 * each time it is read. Right after a connection the engine may name a place before the one it was given.
 */
public class BinlogTrack extends Track {

    private String file = "", gtids = "";
    private long pos, event, row, handled;
    private String skipFile;
    private long skipPos, skipEvent, skipRow;
    /** Where we went on from, as long as nothing but what lies before it has come: a stand never goes back. */
    private String resumed;

    public void resume(String stand) {
        String[] parts = stand.split(" ", 5);
        file = parts[0];
        pos = Long.parseLong(parts[1]);
        gtids = parts[4];
        skipEvent = Long.parseLong(parts[2]);
        skipRow = Long.parseLong(parts[3]);
        skipFile = skipEvent == 0 ? null : file;
        skipPos = pos;
        resumed = stand;
    }

    public String stand() {
        return resumed != null ? resumed : file + " " + pos + " " + event + " " + row + " " + gtids;
    }

    /** How many events behind `pos` the engine has handled, rows or not. */
    public long message() {
        return handled;
    }

    public boolean streaming(Map offset) {
        return offset.get("snapshot") == null;
    }

    public void snapshot(Map offset) {
        advance(offset);
    }

    public void advance(Map offset) {
        String name = (String) offset.get("file");
        long place = number(offset.get("pos"));
        int order = file.isEmpty() ? 1 : compare(name, place, file, pos);
        if (order > 0) {
            file = name;
            pos = place;
            resumed = null;
            event = 0;
            row = 0;
            if (offset.get("gtids") != null) {
                gtids = (String) offset.get("gtids");
            }
        }
        if (order >= 0) {
            handled = number(offset.get("event"));
        }
    }

    public void message(Struct value, Struct source) {
    }

    public boolean seen(Struct source, Map offset) {
        String name = (String) offset.get("file");
        long place = number(offset.get("pos"));
        if (compare(name, place, file, pos) != 0) {
            throw new IllegalStateException("a row at " + name + ":" + place + " came behind " + file + ":" + pos);
        }
        event = number(offset.get("event"));
        row = number(offset.get("row"));
        if (skipFile != null && compare(name, place, skipFile, skipPos) != 0) {
            skipFile = null;
        }
        boolean skipped = skipFile != null && (event < skipEvent || (event == skipEvent && row <= skipRow));
        if (!skipped) {
            resumed = null;
        }
        return skipped;
    }

    private static int compare(String file, long pos, String other, long otherPos) {
        int order = Long.compare(fileNumber(file), fileNumber(other));
        return order == 0 ? Long.compare(pos, otherPos) : order;
    }

    private static long fileNumber(String file) {
        return Long.parseLong(file.substring(file.lastIndexOf('.') + 1));
    }

    public String table(Struct source) {
        return source.getString("db") + "." + source.getString("table");
    }

    public boolean isText(Schema schema) {
        return false;
    }

    public void write(JsonGenerator out, Struct source, Map offset) throws IOException {
        out.writeStringField("place", String.format("%08x%016x%08x%08x", new Object[] {
            Long.valueOf(fileNumber((String) offset.get("file"))), Long.valueOf(number(offset.get("pos"))),
            Long.valueOf(number(offset.get("event"))), Long.valueOf(number(offset.get("row")))}));
        String gtid = source.getString("gtid");
        if (gtid != null) {
            out.writeStringField("gtid", gtid);
        }
    }

    // The server keeps its binlog for as long as it is told to, whoever reads it.
    public void mark(DebeziumEngine.Offsets offsets, Long place) {
    }
}
