import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's own REST catalog of its tests, on loopback: a port, and the folder that holds catalog and tables. */
public final class RestCatalog {
    public static void main(String[] given) throws Exception {
        JdbcCatalog tables = new JdbcCatalog();
        tables.setConf(new Configuration());
        String uri = "jdbc:sqlite:" + given[1] + "/catalog.db";
        tables.initialize("served", Map.of("uri", uri, "warehouse", given[1], "jdbc.schema-version", "V1"));
        ServletContextHandler handler = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(tables))), "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(given[0])));
        server.setHandler(handler);
        server.start();
        server.join();
    }
}
