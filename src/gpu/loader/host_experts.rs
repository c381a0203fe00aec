//! Experts on the host that the CPU computes: their memory, in the layout of its kernels, and what copies of them need.

use std::sync::Arc;

use super::experts::largest_matrix_bytes;
use super::on_host::OnHost;
use super::{GpuLoader, WEIGHTS_ADVICE};
use crate::backend::{ExpertPart, ExpertSpec, ExpertTensors, Place, Placement, Progress, Upload};
use crate::buffer::packed::Packed;
use crate::buffer::{ExpertMatrix, Staged};
use crate::compute::Host;
use crate::cpu::linear::WeightBytes;
use crate::cpu::{Isa, LentExperts};
use crate::device::arena::aligned;
use crate::host_experts::{Aside, Exchange, HostCpu, MOST_ROWS, NO_TURN};
use crate::quant::GgmlType;
use crate::step::TURNS;
use crate::tensor::TensorView;
use crate::weights::staging::STAGED_ROWS;
use crate::weights::unpack::{Unpacker, scratch_bytes, tables, tables_bytes};
use crate::{DeviceBuffer, KernelType};
use crate::{Error, Result};

/// The CPU's part of a load.
#[derive(Default)]
pub(super) struct CpuPart {
    /// `None` if it computes nothing.
    pub settings: Option<CpuSettings>,
    /// There once the plan has put experts on the host.
    pub host: Option<HostExperts>,
    /// Bytes on the device for copies of these experts that are not allocated yet.
    pub unpacking_bytes: u64,
}

/// The threads that may compute experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuSettings {
    pub num_threads: usize,
    pub isa: Isa,
}

/// Experts that the CPU computes.
pub(super) struct HostExperts {
    cpu: Arc<HostCpu>,
    exchanges: Vec<Arc<Exchange>>,
    /// The types of the experts.
    types: Vec<(KernelType, GgmlType)>,
    /// Memory of the unpacker: its areas, and a table for each type. `None` if nothing is copied.
    unpacking: Option<Unpacking>,
}

struct Unpacking {
    scratch: DeviceBuffer,
    tables: Vec<(KernelType, GgmlType, DeviceBuffer)>,
}

/// Yields the experts among the uploads whose index `is_meant`.
fn experts<'a, 'b>(
    uploads: &'a [Upload<'b>],
    is_meant: impl Fn(usize) -> bool,
) -> impl Iterator<Item = &'a ExpertTensors<'b>> {
    uploads.iter().enumerate().filter_map(move |(index, upload)| match upload {
        Upload::Experts(tensors) if is_meant(index) => Some(&**tensors),
        _ => None,
    })
}

/// Returns the types of all matrices of the experts, without duplicates.
fn types<'a, 'b: 'a>(all: impl Iterator<Item = &'a ExpertTensors<'b>>) -> Result<Vec<(KernelType, GgmlType)>> {
    let mut types = Vec::new();
    for tensors in all {
        for &part in tensors.spec.parts() {
            let file = tensors.matrix(part, 0).ggml_type;
            let ty = (KernelType::of(file)?, file);
            if !types.contains(&ty) {
                types.push(ty);
            }
        }
    }
    Ok(types)
}

/// Returns the bytes of the matrices of all experts in the layout of the CPU's kernels.
pub(super) fn packed_bytes(tensors: &ExpertTensors<'_>) -> Result<u64> {
    let bytes = |&part: &ExpertPart| Ok(part_bytes(tensors, part)?.1);
    tensors.spec.parts().iter().map(bytes).sum()
}

/// Returns the bytes of one of the matrices of an expert, and of all experts.
fn part_bytes(tensors: &ExpertTensors<'_>, part: ExpertPart) -> Result<(u64, u64)> {
    let of_one = LentExperts::matrix_bytes(tensors, part)?;
    Ok((of_one, aligned(tensors.spec.num as u64 * of_one)))
}

/// Returns the bytes on the device that copies of packed experts need beside the staging buffers.
pub(super) fn unpacking_bytes(uploads: &[Upload<'_>]) -> Result<u64> {
    let (mut largest, mut of_all) = (0, 0);
    for tensors in experts(uploads, |_| true) {
        for &part in tensors.spec.parts() {
            let view = tensors.matrix(part, 0);
            let of_one = part_bytes(tensors, part)?.0.max(view.data.len() as u64);
            largest = largest.max(of_one);
            of_all = of_all.max(tensors.spec.num as u64 * of_one);
        }
    }
    let tables: u64 = types(experts(uploads, |_| true))?.iter().map(|(_, file)| tables_bytes(*file)).sum();
    Ok(if largest > 0 { scratch_bytes(largest, of_all) + tables } else { 0 })
}

impl GpuLoader {
    /// Lets `num_threads` threads of the CPU compute experts that lie on the host, apart from those in the cache. The
    /// device computes all of them if it shares the host's memory, and in batch-invariant mode. There, results do not
    /// depend on the place of weights.
    pub fn with_cpu(mut self, num_threads: usize, isa: Isa) -> Self {
        let computes = !self.options.batch_invariant && !self.device.properties().integrated;
        self.cpu.settings = computes.then_some(CpuSettings { num_threads, isa });
        self
    }

    /// Starts the threads, if the plan puts experts on the host.
    pub(super) fn start_cpu(&mut self, uploads: &[Upload<'_>], placement: &Placement) -> Result<()> {
        let places: Vec<_> = placement.places().map(|(place, _)| place).collect();
        let types = types(experts(uploads, |index| places[index] == Place::Host))?;
        if let Some(CpuSettings { num_threads, isa }) = self.cpu.settings.filter(|_| !types.is_empty()) {
            let cpu = Arc::new(HostCpu::new(num_threads, isa, TURNS)?);
            self.cpu.host = Some(HostExperts { cpu, exchanges: Vec::new(), types, unpacking: None });
        }
        Ok(())
    }

    /// Returns the bytes of an upload in the host's memory; `planned` are those of the plan.
    pub(super) fn bytes_on_host(&self, upload: &Upload<'_>, planned: u64) -> Result<u64> {
        match upload {
            Upload::Experts(tensors) if self.cpu.settings.is_some() => packed_bytes(tensors),
            _ => Ok(planned),
        }
    }

    /// Returns the bytes of the host's memory that experts at these places share with the CPU for their rows. Experts
    /// with staging buffers need it only for short steps.
    pub(super) fn exchange_bytes(&self, uploads: &[Upload<'_>], places: &[Place]) -> Result<u64> {
        let mut kinds: Vec<(ExpertSpec, u64)> = Vec::new();
        for tensors in experts(uploads, |index| self.cpu.settings.is_some() && places[index] == Place::Host) {
            let is_copied = largest_matrix_bytes(tensors)? <= self.staging_buffer;
            let rows = if is_copied { self.limits.tokens.min(MOST_ROWS) } else { self.limits.tokens };
            let bytes = Exchange::bytes_of(&tensors.spec, rows);
            match kinds.iter_mut().find(|(spec, _)| *spec == tensors.spec) {
                Some((_, most)) => *most = bytes.max(*most),
                None => kinds.push((tensors.spec, bytes)),
            }
        }
        Ok(kinds.into_iter().map(|(_, bytes)| bytes).sum())
    }

    /// Allocates what copies of packed experts need.
    pub(super) fn reserve_unpacking(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.cpu.unpacking_bytes);
        let types = self.cpu.host.as_ref().map(|host| host.types.clone());
        let Some(types) = types.filter(|_| bytes > 0) else { return Ok(()) };
        let memory = self.allocate(bytes, "copies of experts in host memory", WEIGHTS_ADVICE)?;
        self.ledger.scratch += bytes;
        let all_tables: u64 = types.iter().map(|(_, file)| tables_bytes(*file)).sum();
        let mut at = bytes - all_tables;
        let scratch = memory.part(0, at)?;
        let mut tables = Vec::new();
        for (ty, file) in types {
            tables.push((ty, file, memory.part(at, tables_bytes(file))?));
            at += tables_bytes(file);
        }
        if let Some(host) = &mut self.cpu.host {
            host.unpacking = Some(Unpacking { scratch, tables });
        }
        Ok(())
    }

    /// Takes the host's memory for one of the matrices of all experts, which `pack_experts` fills.
    pub(super) fn packed_matrix(
        &mut self,
        tensors: &ExpertTensors<'_>,
        part: ExpertPart,
        bias: Option<TensorView<'_>>,
        on_host: &mut OnHost,
    ) -> Result<ExpertMatrix> {
        let TensorView { ggml_type: file, rows, cols, .. } = tensors.matrix(part, 0);
        let (ty, bias) = (KernelType::of(file)?, self.optional_values(bias)?);
        let (matrix_bytes, bytes) = part_bytes(tensors, part)?;
        let memory = on_host.take(bytes).ok_or_else(|| Error::internal("experts without memory of the host"))?;
        self.ledger.host_weights += bytes;
        let scales = (0..tensors.spec.num).map(|expert| tensors.matrix(part, expert).scale()).collect();
        let packed = Arc::new(Packed { ty, file, rows, cols, matrix_bytes, scales });
        let copy_bytes = tensors.spec.num as u64 * ty.matrix_bytes(rows, cols);
        let staged: Option<Staged> = self.staged.add_packed(&memory, copy_bytes, &packed);
        if !self.types.contains(&ty) {
            self.types.push(ty);
        }
        Ok(ExpertMatrix { ty, rows, cols, tiles: memory, packed: Some(packed), bias, staged, cached: None })
    }

    /// Packs the experts into the memory of their matrices. Returns the layer's number.
    pub(super) fn pack_experts(
        &mut self,
        tensors: &ExpertTensors<'_>,
        gate: Option<&ExpertMatrix>,
        [up, down]: [&ExpertMatrix; 2],
        progress: &mut Progress<'_>,
    ) -> Result<Option<usize>> {
        let Some(HostExperts { cpu, .. }) = &self.cpu.host else { return Ok(None) };
        let mut take = |part, expert: usize| {
            let matrix = match part {
                ExpertPart::Gate => gate.ok_or_else(|| Error::internal("an expert without its gate"))?,
                ExpertPart::Up => up,
                ExpertPart::Down => down,
            };
            let bytes = LentExperts::matrix_bytes(tensors, part)?;
            let memory = matrix.tiles.part(expert as u64 * bytes, bytes)?;
            let (start, len) = (memory.host_address()?, bytes as usize);
            // SAFETY: page-locked memory, zeroed at its allocation. Each expert has its own part, the buffer keeps it
            // alive, and kernels only read it.
            Ok(unsafe { WeightBytes::lent(Arc::new(memory), start, len) })
        };
        let experts = LentExperts::pack(cpu.isa, tensors, &mut take, &cpu.pool, progress)?;
        let matrices = || gate.iter().chain([&up, &down]);
        let is_staged = matrices().all(|matrix| matrix.staged.is_some());
        let copied_bytes = if is_staged { matrices().map(|matrix| matrix.tiles.bytes()).sum() } else { 0 };
        Ok(Some(cpu.add(experts, copied_bytes)))
    }

    /// Returns the memory that steps of this many rows share with the CPU, if it computes experts.
    pub(super) fn exchange(&mut self, spec: &ExpertSpec, rows: usize) -> Result<Option<Arc<Exchange>>> {
        let Some(host) = &mut self.cpu.host else { return Ok(None) };
        let Some(rows) = host.cpu.most_rows(spec, rows) else { return Ok(None) };
        let exchange = Arc::new(Exchange::new(&self.device, &host.cpu, spec, rows)?);
        self.ledger.host_weights += exchange.bytes();
        host.exchanges.push(Arc::clone(&exchange));
        Ok(Some(exchange))
    }

    /// Returns what copies of packed experts need on the stream that makes them.
    pub(super) fn unpacker(&mut self) -> Result<Option<Arc<Unpacker>>> {
        let unpacking = self.cpu.host.as_mut().and_then(|host| host.unpacking.take());
        let Some(Unpacking { scratch, tables: all }) = unpacking else { return Ok(None) };
        for (_, file, memory) in &all {
            let bytes = tables(*file)?;
            self.uploader(bytes.len(), 0)?.bytes(&bytes, memory.slice())?;
        }
        self.finish_uploads()?;
        Unpacker::new(&self.device, &self.kernels, &scratch, all).map(|unpacker| Some(Arc::new(unpacker)))
    }

    /// Returns the CPU's part of the backend.
    pub(super) fn host_part(&mut self) -> Result<Option<Host>> {
        let Some(HostExperts { cpu, exchanges, .. }) = self.cpu.host.take() else { return Ok(None) };
        let aside = self.cache_memory.as_ref().map(|_| Aside::new(&self.device)).transpose()?;
        Ok(Some(Host { cpu, aside, exchanges, turn: NO_TURN, copied_rows: STAGED_ROWS }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;
    use crate::backend::LinearPart;
    use crate::cpu::linear::PackedMatrix;
    use crate::cpu::pool::ThreadPool;
    use crate::device::transfers::Transfers;
    use crate::testing::devices::{self, CPU_TARGETS};

    /// Copies of packed matrices have the tiles of an upload: matrices of whole tiles, and others.
    #[test]
    fn copies_have_the_tiles_of_an_upload() {
        check_copies(CPU_TARGETS[0], &[GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::F16]);
    }

    mod deep {
        use super::*;

        #[test]
        fn copies_of_every_type_have_the_tiles_of_an_upload() {
            let all: Vec<_> = KernelType::ALL.iter().map(|ty| ty.ggml_type()).collect();
            for target in [CPU_TARGETS[0], "gfx1100"] {
                check_copies(target, &all);
            }
        }
    }

    fn check_copies(target: &str, all: &[GgmlType]) {
        let Some(opened) = devices::open(target) else { return };
        let pool = ThreadPool::new(1).unwrap();
        for &file in all {
            for (rows, cols, num) in [(32, 1280, 3), (17, 256, 2)] {
                let mut loader = devices::loader(&opened, 64);
                let ty = KernelType::of(file).unwrap();
                let matrix_data = file.row_bytes(cols).unwrap() * rows;
                let mut state = 1u64;
                let byte = |_| {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (state >> 56) as u8
                };
                let data: Vec<u8> = (0..num * matrix_data).map(byte).collect();
                let view = |index: usize| {
                    let data = &data[index * matrix_data..][..matrix_data];
                    TensorView { name: "experts", ggml_type: file, rows, cols, data, scales: &[] }
                };
                let part = |index: usize| LinearPart { weight: view(index), bias: None };
                let matrix_bytes = PackedMatrix::packed_bytes(Isa::detect(), &[part(0)]).unwrap();
                let memory = DeviceBuffer::on_host(&loader.device, num as u64 * matrix_bytes).unwrap();
                for index in 0..num {
                    let place = memory.part(index as u64 * matrix_bytes, matrix_bytes).unwrap();
                    let mut take = |_: usize, len: usize| {
                        // SAFETY: zeroed memory that only this matrix writes, kept alive by the buffer.
                        Ok(unsafe { WeightBytes::lent(Arc::new(place.clone()), place.host_address()?, len) })
                    };
                    PackedMatrix::pack_into(Isa::detect(), &[part(index)], &mut take, &pool, &mut |_| Ok(())).unwrap();
                }

                let tiles = ty.matrix_bytes(rows, cols);
                let [expected, copied] = [0, 1].map(|_| DeviceBuffer::new(&loader.device, num as u64 * tiles).unwrap());
                for index in 0..num {
                    let to = expected.part(index as u64 * tiles, tiles).unwrap();
                    loader.upload_tiles(&view(index), to.slice(), &mut |_| Ok(())).unwrap();
                }
                let table_memory = DeviceBuffer::new(&loader.device, tables_bytes(file)).unwrap();
                let words = tables(file).unwrap();
                loader.uploader(words.len(), 0).unwrap().bytes(&words, table_memory.slice()).unwrap();
                loader.finish_uploads().unwrap();
                let scratch =
                    DeviceBuffer::new(&loader.device, scratch_bytes(matrix_bytes.max(matrix_data as u64), 1)).unwrap();
                let unpacker =
                    Unpacker::new(&loader.device, &loader.kernels, &scratch, vec![(ty, file, table_memory)]).unwrap();
                let packed = Packed { ty, file, rows, cols, matrix_bytes, scales: vec![1.0; num] };
                let stream = Stream::new(&loader.device).unwrap();
                // SAFETY: everything lives to the end of the loop, which waits.
                unsafe { unpacker.copy(&stream, &packed, &memory, 0..num, copied.slice()).unwrap() };
                let mut transfers = Transfers::new(&loader.device).unwrap();
                let mut read = |buffer: &DeviceBuffer| {
                    let mut bytes = Vec::new();
                    transfers.read(&stream, buffer.slice(), |part| bytes.extend_from_slice(part)).unwrap();
                    bytes
                };
                assert!(read(&copied) == read(&expected), "{} {rows} x {cols}", file.name());
            }
        }
    }
}
