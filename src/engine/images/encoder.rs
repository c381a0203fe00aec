//! The thread that computes rows of images.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Receiver;

use super::{Encoded, Job, RequestImage, RowCache};
use crate::Result;
use crate::ids::RequestId;
use crate::model::vision::{ImageEncoder, ImageRows};
use crate::stats::ImageStats;
use crate::threads::panics::{guarded, panicked};

/// Bytes of rows that stay for further requests with the same image.
const CACHED_BYTES: usize = 512 << 20;

/// Encodes the images of requests, one after the other, until the engine thread has ended. `is_active` tells if a
/// request still needs its rows, and `deliver` takes them.
pub(crate) fn run(
    mut encoder: Box<dyn ImageEncoder>,
    jobs: &Receiver<Job>,
    is_active: impl Fn(RequestId) -> bool,
    mut deliver: impl FnMut(Encoded),
) {
    let (mut cache, mut stats) = (RowCache::new(CACHED_BYTES), ImageStats::default());
    while let Ok(Job { request, images }) = jobs.recv() {
        let rows = match is_active(request) {
            true => encode(encoder.as_mut(), &images, &mut cache, &mut stats),
            false => Ok(Vec::new()),
        };
        deliver(Encoded { request, rows, stats });
    }
}

fn encode(
    encoder: &mut dyn ImageEncoder,
    images: &[RequestImage],
    cache: &mut RowCache,
    stats: &mut ImageStats,
) -> Result<Vec<Arc<ImageRows>>> {
    let of_image = |image: &RequestImage| {
        let digest = image.picture.digest();
        stats.num_queries += 1;
        if let Some(rows) = cache.get(&digest) {
            stats.num_hits += 1;
            return Ok(rows);
        }
        let start = Instant::now();
        let prepared = encoder.spec().preparation.prepare(&image.picture)?;
        let rows = guarded(|| encoder.encode(&prepared));
        let rows = Arc::new(rows.unwrap_or_else(|payload| Err(panicked("the image encoder", payload.as_ref())))?);
        stats.num_tokens += (rows.rows.len() / encoder.spec().output_size) as u64;
        stats.busy_micros += u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        cache.insert(digest, Arc::clone(&rows));
        Ok(rows)
    };
    images.iter().map(of_image).collect()
}
