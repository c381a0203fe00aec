//! Paths that are not files, and the pages of the mapping.

use std::path::Path;

use crate::Error;
use crate::GgufFile;
use crate::testdata;

#[test]
fn test_empty_path() {
    let error = GgufFile::open(Path::new("")).unwrap_err();
    assert!(matches!(error, Error::InvalidRequest { what: "model path", .. }), "{error:?}");
}

#[test]
fn test_missing_file() {
    let path = Path::new("/no/such/model.gguf");
    let error = GgufFile::open(path).unwrap_err();
    assert!(matches!(&error, Error::FileNotFound { path: p } if p == path), "{error:?}");
}

#[test]
fn test_directory() {
    let error = GgufFile::open(&std::env::temp_dir()).unwrap_err();
    assert!(matches!(&error, Error::Io { message, .. } if message.contains("directory")), "{error:?}");
}

/// A device (or pipe) is rejected before it is opened, since opening could wait for ever.
#[cfg(unix)]
#[test]
fn test_special_file() {
    let error = GgufFile::open(Path::new("/dev/null")).unwrap_err();
    assert!(matches!(&error, Error::Io { message, .. } if message.contains("not a regular file")), "{error:?}");
}

#[test]
fn test_path_through_a_file() {
    let file = testdata::temp_file("plain", b"x");
    let error = GgufFile::open(&file.0.join("model.gguf")).unwrap_err();
    assert!(matches!(&error, Error::Io { operation: "cannot open", .. }), "{error:?}");
}

#[cfg(unix)]
#[test]
fn test_unreadable_file() {
    use std::os::unix::fs::PermissionsExt;
    let file = testdata::temp_file("secret.gguf", b"GGUF");
    std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o000)).unwrap();
    let error = GgufFile::open(&file.0).unwrap_err();
    // The superuser may read it anyway, and then finds it truncated.
    let superuser = std::fs::File::open(&file.0).is_ok();
    assert!(superuser == !matches!(&error, Error::Io { operation: "cannot open", .. }), "{error:?}");
}

/// Returns how much of the mapping of `path` is resident in this process.
#[cfg(target_os = "linux")]
fn resident_kib(path: &Path) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mapping = smaps.split(path.to_str().unwrap()).nth(1).expect("not mapped");
    let line = mapping.lines().find(|line| line.starts_with("Rss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn test_released_pages_leave_memory_and_stay_readable() {
    use crate::writer::{Tensor, Writer};
    const LEN: u64 = 1 << 20;
    let writer = Writer::new().tensor(Tensor::ones("big", LEN)).tensor(Tensor::ones("small", 8));
    let path = testdata::temp_file("pages.gguf", &writer.bytes());
    let file = GgufFile::open(&path.0).unwrap();
    let info = file.tensor("big").unwrap();
    let sum = || file.view(info).data.iter().map(|&b| u64::from(b)).sum::<u64>();
    let expected = LEN * (0x80 + 0x3f);
    assert_eq!(sum(), expected);
    assert!(resident_kib(&path.0) >= 4096);
    file.release_pages(info);
    // At most parts of a granule at each end remain.
    assert!(resident_kib(&path.0) <= 128 + 64, "{} KiB", resident_kib(&path.0));
    assert_eq!(sum(), expected);
}
