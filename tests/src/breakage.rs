//! Breaks one thing of the host for a while. Dropping what is returned mends it, in a failing test, too.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Something broken that will be mended.
#[must_use = "it is mended at once when dropped"]
pub struct Mended {
    mend: Option<Box<dyn FnOnce() -> io::Result<()>>>,
}

impl std::fmt::Debug for Mended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mended").finish_non_exhaustive()
    }
}

impl Mended {
    /// With this to mend it.
    pub fn by(mend: impl FnOnce() -> io::Result<()> + 'static) -> Self {
        Self { mend: Some(Box::new(mend)) }
    }

    /// A file moved out of the way.
    pub fn moved_away(path: &Path) -> Self {
        let (path, aside) = (path.to_owned(), aside(path));
        fs::rename(&path, &aside).unwrap_or_else(|e| panic!("cannot move {} away: {e}", path.display()));
        Self::by(move || fs::rename(aside, path))
    }

    /// A file whose place another one takes.
    pub fn replaced(path: &Path, content: &[u8], mode: u32) -> Self {
        let away = Self::moved_away(path);
        fs::write(path, content).expect("the directory takes a file");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        let path = path.to_owned();
        Self::by(move || {
            fs::remove_file(path)?;
            drop(away);
            Ok(())
        })
    }

    /// Another mode on a file or directory.
    pub fn mode(path: &Path, mode: u32) -> Self {
        let before = fs::metadata(path).expect("it is there").mode() & 0o7777;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        let path = path.to_owned();
        Self::by(move || fs::set_permissions(path, fs::Permissions::from_mode(before)))
    }

    /// Mends it now.
    pub fn mend(self) {
        drop(self);
    }
}

impl Drop for Mended {
    fn drop(&mut self) {
        if let Some(mend) = self.mend.take()
            && let Err(error) = mend()
        {
            eprintln!("could not mend what a test broke: {error}");
        }
    }
}

fn aside(path: &Path) -> PathBuf {
    // Outside the directory: sudo reads every file of /etc/sudoers.d.
    let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
    let up = path.parent().and_then(Path::parent).expect("it lies two levels deep");
    up.join(format!(".aside-{name}-{}", std::process::id()))
}
