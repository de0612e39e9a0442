package tailrace;

import io.debezium.config.Configuration;
import io.debezium.connector.postgresql.PostgresConnectorConfig;
import io.debezium.connector.postgresql.PostgresValueConverter;
import io.debezium.connector.postgresql.connection.PostgresConnection;
import io.debezium.relational.Column;
import io.debezium.relational.ColumnEditor;
import io.debezium.relational.ValueConverter;
import io.debezium.relational.mapping.PropagateSourceMetadataToSchemaParameter;
import io.debezium.spi.converter.ConvertedField;
import io.debezium.spi.converter.CustomConverter;
import io.debezium.spi.converter.RelationalColumn;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Calendar;
import java.util.GregorianCalendar;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.postgresql.util.PGobject;

/**
 * Stands between the database's value and the engine's own conversion where that one makes another value of it
 * without a word: dates before our era, bits of any length, and arrays of times, of names, of numbers that are none,
 * and of several dimensions.
 *
 * What the engine converts rightly is left to it. A value that no column can hold becomes LOST, which Consumer
 * knows by its identity and names in the message. On the way it learns what every table looks like, also one that
 * has no rows. Compiled at start by Janino, like Consumer.
 */
public class Exact implements CustomConverter {

    private static final String DATE = "io.debezium.time.Date";
    private static final String TIMESTAMP = "io.debezium.time.MicroTimestamp";
    private static final String ZONED = "io.debezium.time.ZonedTimestamp";
    private static final String ENUM = "io.debezium.data.Enum";
    private static final int BITS = 1562;
    private static final int BYTES = 17;
    private static final String DOMAIN_OF_BYTES = "tailrace.Bytes";
    private static final long MILLION = 1000000L;
    // No day and no time: outside of what any of the targets holds, as the engine's own numbers for them are.
    private static final int INFINITE_DAY = Integer.MAX_VALUE;
    private static final long INFINITE_TIME = Long.MAX_VALUE;
    private static final LocalDate SWITCH = LocalDate.of(1582, 10, 15);
    private static final DateTimeFormatter ISO = DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS'Z'");

    private PostgresValueConverter engine;
    private Known known;

    public void configure(Properties own) {
        known = Known.met(own.getProperty("engine"));
        PostgresConnectorConfig config = new PostgresConnectorConfig(Configuration.from(known.settings));
        engine = PostgresValueConverter.of(
            config, StandardCharsets.UTF_8, PostgresConnection.createTypeRegistry(config.getJdbcConfig()));
    }

    public void converterFor(ConvertedField field, CustomConverter.ConverterRegistration registration) {
        RelationalColumn found = (RelationalColumn) field;
        ColumnEditor editor = Column.editor().name(found.name()).type(found.typeName(), found.typeExpression());
        editor.jdbcType(found.jdbcType()).nativeType(found.nativeType()).optional(found.isOptional());
        if (found.length().isPresent()) {
            editor.length(found.length().getAsInt());
        }
        if (found.scale().isPresent()) {
            editor.scale(Integer.valueOf(found.scale().getAsInt()));
        }
        Column column = editor.create();
        // By the type that a domain stands for too.
        boolean bits = found.nativeType() == BITS;
        SchemaBuilder schema = bits ? text() : builder(column);
        if (schema != null) {
            SchemaBuilder whole = bits ? text() : builder(column);
            new PropagateSourceMetadataToSchemaParameter().alterFieldSchema(column, whole);
            known.put(found.dataCollection(), found.name(), (found.isOptional() ? whole.optional() : whole).build());
        }
        if (bits) {
            registration.register(schema, new Bits(known.settings.getProperty("unavailable.value.placeholder")));
            return;
        }
        boolean named = schema != null && DOMAIN_OF_BYTES.equals(schema.name());
        if (schema == null || !(named || DATE.equals(schema.name()) || schema.type() == Schema.Type.ARRAY)) {
            return;
        }
        if (found.isOptional()) {
            schema.optional();
        }
        Schema built = schema.build();
        ValueConverter own = engine.converter(column, new Field(found.name(), 0, built));
        if (own != null) {
            registration.register(roomy(builder(column)), new Checked(own, built, found.typeName()));
        }
    }

    /** Say of a domain over bytes that they are bytes: its own name looks like that of a type that is told as text. */
    private SchemaBuilder builder(Column column) {
        SchemaBuilder schema = engine.schemaBuilder(column);
        boolean bytes = column.nativeType() == BYTES && schema != null && schema.type() == Schema.Type.BYTES;
        return bytes && !"bytea".equals(column.typeName()) ? schema.name(DOMAIN_OF_BYTES) : schema;
    }

    /** Give the elements of an enum's array room for NULL, as those of every other array have. */
    private static SchemaBuilder roomy(SchemaBuilder schema) {
        if (schema.type() != Schema.Type.ARRAY || !ENUM.equals(schema.valueSchema().name())) {
            return schema;
        }
        SchemaBuilder element = SchemaBuilder.string().name(ENUM).version(schema.valueSchema().version()).optional();
        return SchemaBuilder.array(element.parameters(schema.valueSchema().parameters()).build());
    }

    /** A delete sends the key only, and a default is not known here: there may be no value, whatever the table says. */
    private static SchemaBuilder text() {
        return SchemaBuilder.string().optional();
    }

    /** Writes bits as PostgreSQL does: the engine makes a number of them, in which `001` and `1` are one. */
    private static final class Bits implements CustomConverter.Converter {
        private final String unavailable;

        Bits(String unavailable) {
            this.unavailable = unavailable;
        }

        public Object convert(Object value) {
            if (value instanceof PGobject) {
                return ((PGobject) value).getValue();
            }
            // A long value that did not change comes as a mark without a class.
            if (value != null && value.getClass() == Object.class) {
                return unavailable;
            }
            // A default comes as bytes, which have lost their length.
            return value instanceof String ? value : null;
        }
    }

    private static final class Checked implements CustomConverter.Converter {
        private final ValueConverter own;
        private final String semantic;
        private final boolean array;
        private final boolean number;

        Checked(ValueConverter own, Schema schema, String typeName) {
            this.own = own;
            this.array = schema.type() == Schema.Type.ARRAY;
            this.semantic = array ? schema.valueSchema().name() : null;
            this.number = array && schema.valueSchema().type() == Schema.Type.STRING && "_numeric".equals(typeName);
        }

        public Object convert(Object value) {
            if (value instanceof Array) {
                return array(value);
            }
            if (value instanceof java.sql.Date && !array) {
                return Integer.valueOf(day((java.sql.Date) value));
            }
            // A default of the column has been converted already.
            boolean done = value instanceof Integer || value instanceof List;
            return done ? value : own.convert(value);
        }

        private Object array(Object value) {
            List texts = elements(value.toString());
            if (texts == null) {
                return Known.LOST;
            }
            // The engine ends at a NULL among the names of an enum.
            if (ENUM.equals(semantic)) {
                return texts;
            }
            boolean time = DATE.equals(semantic) || TIMESTAMP.equals(semantic) || ZONED.equals(semantic);
            if (!time && !number) {
                List made = (List) own.convert(value);
                return made == null || made.size() != texts.size() ? Known.LOST : made;
            }
            ArrayList made = new ArrayList();
            for (int i = 0; i < texts.size(); i++) {
                String text = (String) texts.get(i);
                made.add(text == null || number ? text : time(semantic, text));
            }
            return made;
        }
    }

    /**
     * The driver writes year, month and day into a calendar that has ten days less in October 1582, so there two
     * days look alike; such a day is given as none rather than as the wrong one.
     */
    private static int day(java.sql.Date value) {
        GregorianCalendar calendar = new GregorianCalendar();
        calendar.setTimeInMillis(value.getTime());
        int year = calendar.get(Calendar.YEAR);
        if (year > 6000000) {
            return INFINITE_DAY;
        }
        int era = calendar.get(Calendar.ERA) == GregorianCalendar.BC ? 1 - year : year;
        LocalDate day = LocalDate.of(era, calendar.get(Calendar.MONTH) + 1, 1);
        day = day.plusDays(calendar.get(Calendar.DAY_OF_MONTH) - 1);
        boolean doubtful = !day.isBefore(SWITCH) && day.isBefore(SWITCH.plusDays(10));
        return doubtful ? INFINITE_DAY : (int) day.toEpochDay();
    }

    private static Object time(String semantic, String text) {
        boolean infinite = text.endsWith("infinity");
        if (DATE.equals(semantic)) {
            return Integer.valueOf(infinite ? INFINITE_DAY : (int) date(text).toEpochDay());
        }
        if (ZONED.equals(semantic)) {
            return infinite ? text : ISO.format(moment(text));
        }
        if (infinite) {
            return Long.valueOf(INFINITE_TIME);
        }
        LocalDateTime moment = moment(text);
        long seconds = moment.toEpochSecond(ZoneOffset.UTC);
        boolean holds = Math.abs(seconds) < Long.MAX_VALUE / MILLION;
        return Long.valueOf(holds ? seconds * MILLION + moment.getNano() / 1000 : INFINITE_TIME);
    }

    /** Read `44-03-15 BC`, as PostgreSQL writes it in the style ISO. */
    private static LocalDate date(String text) {
        String[] parts = text.split(" ")[0].split("-");
        int year = Integer.parseInt(parts[0]);
        return LocalDate.of(text.endsWith(" BC") ? 1 - year : year, Integer.parseInt(parts[1]), Integer.parseInt(parts[2]));
    }

    /** Read a date and a time of day, and bring it to UTC if it says how far from there it is. */
    private static LocalDateTime moment(String text) {
        String clock = text.split(" ")[1];
        int zone = Math.max(clock.indexOf('+'), clock.indexOf('-'));
        LocalDateTime local = date(text).atTime(LocalTime.parse(zone < 0 ? clock : clock.substring(0, zone)));
        return zone < 0 ? local : local.minusSeconds(ZoneOffset.of(clock.substring(zone)).getTotalSeconds());
    }

    /** Read `{a,"b",NULL}`, as PostgreSQL writes an array; null if it has more than one dimension. */
    static List elements(String text) {
        int at = text.indexOf('{') + 1;
        ArrayList found = new ArrayList();
        while (text.charAt(at) != '}') {
            char first = text.charAt(at);
            if (first == '{') {
                return null;
            }
            StringBuilder element = new StringBuilder();
            boolean quoted = first == '"';
            at += quoted ? 1 : 0;
            while (quoted ? text.charAt(at) != '"' : text.charAt(at) != ',' && text.charAt(at) != '}') {
                at += text.charAt(at) == '\\' ? 1 : 0;
                element.append(text.charAt(at++));
            }
            at += quoted ? 1 : 0;
            boolean nothing = !quoted && "NULL".contentEquals(element);
            found.add(nothing ? null : element.toString());
            at += text.charAt(at) == ',' ? 1 : 0;
        }
        return found;
    }
}
