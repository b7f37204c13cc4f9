//! Telling a local file system from one that lives elsewhere.
//!
//! The embedded stores rely on locks between processes, on atomic rename or a shared log, and on fsync
//! meaning what it says. Network file systems promise some of that, sometimes, between some clients. So
//! they are refused by their magic number, unless the caller allows them.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// `f_type` of file systems whose files are, or may be, kept by another machine or by a program.
const REMOTE: [(u32, &str); 17] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x564C, "NCP"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "kAFS"),
    (0x7375_7245, "Coda"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7461_636F, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x1983_0326, "BeeGFS"),
    (0x786F_4256, "VirtualBox shared folder"),
];

/// Links and missing folders that are followed to find out where a path leads.
const LINKS: usize = 256;

/// The name of a file system that is not local, by its magic number.
fn remote_name(magic: u32) -> Option<&'static str> {
    REMOTE.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// What is there of a path already: itself, what a link leads to, or the nearest folder above. Whatever
/// is made at the path comes to be on its file system.
fn nearest(path: &Path) -> PathBuf {
    let above = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut at = path.to_owned();
    // As many as there can be: each part of a path may be a link to another one.
    for _ in 0..LINKS {
        if at.exists() {
            break;
        }
        at = match std::fs::read_link(&at) {
            // A link whose end is not there yet; an absolute one replaces all of the path.
            Ok(end) => above(&at).join(end),
            Err(_) => above(&at),
        };
    }
    at
}

/// Refuses a place on a file system that is not local, for the backend of this name. What is not there yet
/// is judged by where it would be.
pub fn refuse_remote(backend: &'static str, path: &Path, allowed: bool) -> Result<()> {
    let root = nearest(path);
    let stat = rustix::fs::statfs(&root).map_err(|error| {
        Error::unavailable(backend, format!("file system of {}: {error}", root.display()))
    })?;
    // The field's type differs between platforms; the magic numbers have 32 bits on all of them.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
    let magic = stat.f_type as u32;
    judge(backend, path, remote_name(magic), allowed)
}

fn judge(
    backend: &'static str,
    path: &Path,
    remote: Option<&'static str>,
    allowed: bool,
) -> Result<()> {
    match remote {
        Some(name) if allowed => {
            tracing::warn!(
                path = %path.display(),
                file_system = name,
                "store on a file system that is not local, as asked: locks and durability are only \
                 as good as that file system's"
            );
            Ok(())
        }
        Some(name) => Err(Error::Refused {
            backend,
            reason: format!(
                "{} is on {name}, where locks and atomic renames between machines cannot be relied \
                 on; use a local disk, a postgres: or etcd: store, or add \
                 ?network-filesystem=allow to the URL (in a program, allow_network_filesystem) if \
                 you know that this one is safe",
                path.display()
            ),
        }),
        None => Ok(()),
    }
}

/// The path in the URL of an embedded store, and whether it may be on a network file system:
/// `PATH?network-filesystem=allow`.
pub fn place(text: &str) -> Result<(&str, bool)> {
    match text.split_once('?') {
        None => Ok((text, false)),
        Some((path, "network-filesystem=allow")) => Ok((path, true)),
        Some((_, option)) => Err(Error::invalid(
            format!("option {option:?}"),
            "the only one is network-filesystem=allow; a path may not contain a question mark",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_can_be_allowed_in_the_url() {
        assert_eq!(place("/data/x.db").unwrap(), ("/data/x.db", false));
        assert_eq!(place("/data/x.db?network-filesystem=allow").unwrap(), ("/data/x.db", true));
        for bad in ["x?", "x?network-filesystem", "x?network-filesystem=no", "x?a=b"] {
            let error = place(bad).unwrap_err();
            assert!(error.to_string().contains("network-filesystem=allow"), "{error}");
        }
    }

    #[test]
    fn network_file_systems_are_told_by_their_magic() {
        for (magic, name) in [(0x6969, "NFS"), (0xFF53_4D42, "CIFS"), (0x6573_5546, "FUSE")] {
            assert_eq!(remote_name(magic), Some(name));
        }
        // ext4, xfs, btrfs, tmpfs, overlayfs, zfs, f2fs.
        for local in
            [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1, 0xF2F5_2010]
        {
            assert_eq!(remote_name(local), None, "{local:x}");
        }
        assert!(refuse_remote("file", Path::new("/proc/self"), false).is_ok());
    }

    #[test]
    fn what_is_not_local_is_refused_unless_it_is_allowed() {
        let place = Path::new("/mnt/team/store");
        let error = judge("file", place, Some("NFS"), false).unwrap_err();
        assert!(matches!(error, Error::Refused { backend: "file", .. }), "{error:?}");
        for told in ["/mnt/team/store is on NFS", "network-filesystem=allow"] {
            assert!(error.to_string().contains(told), "{error}");
        }
        judge("file", place, Some("NFS"), true).unwrap();
        judge("file", place, None, false).unwrap();
    }

    #[test]
    fn what_is_not_there_yet_is_judged_by_where_it_would_be() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        std::fs::create_dir(&here).unwrap();
        std::fs::create_dir(&there).unwrap();
        assert_eq!(nearest(&here.join("a/b/c")), here);
        assert_eq!(nearest(Path::new("not-here/at-all")), Path::new("."));
        // A link is followed, whether what it leads to is there or not.
        let link = here.join("link.db");
        std::os::unix::fs::symlink("../there/made-later.db", &link).unwrap();
        assert_eq!(nearest(&link).canonicalize().unwrap(), there.canonicalize().unwrap());
        std::fs::write(there.join("made-later.db"), "").unwrap();
        assert_eq!(nearest(&link), link, "the system follows it by itself");
        // One that leads round in circles leads nowhere, and comes to an end.
        std::os::unix::fs::symlink("round", here.join("round")).unwrap();
        nearest(&here.join("round"));
    }
}
