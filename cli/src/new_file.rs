//! A file that is there in full or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::Builder;

pub struct NewFile {
    path: PathBuf,
    /// On its file system a finished file can be moved to its place in one step.
    folder: PathBuf,
}

impl NewFile {
    /// Fails where the file can't be written later; nothing is there yet.
    pub fn at(path: &Path) -> Result<Self> {
        Self::check(path).with_context(|| path.display().to_string())
    }

    fn check(path: &Path) -> Result<Self, io::Error> {
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(io::Error::other("is not the name of a file"));
        }
        // What a link points to is replaced, not the link.
        let path = match fs::canonicalize(path) {
            Ok(path) if !path.is_file() => return Err(io::Error::other("is not a file")),
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_path_buf(),
            Err(error) => return Err(error),
        };
        let name = path.file_name().ok_or_else(|| io::Error::other("is not the name of a file"))?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        tempfile::tempfile_in(&folder)?;
        Ok(Self { path: folder.join(name), folder })
    }

    pub fn is(&self, other: &Path) -> bool {
        match (fs::canonicalize(&self.path), fs::canonicalize(other)) {
            (Ok(path), Ok(other)) => path == other,
            _ => false,
        }
    }

    pub fn write(self, text: &str) -> Result<()> {
        self.replace(text).with_context(|| self.path.display().to_string())
    }

    fn replace(&self, text: &str) -> Result<(), io::Error> {
        let mut builder = Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(fs::Permissions::from_mode(0o666)); // What the umask leaves of it.
        }
        let mut file = builder.tempfile_in(&self.folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_at(path: &Path) -> String {
        format!("{:#}", NewFile::at(path).err().expect("an error"))
    }

    #[test]
    fn what_cannot_be_written_is_told_at_once_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let no_folder = folder.path().join("none").join("out.html");
        for path in [no_folder.as_path(), folder.path(), Path::new("/dev/null"), Path::new("/")] {
            let text = error_at(path);
            assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
        }
    }

    #[test]
    fn nothing_is_there_before_it_is_written_and_nothing_else_after() {
        let folder = tempfile::tempdir().unwrap();
        let names = || -> Vec<_> {
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        let path = folder.path().join("out.html");
        let file = NewFile::at(&path).unwrap();
        assert!(names().is_empty());
        file.write("first").unwrap();
        NewFile::at(&path).unwrap().write("second").unwrap();
        assert_eq!(names(), ["out.html"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
    }

    #[test]
    #[cfg(unix)]
    fn a_link_stays_and_others_may_read() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let [target, link] = ["target.html", "link.html"].map(|name| folder.path().join(name));
        fs::write(&target, "old").unwrap();
        symlink(&target, &link).unwrap();
        NewFile::at(&link).unwrap().write("new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        let plain = folder.path().join("plain.html");
        fs::write(&plain, "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&target), mode(&plain), "as of any new file");
    }
}
