package tailrace;

import io.debezium.spi.converter.ConvertedField;
import io.debezium.spi.converter.CustomConverter;
import io.debezium.spi.converter.RelationalColumn;
import io.debezium.time.Date;
import io.debezium.time.MicroTimestamp;
import io.debezium.time.ZonedTimestamp;
import java.sql.Timestamp;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.connect.data.SchemaBuilder;

/**
 * Converts days and times, where the engine would make another value of them without a word.
 *
 * `0000-00-00`, which is no day, arrives as null, and of a column that is never null the engine would make 1970 of it;
 * as a TIMESTAMP it arrives as 1970 itself, at which no other begins. A snapshot reads days through a calendar that has
 * ten days less in October 1582, so there two days look alike. All of these become something that no column holds, and
 * the row is rejected. Only in a DATE or DATETIME that may be null, `0000-00-00` cannot be told from null.
 *
 * Compiled at start by Janino, like Consumer.
 */
public class Days implements CustomConverter {

    private static final int DAY = 0, MOMENT = 1;
    private static final LocalDate SWITCH = LocalDate.of(1582, 10, 15);
    private static final DateTimeFormatter ISO = DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSS'Z'");

    public void configure(Properties own) {
    }

    public void converterFor(ConvertedField field, CustomConverter.ConverterRegistration registration) {
        RelationalColumn column = (RelationalColumn) field;
        int kind = Arrays.asList(new Object[] {"DATE", "DATETIME", "TIMESTAMP"}).indexOf(column.typeName());
        if (kind >= 0) {
            SchemaBuilder schema = kind == DAY ? Date.builder() : kind == MOMENT ? MicroTimestamp.builder() : ZonedTimestamp.builder();
            registration.register(column.isOptional() ? schema.optional() : schema, new Told(kind, column.isOptional()));
        }
    }

    private static final class Told implements CustomConverter.Converter {
        private final int kind;
        private final boolean optional;

        Told(int kind, boolean optional) {
            this.kind = kind;
            this.optional = optional;
        }

        public Object convert(Object value) {
            boolean converted = value instanceof Integer || value instanceof Long || value instanceof String;
            if (converted || (value == null && optional)) {
                // A default of the column has been converted already.
                return value;
            }
            if (kind == DAY) {
                LocalDate day = value == null ? null : day(value);
                return Integer.valueOf(day == null ? Integer.MAX_VALUE : (int) day.toEpochDay());
            }
            LocalDateTime moment = value == null ? null : moment(value);
            if (kind == MOMENT) {
                return Long.valueOf(moment == null ? Long.MAX_VALUE : micros(moment));
            }
            return moment == null || moment.toEpochSecond(ZoneOffset.UTC) == 0 ? "0000-00-00T00:00:00Z" : ISO.format(moment);
        }
    }

    private static LocalDate certain(LocalDate day) {
        return !day.isBefore(SWITCH) && day.isBefore(SWITCH.plusDays(10)) ? null : day;
    }

    private static LocalDate day(Object value) {
        if (value instanceof LocalDate) {
            return (LocalDate) value;
        }
        if (value instanceof java.sql.Date) {
            return certain(((java.sql.Date) value).toLocalDate());
        }
        throw new IllegalStateException("a day came as " + value.getClass().getName());
    }

    private static LocalDateTime moment(Object value) {
        if (value instanceof LocalDateTime) {
            return (LocalDateTime) value;
        }
        if (value instanceof ZonedDateTime) {
            return ((ZonedDateTime) value).withZoneSameInstant(ZoneOffset.UTC).toLocalDateTime();
        }
        if (value instanceof OffsetDateTime) {
            return ((OffsetDateTime) value).withOffsetSameInstant(ZoneOffset.UTC).toLocalDateTime();
        }
        if (value instanceof Timestamp) {
            LocalDateTime moment = ((Timestamp) value).toLocalDateTime();
            return certain(moment.toLocalDate()) == null ? null : moment;
        }
        throw new IllegalStateException("a time came as " + value.getClass().getName());
    }

    private static long micros(LocalDateTime moment) {
        return moment.toEpochSecond(ZoneOffset.UTC) * 1000000L + moment.getNano() / 1000;
    }
}
