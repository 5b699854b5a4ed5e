//! Writing files so that a reader sees the old content or the new, never a part.

use std::io::{self, Write};
use std::path::Path;

/// Writes `content` to `path`: into a temporary file in the same folder, which takes the place of
/// `path` once it is complete and on disk. A file that was there keeps its permissions, a link keeps
/// pointing to it.
///
/// # Errors
/// Those of the file system; `path` is then as it was.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let target = path.canonicalize();
    let path = target.as_deref().unwrap_or(path);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    // the permissions that a plain `File::create` gives: what the umask allows
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(plain)?;
    if let Ok(old) = path.metadata() {
        file.as_file().set_permissions(old.permissions())?;
    }
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| plain(error.error))?;
    Ok(())
}

/// What the system says, without the name of the temporary file.
fn plain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::from(error.kind()),
    }
}
