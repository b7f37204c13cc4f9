//! Where everything lies, and how kinds, ids and names become file names.
//!
//! `objects/order/1001` is the order 1001: letters, digits, `_`, `-` and `.` stay as they are, every
//! other byte becomes `%XX`. What would be longer than a file name may be is cut into a path whose
//! folders end in `~`, so that every id has one path and every path one id. A leading `.` is always
//! encoded: hidden names are ours (temp files) or somebody's editor's, never an object.

use std::path::{Path, PathBuf};

use tenure::Key;

/// Bytes of one file name. File systems allow 255; the rest is room for the mark of a folder.
const CHUNK: usize = 200;
/// How temp files begin.
pub(crate) const TEMP_PREFIX: &str = ".tmp-";
/// How a folder ends that continues a long name.
const CONTINUES: char = '~';

/// The paths of one store.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Format version and the writers that are allowed.
    pub(crate) fn format(&self) -> PathBuf {
        self.root.join("store.json")
    }

    /// The last revision applied to the canonical files.
    pub(crate) fn head(&self) -> PathBuf {
        self.root.join("head")
    }

    /// The store's timeline.
    pub(crate) fn clock(&self) -> PathBuf {
        self.root.join("clock")
    }

    /// Held shared by readers and touches, exclusively by commits.
    pub(crate) fn store_lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Held while waiting for the store lock, so that nobody overtakes.
    pub(crate) fn turn_lock(&self) -> PathBuf {
        self.root.join("turn")
    }

    /// Per-key locks.
    pub(crate) fn locks(&self) -> PathBuf {
        self.root.join("locks")
    }

    /// Segments of history.
    pub(crate) fn history(&self) -> PathBuf {
        self.root.join("history")
    }

    /// The segment whose records have revisions above `base`.
    pub(crate) fn segment(&self, base: u64) -> PathBuf {
        self.history().join(format!("{base:020}.log"))
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    pub(crate) fn names(&self) -> PathBuf {
        self.root.join("names")
    }

    /// The folder of a kind's objects.
    pub(crate) fn kind(&self, kind: &str) -> PathBuf {
        nest(self.objects(), kind)
    }

    /// The canonical file of a key.
    pub(crate) fn object(&self, key: &Key) -> PathBuf {
        nest(self.kind(&key.kind), &key.id)
    }

    /// The file that says which id has this name.
    pub(crate) fn name(&self, kind: &str, name: &str) -> PathBuf {
        nest(nest(self.names(), kind), name)
    }

    /// What belongs into the root, to tell a store from somebody's home folder.
    pub(crate) fn is_ours(name: &str) -> bool {
        let ours =
            ["store.json", "head", "clock", "lock", "turn", "locks", "history", "objects", "names"];
        ours.contains(&name) || name.starts_with(TEMP_PREFIX) || name == "lost+found"
    }
}

/// The revision a segment starts behind, from its file name.
pub(crate) fn segment_base(file_name: &str) -> Option<u64> {
    file_name.strip_suffix(".log")?.parse().ok()
}

/// Whether a folder found while listing continues a long name.
pub(crate) fn continues(file_name: &str) -> Option<&str> {
    file_name.strip_suffix(CONTINUES)
}

fn nest(mut path: PathBuf, text: &str) -> PathBuf {
    let mut chunk = String::with_capacity(text.len());
    for byte in text.bytes() {
        if chunk.len() + 3 > CHUNK {
            chunk.push(CONTINUES);
            path.push(&chunk);
            chunk.clear();
        }
        match byte {
            b'.' if chunk.is_empty() => chunk.push_str("%2E"),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' => {
                chunk.push(char::from(byte));
            }
            _ => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                chunk.push('%');
                chunk.push(char::from(HEX[usize::from(byte >> 4)]));
                chunk.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    path.push(&chunk);
    path
}

/// The text behind a file name (with the chunks of its folders before it), if we could have written
/// it.
pub(crate) fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit = |b: Option<u8>| char::from(b?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' => bytes.push(byte),
            _ => return None,
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a path below `root` back into the text it came from.
    fn read_back(root: &Path, path: &Path) -> String {
        let mut text = String::new();
        for part in path.strip_prefix(root).unwrap().components() {
            let part = part.as_os_str().to_str().unwrap();
            assert!(part.len() <= 255 && !part.starts_with('.'), "{part}");
            text.push_str(continues(part).unwrap_or(part));
        }
        decode(&text).unwrap()
    }

    #[test]
    fn people_recognise_plain_ids() {
        let layout = Layout::new("/s".into());
        let path = layout.object(&Key::new("order", "1001"));
        assert_eq!(path, Path::new("/s/objects/order/1001"));
        assert_eq!(layout.name("order", "web-1.a"), Path::new("/s/names/order/web-1.a"));
    }

    #[test]
    fn every_id_has_one_path_and_every_path_one_id() {
        let layout = Layout::new("/s".into());
        let long = "ü.".repeat(170);
        let dots = ".".repeat(512);
        let ids =
            ["a", ".", "..", "../x", "a/b", "/", "ünïcode ☃", "a%b", "~", "a~", ".tmp-1-2", " "];
        let mut seen = std::collections::HashSet::new();
        for id in ids.into_iter().chain([long.as_str(), dots.as_str(), &dots[1..]]) {
            let path = layout.object(&Key::new("k", id));
            assert_eq!(read_back(&layout.kind("k"), &path), id);
            assert!(path.starts_with("/s/objects/k"), "{path:?}");
            assert!(path.to_str().unwrap().len() < 2048);
            assert!(seen.insert(path));
        }
        // A long kind is a path of its own and does not meet a short one.
        let kind = "k".repeat(128) + &"%".repeat(60);
        assert_eq!(read_back(&layout.objects(), &layout.kind(&kind)), kind);
    }

    #[test]
    fn what_we_could_not_have_written_is_not_an_id() {
        for foreign in ["a b", "a%", "a%4", "a%zz", "a~b", "%FF"] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
        assert_eq!(segment_base("00000000000000000042.log"), Some(42));
        assert_eq!(segment_base("x.log"), None);
    }
}
