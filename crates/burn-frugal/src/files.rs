//! Writing files so that a reader sees the old content or the new, never a part.

use std::io::{self, Write};
use std::path::Path;

/// Writes `content` to `path`: into a temporary file in the same folder, which takes the place of
/// `path` once it is complete and on disk.
///
/// # Errors
/// Those of the file system; `path` is then as it was.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    // the permissions that a plain `File::create` gives: what the umask allows
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
