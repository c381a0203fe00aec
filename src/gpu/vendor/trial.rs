//! Tests the vendor's matrix library before it serves: every shape of the model, in a separate process. The library may
//! not only refuse or be wrong but crash. The verdict is kept on disk.
//!
//! The numbers are small integers, so every order of summation gives the same f32 (or f16). A right result is therefore
//! right to the last bit. All of the result is checked. The outputs of a row, weighted by random 64-bit numbers, are
//! compared with the same weighting of the matrix, applied to that row. A wrong row passes about once in 2^64.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::blas::{Element, Operands, Product, VendorBlas, WORKSPACE_BYTES};
use crate::backend::Random;
use crate::cache::Cache;
use crate::config::{GpuOptions, Platform};
use crate::job;
use crate::{Device, DeviceBuffer, DeviceProperties, DevicePtr, DeviceSlice, HostBuffer, Stream};
use crate::{Error, Result};

/// The library loads its kernels from disk when they are first used.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The answer of a process that found no fault; any other answer is the fault.
const GOOD: &[u8] = b"good";
/// Bytes of one copy to the device.
const PIECE_BYTES: usize = 16 << 20;
/// The value after the outputs of a row, if they are a part of a longer row.
const UNTOUCHED: f32 = 77.0;

/// Checks that all of these products are right; the error is the problem.
///
/// # Errors
/// The text says why the library must not be used.
pub(crate) fn check(
    properties: &DeviceProperties,
    library: &Path,
    products: &[Product],
    options: &GpuOptions,
) -> std::result::Result<(), String> {
    if properties.platform == Platform::Nvidia || products.is_empty() {
        return Ok(());
    }
    let job = job(properties, library, products);
    let cache = Cache::verdicts(options.cache_dir.as_deref());
    let key = key(properties, library, &job);
    if let Some(verdict) = cache.load(&key) {
        return judged(&verdict);
    }
    let verdict = tried(&job, options)?;
    cache.store(&key, &verdict);
    judged(&verdict)
}

/// Tests the products on either platform, ignoring earlier verdicts.
///
/// # Errors
/// The text says what is wrong with the products, or why they were not tested.
pub(crate) fn verdict(
    properties: &DeviceProperties,
    library: &Path,
    products: &[Product],
    options: &GpuOptions,
) -> std::result::Result<(), String> {
    judged(&tried(&job(properties, library, products), options)?)
}

/// Gets the verdict of a separate process. A crash is a verdict. If nothing could be tested there is none, and the next
/// time may differ.
fn tried(job: &Value, options: &GpuOptions) -> std::result::Result<Vec<u8>, String> {
    let Some(command) = &options.helper else {
        return Err("it was not tried, since no program to try it in was named".to_owned());
    };
    match job::run(command, job, TIMEOUT) {
        Ok(verdict) => Ok(verdict),
        Err(job::Failure::Died(how) | job::Failure::TimedOut(how)) => {
            Ok(format!("tested in a separate process, that {how}").into_bytes())
        }
        Err(job::Failure::Exited(problem) | job::Failure::NotRun(problem)) => {
            Err(format!("it was not tried: {problem}"))
        }
    }
}

fn judged(verdict: &[u8]) -> std::result::Result<(), String> {
    if verdict == GOOD { Ok(()) } else { Err(String::from_utf8_lossy(verdict).into_owned()) }
}

/// Returns a key of the library's file in its present state, the driver, the GPU and the products.
fn key(properties: &DeviceProperties, library: &Path, job: &Value) -> blake3::Hash {
    let file = std::fs::canonicalize(library).unwrap_or_else(|_| library.to_path_buf());
    // If the file's metadata cannot be read, only its path identifies the library.
    let changed = std::fs::metadata(&file).ok().map(|about| (about.len(), about.modified().ok()));
    let text = format!("matrix library {} {changed:?} {} {} {job}", file.display(), properties.driver, properties.arch);
    blake3::hash(text.as_bytes())
}

fn job(properties: &DeviceProperties, library: &Path, products: &[Product]) -> Value {
    let products = products.iter().map(|p| {
        json!({
            "rows": p.rows, "out_rows": p.out_rows, "cols": p.cols, "out_stride": p.out_stride,
            "input": p.input.name(), "output": p.output.name(), "add": p.add, "bias": p.bias,
        })
    });
    json!({
        "kind": job::TRY_PRODUCTS,
        "platform": properties.platform.name(),
        "driver": properties.library.display().to_string(),
        "device": properties.index,
        "library": library.display().to_string(),
        "products": products.collect::<Vec<_>>(),
    })
}

/// Does a job in the separate process, and returns the verdict.
///
/// # Errors
/// The reason why nothing could be tested.
pub(crate) fn run(job: &Value) -> std::result::Result<Vec<u8>, String> {
    let text = |name: &str| job[name].as_str().ok_or_else(|| format!("a job without {name}"));
    let number = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or("a job without a number");
    let options = GpuOptions {
        platform: Some(if text("platform")? == Platform::Amd.name() { Platform::Amd } else { Platform::Nvidia }),
        library: Some(PathBuf::from(text("driver")?)),
        device_index: u32::try_from(number(&job["device"])?).ok(),
        ..GpuOptions::default()
    };
    let mut products = Vec::new();
    for p in job["products"].as_array().ok_or("a job without products")? {
        let element = |value: &Value| value.as_str().and_then(Element::named).ok_or("a product of unknown elements");
        products.push(Product {
            rows: number(&p["rows"])?,
            out_rows: number(&p["out_rows"])?,
            cols: number(&p["cols"])?,
            out_stride: number(&p["out_stride"])?,
            input: element(&p["input"])?,
            output: element(&p["output"])?,
            add: p["add"] == true,
            bias: p["bias"] == true,
        });
    }
    let device = Device::open(&options).map_err(|error| error.to_string())?;
    let mut blas = match VendorBlas::open_file(&device, Path::new(text("library")?)) {
        Ok(blas) => blas,
        Err(problem) => return Ok(problem.into_bytes()),
    };
    match try_all(&device, &mut blas, &products) {
        Ok(Ok(())) => Ok(GOOD.to_vec()),
        Ok(Err(problem)) => Ok(problem.into_bytes()),
        // If the device is lost after a product, the library is to blame.
        Err(Error::EngineDead { reason }) => Ok(reason.into_bytes()),
        Err(error) => Err(error.to_string()),
    }
}

/// Tests all products; the inner error is the verdict.
fn try_all(device: &Device, blas: &mut VendorBlas, products: &[Product]) -> Result<std::result::Result<(), String>> {
    let mut rig = Rig::new(device)?;
    let mut weights: Option<(Weights, DeviceBuffer)> = None;
    for &product in products {
        let shape = (product.out_rows, product.cols, product.input);
        if weights.as_ref().is_none_or(|(held, _)| held.shape != shape) {
            // The last matrix is freed first.
            drop(weights.take());
            let bytes = product.input.size() * product.out_rows * product.cols;
            let buffer = DeviceBuffer::new(device, bytes as u64)?;
            weights = Some((rig.weights(shape, &buffer)?, buffer));
        }
        let Some((held, buffer)) = &weights else {
            return Err(Error::internal("weights that were just made are not there"));
        };
        if let Err(problem) = rig.check(blas, product, held, buffer)? {
            return Ok(Err(format!("{product:?}: {problem}")));
        }
    }
    Ok(Ok(()))
}

/// A matrix of -1, 0 and 1. Only its sums are kept after the upload.
struct Weights {
    shape: (usize, usize, Element),
    /// A random number per output.
    factors: Vec<i64>,
    /// For each column, the sum of its elements times the scales and the factors of their outputs.
    sums: Vec<i64>,
}

struct Rig {
    device: Device,
    stream: Stream,
    host: HostBuffer,
    workspace: DeviceBuffer,
    random: Random,
}

impl Rig {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            stream: Stream::new(device)?,
            host: HostBuffer::new(device, PIECE_BYTES)?,
            workspace: DeviceBuffer::new(device, WORKSPACE_BYTES)?,
            random: Random(1),
            device: device.clone(),
        })
    }

    fn weights(&mut self, shape: (usize, usize, Element), buffer: &DeviceBuffer) -> Result<Weights> {
        let (out_rows, cols, element) = shape;
        let factors: Vec<i64> = (0..out_rows).map(|_| self.random.next().cast_signed()).collect();
        let mut sums = vec![0i64; cols];
        let mut row = vec![0u8; element.size() * cols];
        let mut to = Sender { rig: self, to: buffer.slice(), filled: 0 };
        for (i, &factor) in factors.iter().enumerate() {
            let scaled = factor.wrapping_mul(element.scale(i).into());
            let mut bits = 0;
            for (col, (sum, bytes)) in sums.iter_mut().zip(row.chunks_exact_mut(element.size())).enumerate() {
                if col % 32 == 0 {
                    bits = to.rig.random.next();
                }
                let value: i16 = [0, 1, -1, 0][(bits & 3) as usize];
                bits >>= 2;
                *sum = sum.wrapping_add(scaled.wrapping_mul(value.into()));
                element.put(value.into(), bytes);
            }
            to.send(&row)?;
        }
        to.flush()?;
        Ok(Weights { shape, factors, sums })
    }

    fn upload(&mut self, bytes: &[u8]) -> Result<DeviceBuffer> {
        let buffer = DeviceBuffer::new(&self.device, bytes.len() as u64)?;
        let mut to = Sender { rig: self, to: buffer.slice(), filled: 0 };
        to.send(bytes)?;
        to.flush()?;
        Ok(buffer)
    }

    /// Computes one product and checks the result.
    fn check(
        &mut self,
        blas: &mut VendorBlas,
        product: Product,
        weights: &Weights,
        buffer: &DeviceBuffer,
    ) -> Result<std::result::Result<(), String>> {
        let Product { rows, out_rows, cols, out_stride, input, output, .. } = product;
        let x = self.activations(product);
        let bias: Vec<i16> = (0..out_rows).map(|_| small(&mut self.random)).collect();
        let before: Vec<i16> = (0..rows * out_stride).map(|_| small(&mut self.random)).collect();
        let mut x_bytes = vec![0; input.size() * x.len()];
        for (&x, bytes) in x.iter().zip(x_bytes.chunks_exact_mut(input.size())) {
            input.put(x.into(), bytes);
        }
        let x_buffer = self.upload(&x_bytes)?;
        let scales = |count| f32_bytes(&(0..count).map(|i| input.scale(i)).collect::<Vec<_>>());
        let scales = [self.upload(&scales(out_rows))?, self.upload(&scales(rows))?];
        let bias_buffer = self.upload(&f32_bytes(&bias))?;
        let start = |i: usize| match i % out_stride < out_rows {
            true if product.add => f32::from(before[i]),
            // This element must not be read.
            true => f32::NAN,
            false => UNTOUCHED,
        };
        let mut out = vec![0; rows * out_stride * output.size()];
        for (i, bytes) in out.chunks_exact_mut(output.size()).enumerate() {
            output.put(start(i), bytes);
        }
        let out_buffer = self.upload(&out)?;
        let operands = Operands {
            weights: buffer.ptr(),
            x: x_buffer.ptr(),
            bias: if product.bias { bias_buffer.ptr() } else { DevicePtr::NULL },
            out: out_buffer.ptr(),
            scales: if input == Element::Fp8 { scales.each_ref().map(DeviceBuffer::ptr) } else { [DevicePtr::NULL; 2] },
            workspace: self.workspace.ptr(),
        };
        // SAFETY: the buffers have the product's sizes and live until the stream was waited for, below.
        if let Err(refusal) = unsafe { blas.multiply(&self.stream, product, operands)? } {
            self.stream.synchronize()?;
            return Ok(Err(refusal));
        }
        let got = self.download(&out_buffer, out.len())?;
        let got: Vec<f32> = got.chunks(output.size()).map(|bytes| output.value(bytes)).collect();
        for (i, (row, x)) in got.chunks(out_stride).zip(x.chunks(cols)).enumerate() {
            let scale = i64::from(input.scale(i));
            let product_sum =
                x.iter().zip(&weights.sums).fold(0i64, |sum, (&x, &w)| add_product(sum, scale * i64::from(x), w));
            let expected = (0..out_rows).fold(product_sum, |sum, j| {
                let more = i64::from(if product.add { before[i * out_stride + j] } else { 0 })
                    + i64::from(if product.bias { bias[j] } else { 0 });
                add_product(sum, more, weights.factors[j])
            });
            let whole = row[..out_rows].iter().all(|value| value.fract() == 0.0);
            let sum = row.iter().zip(&weights.factors).fold(0, |sum, (&v, &f)| add_product(sum, v as i64, f));
            if !whole || sum != expected || row[out_rows..].iter().any(|&value| value != UNTOUCHED) {
                return Ok(Err(format!("row {i} of the result is wrong")));
            }
        }
        Ok(Ok(()))
    }

    /// Returns whole numbers up to 127, or 15 for 8-bit floats. For an f16 result few of them are not zero: every sum
    /// is below 2048 (before its scales, powers of two), and so exact.
    fn activations(&mut self, Product { rows, cols, input, output, .. }: Product) -> Vec<i16> {
        let part = if input == Element::Fp8 { 8 } else { 1 };
        if output == Element::F32 {
            return (0..rows * cols).map(|_| small(&mut self.random) / part).collect();
        }
        let mut x = vec![0; rows * cols];
        for row in x.chunks_mut(cols) {
            for i in 0..1031 {
                let sign = if self.random.next() & 1 == 0 { 1 } else { -1 };
                row[(self.random.next() % cols as u64) as usize] = if i < 8 { 127 / part * sign } else { sign };
            }
        }
        x
    }

    fn download(&mut self, buffer: &DeviceBuffer, bytes: usize) -> Result<Vec<u8>> {
        let mut all = Vec::with_capacity(bytes);
        while all.len() < bytes {
            let piece = (bytes - all.len()).min(PIECE_BYTES);
            let from = buffer.slice().after(all.len() as u64)?;
            // SAFETY: the host's memory is looked at only after the stream was waited for.
            unsafe { self.stream.copy_to_host(&mut self.host.as_mut_slice()[..piece], from)? };
            self.stream.synchronize()?;
            all.extend_from_slice(&self.host.as_slice()[..piece]);
        }
        Ok(all)
    }
}

/// Collects bytes in page-locked memory and sends them to the device.
struct Sender<'a> {
    rig: &'a mut Rig,
    /// The part of the device's memory that is not filled yet.
    to: DeviceSlice<'a>,
    filled: usize,
}

impl Sender<'_> {
    fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = &mut self.rig.host.as_mut_slice()[self.filled..];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == PIECE_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        // SAFETY: the stream is waited for before the source changes.
        unsafe { self.rig.stream.copy_to_device(self.to, &self.rig.host.as_slice()[..self.filled])? };
        self.rig.stream.synchronize()?;
        self.to = self.to.after(self.filled as u64)?;
        self.filled = 0;
        Ok(())
    }
}

/// Returns a number from -127 to 127.
fn small(random: &mut Random) -> i16 {
    (random.next() % 255) as i16 - 127
}

fn add_product(sum: i64, a: i64, b: i64) -> i64 {
    sum.wrapping_add(a.wrapping_mul(b))
}

fn f32_bytes(values: &[i16]) -> Vec<u8> {
    values.iter().flat_map(|&value| f32::from(value).to_le_bytes()).collect()
}

impl Element {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::Bf16, Self::Fp8].into_iter().find(|element| element.name() == name)
    }

    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 => 1,
        }
    }

    /// Returns the scale of a row of either operand.
    fn scale(self, row: usize) -> i16 {
        if self == Self::Fp8 { [1, 2, 4][row % 3] } else { 1 }
    }

    /// Writes a value in this type's bytes. 8-bit floats represent all whole numbers up to 15.
    fn put(self, value: f32, bytes: &mut [u8]) {
        match self {
            Self::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
            Self::F16 => bytes.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            Self::Bf16 => bytes.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
            Self::Fp8 if value == 0.0 => bytes[0] = 0,
            // A bias of 7 instead of 127, and 3 bits of the mantissa.
            Self::Fp8 => bytes[0] = ((value.abs().to_bits() >> 20) - (120 << 3)) as u8 | (u8::from(value < 0.0) << 7),
        }
    }

    fn value(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
            (Self::Bf16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
            // These bytes are not a number, so they are never right.
            _ => f32::NAN,
        }
    }
}
