package tailrace;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's files on this machine, without its processes.
 *
 * Without its native library, which PySpark does not bring, Hadoop starts "chmod" for every file that it makes and
 * "readlink" for every one that it renames: some twenty processes for a commit of Delta. Everything else is Hadoop's own,
 * the checksums beside the files too.
 */
public class LocalFiles extends LocalFileSystem {

    public LocalFiles() {
        super(new Raw());
    }

    /** The same for those parts of Hadoop that ask for a FileContext, as Delta's log does. */
    public static class Context extends ChecksumFs {

        public Context(URI uri, Configuration settings) throws IOException, URISyntaxException {
            super(new RawContext(settings));
        }
    }

    public static class Raw extends RawLocalFileSystem {

        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            if (permission.getStickyBit()) {
                super.setPermission(path, permission);
                return;
            }
            String text = permission.getUserAction().SYMBOL
                    + permission.getGroupAction().SYMBOL
                    + permission.getOtherAction().SYMBOL;
            try {
                Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
            } catch (UnsupportedOperationException elsewhere) {
                super.setPermission(path, permission);
            }
        }

        /** Hadoop asks "readlink" for a path that begins with "file:", of which there is none, and then does this. */
        @Override
        public FileStatus getFileLinkStatus(Path path) throws IOException {
            return getFileStatus(path);
        }
    }

    public static class RawContext extends DelegateToFileSystem {

        public RawContext(Configuration settings) throws IOException, URISyntaxException {
            super(FsConstants.LOCAL_FS_URI, new Raw(), settings, FsConstants.LOCAL_FS_URI.getScheme(), false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1;
        }

        @Override
        public FsServerDefaults getServerDefaults(Path path) throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        public FsServerDefaults getServerDefaults() throws IOException {
            return LocalConfigKeys.getServerDefaults();
        }

        @Override
        public boolean isValidName(String name) {
            return true;
        }
    }
}
