//! Cache instructions and waits for stores: the effects of an instruction on `coherence`.

use crate::coherence::{Cache, Caches};
use crate::decode::{Decoded, Decoder, Flow, Step};
use crate::syntax::integer;
use crate::wave::Wave;
use crate::{Memory, context::Context};

/// True if a load or store bypasses the caches of its workgroup and reaches the level that all workgroups share.
pub(super) fn reaches_agent(d: &Decoder<'_>, is_load: bool) -> bool {
    match d.target.generation {
        9 if d.target.has_scopes() => d.text.has("sc1"),
        // The caches before L2 hold no stores, and there is only one L2.
        _ if !is_load => true,
        9 | 11 => d.text.has("glc"),
        10 => d.text.has("glc") && d.text.has("dlc"),
        _ => matches!(d.text.modifier("scope"), Some("SCOPE_DEV" | "SCOPE_SYS")),
    }
}

/// Decodes instructions that move data between a workgroup and the shared level; `None` for all others.
pub(in crate::decode) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let (name, text) = (d.text.mnemonic.as_str(), d.line.text.as_str());
    // Instructions without operands have their scope in an operand's place.
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
        // Scopes within a workgroup, or between the device and others, have no effect between workgroups of one launch.
        "buffer_inv" | "buffer_wbl2" | "buffer_invl2" | "global_inv" | "global_wb" | "global_wbinv" => {
            crate::decode::step(|_| {})
        }
        _ => return Ok(None),
    }))
}

/// True if the last count of a wait is zero.
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
