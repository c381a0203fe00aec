//! The folder of files against everything that can happen to files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, unbounded};
use parking_lot::RwLock;

use super::store::Store;
use super::{Content, FileEvent, Offload};
use crate::Error;
use crate::batch::{GroupKind, SeqExtras};
use crate::config::{GroupConfig, KvFilesConfig, KvOffloadConfig};
use crate::ids::{RequestId, request_of, seq_id};
use crate::kv_cache::{BlockHash, ContentKey, KvCache, KvCacheConfig, OffloadConfig, Tokens};
use crate::scheduler::NewSequence;

const CAPACITY: u64 = 1 << 20;

fn key(pool: usize, number: u8) -> ContentKey {
    ContentKey { pool, hash: BlockHash::from_bytes([number; 32]) }
}

/// Returns a folder for this user alone.
fn private_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    folder
}

fn read(store: &mut Store, key: ContentKey, bytes: u64) -> Option<Content> {
    let mut read = Vec::new();
    store.read_all(&[(key, bytes)], &mut |piece| read.extend(piece));
    let [(found, content)] = &read[..] else { panic!("one content was asked for") };
    assert_eq!(*found, key);
    content.clone()
}

fn open(folder: &Path) -> Store {
    Store::open(folder, [7; 32], CAPACITY).unwrap()
}

/// Returns the files of contents.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some() {
                found.push(entry);
            }
        }
    }
    found
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_used(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// A content is read by the process that wrote it and by a later one, under the same key, and by no other user.
#[test]
fn contents_outlive_their_process() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("a/b");
    let mut store = open(&folder);
    assert_eq!(store.write(key(0, 1), b"content").unwrap(), Some(Vec::new()));
    assert_eq!(store.write(key(0, 1), b"content").unwrap(), None);
    assert_eq!(read(&mut store, key(0, 1), 7).unwrap()[..], *b"content");
    assert_eq!(read(&mut store, key(1, 1), 7), None);
    let hash_key = store.hash_key();
    let mut later = open(&folder);
    assert_eq!((later.hash_key(), later.scan()), (hash_key, vec![key(0, 1)]));
    assert_eq!(read(&mut later, key(0, 1), 7).unwrap()[..], *b"content");
    let file = &files(&folder)[0];
    assert_eq!([file.as_path(), &folder.join("key")].map(mode), [0o600; 2]);
    assert!(file.ancestors().skip(1).take(3).all(|folder| mode(folder) == 0o700));
    // Another model has its own contents in the same folder, and the same key.
    let mut other = Store::open(&folder, [8; 32], CAPACITY).unwrap();
    assert_eq!((other.hash_key(), other.scan().len(), read(&mut other, key(0, 1), 7)), (hash_key, 0, None));
    later.clear();
    assert_eq!((later.scan().len(), later.bytes()), (0, 0));
}

/// Any damaged byte, any other length, and a file in another place than it was written for count as no file.
#[test]
fn damaged_and_foreign_files_are_ignored() {
    let folder = private_folder();
    let mut store = open(folder.path());
    store.write(key(0, 1), b"content").unwrap();
    let path = files(folder.path()).remove(0);
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).unwrap();
        assert_eq!(read(&mut store, key(0, 1), 7), None, "byte {at}");
        fs::write(&path, &good[..at]).unwrap();
        assert_eq!(read(&mut store, key(0, 1), 7), None, "cut at {at}");
    }
    fs::write(&path, [&good[..], b"x"].concat()).unwrap();
    assert_eq!(read(&mut store, key(0, 1), 7), None);
    store.write(key(0, 1), b"content").unwrap();
    assert_eq!(fs::read(&path).unwrap(), good, "a damaged file is written again");
    // A file that was cut is written again even if nobody has read it.
    fs::write(&path, &good[..20]).unwrap();
    store.write(key(0, 1), b"content").unwrap();
    assert_eq!(fs::read(&path).unwrap(), good);
    assert_eq!(read(&mut store, key(0, 1), 8), None, "the model's contents have another size");
    assert!(read(&mut store, key(0, 1), 7).is_some());
    // Bytes are not accepted as another content, as that of another model, or under another key.
    let elsewhere = PathBuf::from(path.to_str().unwrap().replace("/0-", "/1-"));
    fs::copy(&path, &elsewhere).unwrap();
    assert_eq!(read(&mut store, key(1, 1), 7), None);
    let of_other = path.to_str().unwrap().replace(&"07".repeat(32), &"08".repeat(32));
    let mut other = Store::open(folder.path(), [8; 32], CAPACITY).unwrap();
    fs::create_dir_all(Path::new(&of_other).parent().unwrap()).unwrap();
    fs::copy(&path, of_other).unwrap();
    assert_eq!(read(&mut other, key(0, 1), 7), None);
    let moved = private_folder();
    let mut stranger = open(moved.path());
    let copy = moved.path().join(path.strip_prefix(folder.path()).unwrap());
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::copy(&path, copy).unwrap();
    assert_eq!((stranger.scan(), read(&mut stranger, key(0, 1), 7)), (vec![key(0, 1)], None));
    // A link is not followed.
    fs::rename(&path, folder.path().join("target")).unwrap();
    symlink(folder.path().join("target"), &path).unwrap();
    assert_eq!(read(&mut store, key(0, 1), 7), None);
    assert!(!store.scan().contains(&key(0, 1)));
    // Files with other names stay as they are.
    for name in ["notes.txt", "0-abc.kv"] {
        fs::write(folder.path().join(name), b"mine").unwrap();
    }
    store.scan();
    store.clear();
    assert!(["notes.txt", "0-abc.kv"].iter().all(|name| folder.path().join(name).exists()));
}

/// The files with the oldest use make room, also those of other models and of another server.
#[test]
fn the_folder_is_bounded() {
    let folder = private_folder();
    let capacity = 10 * (40 + 60);
    let mut stores = [7, 8].map(|namespace| Store::open(folder.path(), [namespace; 32], capacity).unwrap());
    for number in 0..10 {
        let store = &mut stores[usize::from(number % 2)];
        store.write(key(0, number), &[number; 60]).unwrap();
        let name = format!("0-{}.kv", format!("{number:02x}").repeat(32));
        let file = files(folder.path()).into_iter().find(|file| file.ends_with(&name));
        set_used(&file.unwrap(), 1000 + u64::from(number));
    }
    assert_eq!(files(folder.path()).len(), 10);
    // Reading is a use.
    assert!(read(&mut stores[0], key(0, 0), 60).is_some());
    let gone = stores[0].write(key(0, 20), &[0; 60]).unwrap().unwrap();
    // Room for one more and a sixteenth: contents 1 and 2 go. Number 1 is the other model's.
    assert_eq!(gone, [key(0, 2)]);
    assert!(read(&mut stores[1], key(0, 1), 60).is_none() && read(&mut stores[0], key(0, 0), 60).is_some());
    let bytes = |folder: &Path| files(folder).iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>();
    for number in 30..60 {
        stores[usize::from(number % 2)].write(key(0, number), &[number; 60]).unwrap();
        // Each server may exceed the limit by what it wrote since it measured the folder.
        assert!(bytes(folder.path()) <= capacity + 2 * (capacity / 16 + 100), "{number}");
    }
    assert!(
        stores[0].write(key(0, 99), &[0; 2000]).is_err() && !stores[0].is_paused(),
        "more than the folder may have"
    );
}

/// One failed write is no reason to stop. After several in a row the store only reads for a while.
#[test]
fn failed_writes_pause_writing() {
    let folder = private_folder();
    let mut store = open(folder.path());
    store.write(key(0, 1), b"content").unwrap();
    // A file where the folder of the next content has to be. It fails for every user, unlike permissions.
    fs::write(folder.path().join("07".repeat(32)).join("02"), b"").unwrap();
    assert!(store.write(key(0, 2), b"content").is_err() && !store.is_paused());
    assert!(store.write(key(0, 3), b"content").is_ok());
    (0..8).for_each(|_| assert!(store.write(key(0, 2), b"content").is_err()));
    assert!(store.is_paused() && store.write(key(0, 4), b"content").is_err());
    assert_eq!(store.write(key(0, 3), b"content").unwrap(), None, "its file counts as used");
    assert_eq!(read(&mut store, key(0, 1), 7).unwrap()[..], *b"content");
    let left = files(folder.path());
    assert!(left.iter().all(|file| file.extension().unwrap() == "kv"), "{left:?}");
}

/// Unfinished files of a process that was killed are no contents, and are removed later.
#[test]
fn unfinished_files_are_removed() {
    let folder = private_folder();
    let mut store = open(folder.path());
    store.write(key(0, 1), b"content").unwrap();
    let beside = files(folder.path()).remove(0);
    let [old, new] = ["1-1.unfinished", "2-1.unfinished"].map(|name| beside.with_file_name(name));
    fs::write(&old, b"RFKV").unwrap();
    fs::write(&new, b"RFKV").unwrap();
    set_used(&old, 1000);
    assert_eq!(open(folder.path()).scan(), [key(0, 1)]);
    assert_eq!((old.exists(), new.exists()), (false, true));
}

#[test]
fn a_folder_that_others_may_read_is_refused() {
    let folder = private_folder();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let refused = Store::open(folder.path(), [7; 32], CAPACITY).err().unwrap();
    assert!(matches!(refused, Error::InvalidRequest { .. }) && refused.to_string().contains("chmod 700"), "{refused}");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(folder.path().join("key"), b"short").unwrap();
    let refused = Store::open(folder.path(), [7; 32], CAPACITY).err().unwrap();
    assert!(refused.to_string().contains("has 5 bytes"), "{refused}");
    // A link, a folder and a pipe in its place are refused as well, and nobody waits for the pipe's writer.
    let key = folder.path().join("key");
    fs::rename(&key, folder.path().join("elsewhere")).unwrap();
    let elsewhere = folder.path().join("elsewhere");
    let makes: [&dyn Fn() -> io::Result<()>; 3] = [&|| symlink(&elsewhere, &key), &|| fs::create_dir(&key), &|| {
        Command::new("mkfifo").arg(&key).status().map(drop)
    }];
    for make in makes {
        make().unwrap();
        assert!(matches!(Store::open(folder.path(), [7; 32], CAPACITY), Err(Error::Io { .. })));
        fs::remove_file(&key).or_else(|_| fs::remove_dir(&key)).unwrap();
    }
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(Store::open(&file, [7; 32], CAPACITY), Err(Error::Io { .. })));
}

/// Several threads read, and each content is reported once, in pieces. Those that are missing are named.
#[test]
fn many_contents_are_read_in_pieces() {
    let folder = private_folder();
    let mut store = Store::open(folder.path(), [7; 32], 1 << 30).unwrap();
    let content = |number: u8| vec![number; 3 << 20];
    (0..30).for_each(|number| drop(store.write(key(0, number), &content(number)).unwrap()));
    let wanted: Vec<_> = (0..40).map(|number| (key(0, number), 3 << 20)).collect();
    let (mut read, mut pieces) = (HashMap::new(), 0);
    store.read_all(&wanted, &mut |piece| {
        pieces += 1;
        let bytes: usize = piece.iter().flat_map(|(_, content)| content).map(|content| content.len()).sum();
        assert!(bytes < 36 << 20);
        piece.into_iter().for_each(|(key, content)| assert!(read.insert(key, content).is_none()));
    });
    assert_eq!((read.len(), pieces), (40, 3));
    for number in 0..40 {
        let expected = (number < 30).then(|| content(number));
        assert!(read[&key(0, number)].as_ref().map(|content| &***content) == expected.as_deref(), "{number}");
    }
}

/// Tiers with files that have the two full blocks of some prompts.
struct Tiers {
    kv: Arc<RwLock<KvCache>>,
    offload: Offload,
    reported: Receiver<FileEvent>,
    _folder: tempfile::TempDir,
}

fn prompt(number: u32) -> Arc<[u32]> {
    (0..9).map(|i| number * 100 + i).collect()
}

impl Tiers {
    /// `bytes`: the bytes of each content.
    fn new(prompts: u32, bytes: usize) -> Self {
        let folder = private_folder();
        let mut store = open(folder.path());
        let config = KvCacheConfig {
            block_size: 4,
            groups: vec![GroupConfig { kind: GroupKind::Full, num_blocks: 8 }],
            states: None,
            enable_prefix_caching: true,
            hash_key: store.hash_key(),
        };
        let kv = Arc::new(RwLock::new(KvCache::new(config).unwrap()));
        for number in 0..prompts {
            let mut chain = kv.read().new_chain(None, SeqExtras::default());
            kv.read().extend_chain(&mut chain, &Tokens::new(prompt(number)));
            for hash in chain.hashes() {
                store.write(ContentKey { pool: 0, hash: *hash }, &vec![1; bytes]).unwrap();
            }
        }
        let files = KvFilesConfig { folder: folder.path().to_owned(), capacity: CAPACITY, namespace: [7; 32] };
        let config = KvOffloadConfig { memory: 10_000, files: Some(files) };
        let content_bytes = vec![bytes as u64];
        let index = OffloadConfig { memory: config.memory, content_bytes, num_ahead: vec![1] };
        let (reports, reported) = unbounded();
        let report = move |event| drop(reports.send(event));
        let offload = Offload::start(&config, Some(store), index, vec![2], &kv, report).unwrap();
        Self { kv, offload, reported, _folder: folder }
    }

    /// Has the contents read for a request with a prompt; both have this number.
    fn fetch(&mut self, number: u32) -> Option<NewSequence> {
        self.offload.fetch(NewSequence {
            id: seq_id(RequestId(number.into()), 0),
            prompt: prompt(number),
            max_tokens: 1,
            priority: 0,
            client: None,
            all_logits: false,
            cache_salt: None,
            will_fork: false,
            extras: SeqExtras::default(),
        })
    }

    fn event(&self) -> FileEvent {
        self.reported.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    /// Takes an event. Returns the requests that need not wait any more.
    fn take(&mut self, event: FileEvent) -> Vec<RequestId> {
        self.offload.take_event(event).iter().map(|sequence| request_of(sequence.id).0).collect()
    }
}

/// Contents whose read began before everything was cleared do not come back. Their request goes on without them.
#[test]
fn a_read_from_before_a_clear_brings_nothing_back() {
    for is_cleared in [false, true] {
        let mut tiers = Tiers::new(1, 7);
        assert!(tiers.fetch(0).is_none());
        assert_eq!(tiers.offload.waiting().collect::<Vec<_>>(), [RequestId(0)]);
        let event = tiers.event();
        if is_cleared {
            assert!(tiers.kv.write().reset_prefix_cache());
            tiers.offload.clear();
        }
        assert_eq!((tiers.take(event), tiers.offload.num_waiting()), (vec![RequestId(0)], 0));
        let index = tiers.offload.stats().index;
        let expected = if is_cleared { (0, 0) } else { (2, 8) };
        assert_eq!((index.memory_contents, index.disk_hit_tokens), expected, "{index:?}");
        tiers.offload.check(true).unwrap();
    }
}

/// Reads of all requests take at most half of host memory. The others wait for their turn, or end before.
#[test]
fn reads_are_bounded() {
    let mut tiers = Tiers::new(4, 2_000);
    assert!((0..4).all(|number| tiers.fetch(number).is_none()));
    assert!(tiers.fetch(9).is_some(), "nothing of it is in files");
    assert_eq!(tiers.offload.num_waiting(), 4);
    let first = tiers.event();
    assert!(tiers.reported.recv_timeout(Duration::from_millis(50)).is_err(), "one read is under way");
    tiers.offload.forget(RequestId(1));
    assert_eq!(tiers.take(first), [RequestId(0)]);
    for number in [2, 3] {
        let event = tiers.event();
        assert_eq!(tiers.take(event), [RequestId(number)]);
    }
    tiers.offload.check(true).unwrap();
}
