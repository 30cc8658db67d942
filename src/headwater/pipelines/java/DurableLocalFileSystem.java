package headwater.pipelines;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.Syncable;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, quick and durable enough for the checkpoint of a stream.
 *
 * <p>Quick: without its native library Hadoop forks a `chmod` for every file it creates, which is
 * most of what a small micro-batch costs; here that is a system call. No `.crc` file beside every
 * file either: Spark keeps checksums of its own over what it writes into a checkpoint.
 *
 * <p>Durable: a file is on disk when it is closed, and its name when it is renamed, so a power cut
 * leaves the last batch written whole or not at all, never an empty file under a final name.
 */
public final class DurableLocalFileSystem extends LocalFileSystem {

  public DurableLocalFileSystem() {
    super(new Raw());
    setWriteChecksum(false);
    setVerifyChecksum(false);
  }

  private static void syncDirectory(File directory) throws IOException {
    try (FileChannel channel = FileChannel.open(directory.toPath(), StandardOpenOption.READ)) {
      channel.force(true);
    }
  }

  private static final class Raw extends RawLocalFileSystem {

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      String symbols =
          permission.getUserAction().SYMBOL
              + permission.getGroupAction().SYMBOL
              + permission.getOtherAction().SYMBOL;
      Files.setPosixFilePermissions(
          pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols));
    }

    @Override
    protected OutputStream createOutputStream(Path path, boolean append) throws IOException {
      return new SyncedFile(pathToFile(path), append);
    }

    @Override
    protected OutputStream createOutputStreamWithMode(
        Path path, boolean append, FsPermission permission) throws IOException {
      OutputStream file = createOutputStream(path, append);
      if (permission != null) {
        setPermission(path, permission.applyUMask(FsPermission.getUMask(getConf())));
      }
      return file;
    }

    @Override
    public boolean rename(Path source, Path target) throws IOException {
      boolean renamed = super.rename(source, target);
      if (renamed) {
        syncDirectory(pathToFile(target).getParentFile());
      }
      return renamed;
    }

    @Override
    protected boolean mkOneDirWithMode(Path path, File directory, FsPermission permission)
        throws IOException {
      boolean made = super.mkOneDirWithMode(path, directory, permission);
      if (made) {
        syncDirectory(directory.getAbsoluteFile().getParentFile());
      }
      return made;
    }
  }

  /** Its bytes are on disk when it is closed, and its name too, unless that is a temporary one. */
  private static final class SyncedFile extends FileOutputStream implements Syncable {
    private final File file;

    SyncedFile(File file, boolean append) throws IOException {
      super(file, append);
      this.file = file;
    }

    @Override
    public void hflush() {}

    @Override
    public void hsync() throws IOException {
      getFD().sync();
    }

    @Override
    public void close() throws IOException {
      boolean open = getFD().valid();
      if (open) {
        hsync();
      }
      super.close();
      // What begins with a dot is renamed when it is complete; that syncs the directory.
      if (open && !file.getName().startsWith(".")) {
        syncDirectory(file.getAbsoluteFile().getParentFile());
      }
    }
  }
}
