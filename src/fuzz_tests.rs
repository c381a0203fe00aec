//! Replays each input in `fuzz/corpus/` through the check that found it, so that everything that fuzzing once reached
//! stays correct. The checks are compiled again here: for their own package, the engine would have to be compiled
//! again.

#[allow(unreachable_pub)]
#[path = "../fuzz/src/lib.rs"]
mod checks;

use std::fs;
use std::panic::{self, RefUnwindSafe};
use std::path::Path;

fn replay(target: &str, check: impl Fn(&[u8]) + RefUnwindSafe) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap_or_else(|e| panic!("{}: {e}", folder.display())).path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 20, "{} inputs in {}", paths.len(), folder.display());
    for path in paths {
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let kept = panic::catch_unwind(|| check(&bytes));
        assert!(kept.is_ok(), "{}", path.display());
    }
}

#[test]
fn gguf() {
    replay("gguf", checks::gguf::check);
}

#[test]
fn tokenizer() {
    replay("tokenizer", checks::tokenizer::check);
}

#[test]
fn chat_template() {
    replay("chat_template", checks::chat_template::check);
}

#[test]
fn sampling() {
    replay("sampling", checks::sampling::check);
}
