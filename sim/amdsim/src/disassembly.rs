//! The text of the machine code, from `llvm-objdump`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::LoadError;

/// One instruction as printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub address: u64,
    pub size: u64,
    pub text: String,
}

/// Tried in this order if `ROCMFORGE_LLVM_OBJDUMP` is not set.
const PROGRAMS: [&str; 3] = ["llvm-objdump-22", "llvm-objdump-23", "llvm-objdump"];

/// Disassembles a code object.
pub(crate) fn disassemble(file: &[u8]) -> Result<Vec<Line>, LoadError> {
    if let Some(program) = std::env::var_os("ROCMFORGE_LLVM_OBJDUMP") {
        let program = program.to_string_lossy().into_owned();
        return objdump(&program, file).map(|text| parse(&text));
    }
    let mut first = None;
    for program in PROGRAMS {
        match objdump(program, file) {
            Err(error @ LoadError::Disassembler { .. }) => first = first.or(Some(error)),
            other => return other.map(|text| parse(&text)),
        }
    }
    Err(first.unwrap_or(LoadError::Format("no disassembler")))
}

fn objdump(program: &str, file: &[u8]) -> Result<String, LoadError> {
    let start = |source| LoadError::Disassembler { program: program.to_owned(), source };
    let mut child = Command::new(program)
        .args(["--disassemble", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    // It reads its whole input before it writes, so this cannot block on a full pipe. A failed write means that it has
    // already ended; its own message says more.
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all(file);
    }
    let output = child.wait_with_output().map_err(start)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(LoadError::Disassembly { program: program.to_owned(), message });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn parse(text: &str) -> Vec<Line> {
    text.lines().filter_map(line).collect()
}

/// Parses `\ts_load_b64 s[2:3], s[0:1], 0x28     // 000000001804: F4040080 F8000028`.
fn line(line: &str) -> Option<Line> {
    let (text, encoding) = line.strip_prefix('\t')?.rsplit_once("//")?;
    let (address, words) = encoding.trim().split_once(':')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let is_word = |word: &&str| word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = words.split_whitespace().take_while(is_word).count() as u64;
    Some(Line { address, size: 4 * words, text: text.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_objdump() {
        let text = "0000000000001800 <k>:\n\ts_load_b64 s[2:3], s[0:1], 0x28   // 000000001804: F4040080 F8000028\n\
                    \ts_delay_alu instid0(VALU_DEP_3)// 000000001840: BF8701B3\n\
                    \ts_cbranch_execz 211        // 000000001898: BFA500D3 <k+0x3e8>\n";
        let lines = parse(text);
        let of = |line: &Line| (line.address, line.size, line.text.clone());
        assert_eq!(of(&lines[0]), (0x1804, 8, "s_load_b64 s[2:3], s[0:1], 0x28".to_owned()));
        assert_eq!(of(&lines[1]), (0x1840, 4, "s_delay_alu instid0(VALU_DEP_3)".to_owned()));
        assert_eq!(of(&lines[2]), (0x1898, 4, "s_cbranch_execz 211".to_owned()));
    }
}
