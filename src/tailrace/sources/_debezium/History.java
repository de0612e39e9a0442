package tailrace;

import io.debezium.document.Array;
import io.debezium.document.Document;
import io.debezium.document.DocumentReader;
import io.debezium.document.DocumentWriter;
import io.debezium.relational.history.AbstractSchemaHistory;
import io.debezium.relational.history.HistoryRecord;
import io.debezium.relational.history.SchemaHistoryException;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.regex.Pattern;

/**
 * The tables as statements made them, one record to a line, in the file that _binlog_history.py looks after.
 *
 * A record is on disk before any row that was written behind its statement is handed over. A statement that takes rows
 * away or brings rows in without saying which ends the engine.
 */
public class History extends AbstractSchemaHistory {

    private static final String SETTING = "schema.history.internal.tailrace.";
    private static final Pattern UNTOLD = Pattern.compile(
        "\\b(DROP|TRUNCATE|EXCHANGE|CONVERT|IMPORT|DISCARD)\\s+(PARTITION|TABLE|SUBPARTITION|TABLESPACE)\\b",
        Pattern.CASE_INSENSITIVE);

    private static final HashSet UNREADABLE = new HashSet(Arrays.asList(new Object[] {"UUID", "INET4", "INET6", "VECTOR", "XMLTYPE"}));

    public void initializeStorage() {
    }

    public boolean storageExists() {
        return true;
    }

    public boolean exists() {
        return file().length() > 0;
    }

    private File file() {
        return new File(config.getString(SETTING + "file"));
    }

    protected void storeRecord(HistoryRecord record) throws SchemaHistoryException {
        refuseUntold(record.document());
        try {
            FileOutputStream out = new FileOutputStream(file(), true);
            try {
                out.write((DocumentWriter.defaultWriter().write(record.document()) + "\n").getBytes(StandardCharsets.UTF_8));
                out.getFD().sync();
            } finally {
                out.close();
            }
        } catch (IOException error) {
            throw new SchemaHistoryException("the schema history could not be written", error);
        }
    }

    protected void recoverRecords(java.util.function.Consumer records) {
        try {
            BufferedReader in = new BufferedReader(new InputStreamReader(new FileInputStream(file()), StandardCharsets.UTF_8));
            try {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    Document document = DocumentReader.defaultReader().read(line);
                    Document position = document.getDocument("position");
                    if (position != null) {
                        // The engine resumes by file and place, and compares those only where neither side has more.
                        position.remove("gtids");
                        position.remove("server_id");
                        records.accept(new HistoryRecord(document));
                    }
                }
            } finally {
                in.close();
            }
        } catch (IOException error) {
            throw new SchemaHistoryException("the schema history could not be read", error);
        }
    }

    private void refuseUntold(Document record) {
        if (record.getDocument("position").has("snapshot")) {
            return;
        }
        HashSet tables = new HashSet(Arrays.asList(config.getString(SETTING + "tables").split("\n")));
        String statement = record.getString("ddl");
        Array changes = record.getArray("tableChanges");
        for (int i = 0; changes != null && i < changes.size(); i++) {
            Document change = changes.get(i).asDocument();
            String table = name(change.getString("id"));
            String before = change.getString("previousId");
            boolean replaced = !"ALTER".equals(change.getString("type")) || (before != null && !name(before).equals(table));
            boolean ours = tables.contains(table) || (before != null && tables.contains(name(before)));
            if (ours && hasUnreadable(change)) {
                throw new SchemaHistoryException("table " + table + " has a column of a type that cannot be captured: " + statement);
            }
            if (ours && (replaced || (statement != null && UNTOLD.matcher(statement).find()))) {
                throw new SchemaHistoryException("table " + table + " was changed by a statement that does not tell its rows: " + statement);
            }
        }
    }

    // The engine reads them from a snapshot, and something else from the binlog.
    private static boolean hasUnreadable(Document change) {
        Document table = change.getDocument("table");
        Array columns = table == null ? null : table.getArray("columns");
        for (int i = 0; columns != null && i < columns.size(); i++) {
            if (UNREADABLE.contains(columns.get(i).asDocument().getString("typeName").toUpperCase())) {
                return true;
            }
        }
        return false;
    }

    // Written as "shop"."orders", a quote in a name twice.
    private static String name(String id) {
        String[] parts = id.substring(1, id.length() - 1).split("\"\\.\"");
        return parts[0].replace("\"\"", "\"") + "." + parts[parts.length - 1].replace("\"\"", "\"");
    }
}
