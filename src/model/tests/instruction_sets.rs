//! One result on every machine. `scripts/test/test_aarch64.sh` compares it between x86-64 and aarch64.

use super::*;
use crate::cpu::Isa;

/// The logits of golden models are bitwise equal on every instruction set of this CPU. The test prints their digest,
/// which must be equal on other architectures.
#[test]
fn logits_have_the_same_bits_on_every_instruction_set() {
    let names = [
        "arch/deepseek2",
        "arch/lfm2moe",
        "arch/llama3_ropescale",
        "arch/mistral",
        "arch/mixtral",
        "arch/nemotron_h",
        "arch/qwen2",
        "arch/qwen35moe",
        "arch/qwen3moe",
        "quant_models/Q4_0",
        "quant_models/Q3_K_M",
        "quant_models/Q4_K_M",
        "quant_models/Q6_K",
        "quant_models/IQ4_XS",
    ];
    for name in names {
        let tokens = tokens(&testdata::npz(name));
        let digest = |isa: Isa| {
            let loader = CpuLoader::new(2, MAX_TOKENS).unwrap().with_isa(isa);
            let logits = load_on(loader, &format!("{name}.gguf"), KvCacheDtype::F16).logits(&tokens, 0);
            assert!(logits.iter().all(|logit| logit.is_finite()), "{name} on {}", isa.name());
            let bytes: Vec<u8> = logits.into_iter().flat_map(f32::to_le_bytes).collect();
            blake3::hash(&bytes).to_hex()
        };
        let scalar = digest(Isa::SCALAR);
        for isa in Isa::available() {
            assert_eq!(digest(isa), scalar, "{name} on {}", isa.name());
        }
        println!("digest of {name}: {scalar}");
    }
}
