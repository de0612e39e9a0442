package tailrace;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.connect.data.Schema;

/** What an engine was started with, and the columns of its tables as far as it has met them. */
public final class Known {

    /** Stands for a value that cannot be carried; it is told from other empty lists by identity. */
    public static final List LOST = new ArrayList();

    private static final Map ENGINES = new HashMap();

    public final Properties settings;
    private final Map tables = new HashMap();

    public Known(Properties settings) {
        this.settings = settings;
    }

    /** Keep what is known of an engine that is about to start, under the name that its property `exact.engine` says. */
    public static synchronized Known announce(String name, Properties settings) {
        Known known = new Known(settings);
        ENGINES.put(name, known);
        return known;
    }

    public static synchronized Known met(String name) {
        return (Known) ENGINES.remove(name);
    }

    public synchronized void put(String table, String column, Schema schema) {
        Map columns = (Map) tables.get(table);
        // The engine goes through the columns of a table in one turn, and does so again when one has changed.
        if (columns == null || columns.containsKey(column)) {
            columns = new LinkedHashMap();
            tables.put(table, columns);
        }
        columns.put(column, schema);
    }

    public synchronized Map columns(String table) {
        Map columns = (Map) tables.get(table);
        return columns == null ? null : new LinkedHashMap(columns);
    }
}
