//! Images of requests.
//!
//! - `reader` checks the images of a request and finds their tokens in its prompt.
//! - `encoder` computes their rows on a thread, and keeps the rows of recent images.
//! - `Pending` is the engine thread's part: requests whose rows are being computed, and the rows of all others.
//!
//! A request waits outside of the scheduler until its rows are computed, so no step waits for the encoder.

mod encoder;
mod reader;

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::ids::RequestId;
use super::stats::ImageStats;
use crate::model::vision::{ImageRows, Images};
use crate::pixels::Picture;
use crate::scheduler::NewSequence;
use crate::{Error, Result};
use rocmforge_core::images::{ImageDigest, ImageId, SeqImages};

pub(super) use encoder::run;
pub use reader::{ImageReader, LoadedImages};

/// An image of a request.
#[derive(Debug, Clone)]
pub(super) struct RequestImage {
    pub(super) id: ImageId,
    pub(super) picture: Arc<Picture>,
}

/// Where the images of a request are in its prompt, and the images.
pub(super) type PromptImages = (Arc<SeqImages>, Vec<RequestImage>);

/// The images of a request, for the thread that encodes them.
pub(super) struct Job {
    pub(super) request: RequestId,
    pub(super) images: Vec<RequestImage>,
}

/// The rows of a request's images, and counts since the engine started.
pub(super) struct Encoded {
    pub(super) request: RequestId,
    pub(super) rows: Result<Vec<Arc<ImageRows>>>,
    pub(super) stats: ImageStats,
}

/// The images of the requests that the engine thread knows.
pub(super) struct Pending {
    /// `None` for a model without an image encoder.
    jobs: Option<Sender<Job>>,
    /// Sequences whose rows are being computed.
    waiting: HashMap<RequestId, NewSequence>,
    of_request: HashMap<RequestId, Vec<ImageId>>,
    rows: Images,
}

impl Pending {
    pub(super) fn new(jobs: Option<Sender<Job>>) -> Self {
        Self { jobs, waiting: HashMap::new(), of_request: HashMap::new(), rows: Images::new() }
    }

    /// Has the images of a request encoded. `take` returns its sequence when that is done.
    ///
    /// # Errors
    /// `Error::Internal` if the thread that encodes has ended.
    pub(super) fn encode(
        &mut self,
        sequence: NewSequence,
        request: RequestId,
        images: Vec<RequestImage>,
    ) -> Result<()> {
        self.of_request.insert(request, images.iter().map(|image| image.id).collect());
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(Job { request, images }));
        if !matches!(sent, Some(Ok(()))) {
            return Err(Error::internal("the image encoder has ended"));
        }
        self.waiting.insert(request, sequence);
        Ok(())
    }

    /// Takes the rows of a request's images; returns its sequence. `None` for a request that has ended meanwhile.
    pub(super) fn take(&mut self, request: RequestId, rows: Vec<Arc<ImageRows>>) -> Option<NewSequence> {
        let sequence = self.waiting.remove(&request)?;
        let ids = self.of_request.get(&request).map_or(&[][..], Vec::as_slice);
        self.rows.extend(ids.iter().copied().zip(rows));
        Some(sequence)
    }

    /// Drops everything of a request that has ended.
    pub(super) fn forget(&mut self, request: RequestId) {
        self.waiting.remove(&request);
        for id in self.of_request.remove(&request).unwrap_or_default() {
            self.rows.remove(&id);
        }
    }

    /// Returns the requests whose rows are being computed.
    pub(super) fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.waiting.keys().copied()
    }

    pub(super) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn rows(&self) -> &Images {
        &self.rows
    }

    /// True if nothing of any request is left.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.of_request.is_empty() && self.rows.is_empty()
    }
}

/// The rows of recent images, up to a number of bytes.
#[derive(Debug)]
struct RowCache {
    entries: HashMap<ImageDigest, (u64, Arc<ImageRows>)>,
    capacity: usize,
    bytes: usize,
    /// Counts the uses.
    now: u64,
}

impl RowCache {
    fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity, bytes: 0, now: 0 }
    }

    fn get(&mut self, digest: &ImageDigest) -> Option<Arc<ImageRows>> {
        self.now += 1;
        let (used, rows) = self.entries.get_mut(digest)?;
        *used = self.now;
        Some(Arc::clone(rows))
    }

    /// Adds rows and evicts the least recently used ones. Rows larger than the whole capacity are not stored.
    fn insert(&mut self, digest: ImageDigest, rows: Arc<ImageRows>) {
        self.now += 1;
        self.bytes += rows.bytes();
        self.entries.insert(digest, (self.now, rows));
        while self.bytes > self.capacity {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used).map(|(digest, _)| *digest);
            let removed = oldest.and_then(|oldest| self.entries.remove(&oldest));
            let Some((_, removed)) = removed else { return };
            self.bytes -= removed.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Arc<ImageRows> {
        Arc::new(ImageRows { rows: vec![0.0; count], deepstack: Vec::new() })
    }

    #[test]
    fn rows_of_the_longest_unused_image_make_room() {
        let mut cache = RowCache::new(40);
        for image in 0..3 {
            assert_eq!(cache.get(&[image; 32]), None);
            cache.insert([image; 32], rows(3));
            assert!(cache.get(&[0; 32]).is_some(), "it is used again and again");
        }
        assert_eq!((cache.bytes, cache.get(&[1; 32]).is_some()), (36, true));
        cache.insert([3; 32], rows(3));
        assert_eq!(cache.get(&[2; 32]), None, "the others were used after it was added");
        cache.insert([4; 32], rows(11));
        assert_eq!((cache.bytes, cache.entries.len()), (0, 0), "more than there is room for");
    }
}
