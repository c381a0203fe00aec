//! Formats floats as Python's `%e`, `%f`, `%g` and format specifications do, without a sign.

/// No float has more digits than this.
const MAX_PRECISION: usize = 1100;

/// Formats `number`, which is not negative, in the form `e`, `f` or `g`, in capitals if `kind` is a capital.
/// `keep_zeros` is Python's flag `#` for `g`.
pub(in crate::template) fn written(number: f64, kind: char, precision: usize, keep_zeros: bool) -> String {
    let precision = precision.min(MAX_PRECISION);
    let text = if number.is_nan() {
        "nan".to_owned()
    } else if number.is_infinite() {
        "inf".to_owned()
    } else {
        match kind.to_ascii_lowercase() {
            'e' => scientific(number, precision),
            'g' => general(number, precision.max(1), precision.max(1) as i32, keep_zeros),
            _ => format!("{number:.precision$}"),
        }
    };
    if kind.is_ascii_uppercase() { text.to_ascii_uppercase() } else { text }
}

/// Formats `number` with `precision` significant digits and at least one decimal place: a precision without a type.
pub(in crate::template) fn plain(number: f64, precision: usize) -> String {
    let precision = precision.clamp(1, MAX_PRECISION);
    if !number.is_finite() {
        return written(number, 'f', precision, false);
    }
    let text = general(number, precision, precision as i32 - 1, false);
    if text.contains(['.', 'e']) { text } else { text + ".0" }
}

/// Formats as `1.5e+00`: Rust writes neither the sign of an exponent nor its second digit.
fn scientific(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Formats `precision` significant digits, with an exponent for numbers below 1e-4 and from `10^limit` on.
fn general(number: f64, precision: usize, limit: i32, keep_zeros: bool) -> String {
    let text = scientific(number, precision - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
    let power: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |digits: &str| match digits.contains('.') && !keep_zeros {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if power < -4 || power >= limit {
        return format!("{}e{exponent}", trimmed(digits));
    }
    let places = (precision as i32 - 1 - power).max(0) as usize;
    trimmed(&format!("{number:.places$}"))
}
