//! Recognizes files that are not GGUF files: common mistakes and failed downloads.

const CONVERT: &str = "convert the model's folder with llama.cpp's convert_hf_to_gguf.py";

/// Returns the kind of a file by its first bytes, if known, with advice. The text is appended to the error.
pub(super) fn named(data: &[u8]) -> Option<String> {
    let known = match data {
        _ if is_safetensors(data) => format!("this is a safetensors file: {CONVERT}"),
        [b'P', b'K', 3, 4, ..] => format!("this is a zip archive, as PyTorch saves models: unpack it, or {CONVERT}"),
        [0x80, 2..=5, ..] => format!("this is a pickle, as PyTorch saves models: {CONVERT}"),
        _ if data.starts_with(b"version https://git-lfs") => {
            "this is a git-lfs pointer instead of the model: fetch the model with `git lfs pull`".into()
        }
        _ if is_html(data) => {
            "this is an HTML page, as a login or an error sends instead of a download: download the file again".into()
        }
        _ if data.trim_ascii_start().starts_with(b"{") => {
            "this is JSON, as an error sends instead of a download: download the file again".into()
        }
        [b'l' | b'f', b'm', b'g', b'g', ..] | [b't', b'j', b'g', b'g', ..] => {
            "this is a llama.cpp format from before GGUF: convert the model again".into()
        }
        [0x1f, 0x8b, ..] | [0xfd, b'7', b'z', b'X', b'Z', ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] | [b'7', b'z', ..] => {
            "this is a compressed file: unpack it".into()
        }
        _ => return None,
    };
    Some(format!("; {known}"))
}

/// A safetensors file begins with the length of its JSON header, then that header.
fn is_safetensors(data: &[u8]) -> bool {
    let Some((length, rest)) = data.split_first_chunk::<8>() else { return false };
    // The limit of the format itself.
    u64::from_le_bytes(*length) <= 100_000_000 && rest.first() == Some(&b'{')
}

fn is_html(data: &[u8]) -> bool {
    let text = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data).trim_ascii_start();
    let starts = |tag: &[u8]| text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag));
    starts(b"<!doctype") || starts(b"<html") || starts(b"<?xml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_mistakes_are_named() {
        let mut safetensors = 61u64.to_le_bytes().to_vec();
        safetensors.extend_from_slice(b"{\"weight\":{\"dtype\":\"F16\"");
        let cases: [(&[u8], &str); 10] = [
            (&safetensors, "safetensors"),
            (b"PK\x03\x04\x14\0", "zip archive"),
            (b"\x80\x02}q\0", "pickle"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "git lfs pull"),
            (b"\n<!DOCTYPE html><html><head>", "HTML page"),
            (b"<HTML>", "HTML page"),
            (b"{\"error\": \"not found\"}", "JSON"),
            (b"tjgg\x03\0\0\0", "before GGUF"),
            (b"\x1f\x8b\x08\0", "compressed"),
            (b"\xfd7zXZ\0", "compressed"),
        ];
        for (data, name) in cases {
            let text = named(data).unwrap_or_default();
            assert!(text.contains(name), "{name}: {text}");
        }
        for other in [&b""[..], b"hell", b"\0\0\0\0\0\0\0\0\0", b"FUGG"] {
            assert_eq!(named(other), None);
        }
    }
}
