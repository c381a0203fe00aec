//! Caches, and waiting for stores: what `coherence` needs to know of an instruction.

use super::{Decoded, Decoder, Flow, Step};
use crate::coherence::{Cache, Caches};
use crate::syntax::integer;
use crate::wave::Wave;
use crate::{Memory, context::Context};

/// Whether a load or store goes past the caches of its workgroup to what all of them share.
pub(super) fn reaches_agent(d: &Decoder<'_>, is_load: bool) -> bool {
    match d.target.generation {
        9 if d.target.has_scopes() => d.text.has("sc1"),
        // The caches before L2 keep no store, and there is one L2.
        _ if !is_load => true,
        9 | 11 => d.text.has("glc"),
        10 => d.text.has("glc") && d.text.has("dlc"),
        _ => matches!(d.text.modifier("scope"), Some("SCOPE_DEV" | "SCOPE_SYS")),
    }
}

/// Instructions that move data between a workgroup and what all share; `None` for every other one.
pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let (name, text) = (d.text.mnemonic.as_str(), d.line.text.as_str());
    // Instructions without operands have their scope in the place of one.
    let agent = match d.target.generation {
        9 => d.target.has_scopes() && text.contains("sc1"),
        _ => text.contains("SCOPE_DEV") || text.contains("SCOPE_SYS"),
    };
    Ok(Some(match name {
        "s_waitcnt" if d.target.generation == 9 && text.contains("vmcnt(0)") => waiting(),
        "s_waitcnt_vscnt" | "s_wait_storecnt" if is_zero(d)? => waiting(),
        "s_dcache_inv" => caches(|caches, _, wave| caches.invalidate_scalar(wave)),
        "buffer_wbinvl1" | "buffer_wbinvl1_vol" => invalidating(Cache::Both),
        "buffer_inv" | "global_inv" if agent => invalidating(Cache::Both),
        "buffer_wbl2" | "global_wb" if agent => caches(Caches::write_back),
        "buffer_gl0_inv" => invalidating(Cache::Near),
        "buffer_gl1_inv" => invalidating(Cache::Far),
        "global_wbinv" if agent => caches(|caches, memory, wave| {
            caches.write_back(memory, wave);
            caches.invalidate(wave, Cache::Both);
        }),
        // Within a workgroup, or between the device and others: nothing that workgroups of one launch could see.
        "buffer_inv" | "buffer_wbl2" | "buffer_invl2" | "global_inv" | "global_wb" | "global_wbinv" => {
            super::step(|_| {})
        }
        _ => return Ok(None),
    }))
}

/// The count that a wait names last.
fn is_zero(d: &Decoder<'_>) -> Decoded<bool> {
    let count = d.text.operands.last().and_then(|text| integer(text)).ok_or("a wait without a count")?;
    Ok(count == 0)
}

fn waiting() -> Step {
    caches(Caches::wait)
}

fn invalidating(cache: Cache) -> Step {
    caches(move |caches, _, wave| caches.invalidate(wave, cache))
}

fn caches(
    act: impl Fn(&mut Caches, &mut dyn Memory, &mut crate::coherence::WaveCache) + Send + Sync + 'static,
) -> Step {
    Box::new(move |wave: &mut Wave, context: &mut Context<'_>| {
        if let Some(caches) = &mut context.caches {
            act(caches, context.memory, &mut wave.cache);
        }
        Ok(Flow::Next)
    })
}
