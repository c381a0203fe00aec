use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::super::tests::{grammars, lark, walk};
use super::{is_gbnf, to_lark};

/// A random grammar, with its own recognizer that knows nothing of GBNF.
enum Tree {
    Chars(Vec<char>),
    Text(String),
    Sequence(Vec<Tree>),
    Choice(Vec<Tree>),
    Repeat(Box<Tree>, u32, Option<u32>),
    Rule(usize),
}

const RULES: usize = 3;
const ALPHABET: [char; 3] = ['a', 'b', 'c'];
const LONGEST: usize = 5;

impl Tree {
    fn random(random: &mut ChaCha8Rng, depth: usize) -> Self {
        let mut below = |count: u64| random.next_u64() % count;
        match if depth == 0 { below(3) } else { below(9) } {
            0 => Self::Chars(ALPHABET[below(2) as usize..].to_vec()),
            1 => Self::Text((0..=below(3)).map(|_| ALPHABET[below(3) as usize]).collect()),
            2 => Self::Rule(below(RULES as u64) as usize),
            3 | 4 => {
                let (min, more) = (below(3) as u32, below(3) as u32);
                let max = (below(2) == 0).then_some((min + more).max(1));
                Self::Repeat(Box::new(Self::random(random, depth - 1)), min, max)
            }
            5 | 6 => Self::Choice((0..2).map(|_| Self::random(random, depth - 1)).collect()),
            _ => Self::Sequence((0..3).map(|_| Self::random(random, depth - 1)).collect()),
        }
    }

    fn write(&self) -> String {
        let all = |trees: &[Self], between| trees.iter().map(Self::write).collect::<Vec<_>>().join(between);
        match self {
            Self::Chars(chars) => format!("[{}]", chars.iter().collect::<String>()),
            Self::Text(text) => format!("\"{text}\""),
            Self::Sequence(parts) => format!("({})", all(parts, " ")),
            Self::Choice(ways) => format!("({})", all(ways, " | ")),
            Self::Repeat(of, min, None) => format!("({}){{{min},}}", of.write()),
            Self::Repeat(of, min, Some(max)) => format!("({}){{{min},{max}}}", of.write()),
            Self::Rule(rule) => {
                if *rule == 0 {
                    "root".into()
                } else {
                    format!("rule-{rule}")
                }
            }
        }
    }

    /// Returns the ends of all texts of the tree that begin at `from`. `rules` holds those of the rules known so far.
    fn ends(&self, text: &[char], from: usize, rules: &[Vec<Vec<bool>>]) -> Vec<bool> {
        let mut ends = vec![false; text.len() + 1];
        match self {
            Self::Chars(chars) => {
                if text.get(from).is_some_and(|char| chars.contains(char)) {
                    ends[from + 1] = true;
                }
            }
            Self::Text(word) => {
                let word: Vec<char> = word.chars().collect();
                if text[from..].starts_with(&word) {
                    ends[from + word.len()] = true;
                }
            }
            Self::Rule(rule) => ends = rules[*rule][from].clone(),
            Self::Choice(ways) => {
                for way in ways {
                    let one = way.ends(text, from, rules);
                    ends.iter_mut().zip(one).for_each(|(end, one)| *end |= one);
                }
            }
            Self::Sequence(parts) => {
                ends[from] = true;
                for part in parts {
                    ends = after(part, &ends, text, rules);
                }
            }
            Self::Repeat(of, min, max) => {
                let mut now = vec![false; text.len() + 1];
                now[from] = true;
                for i in 0..=max.unwrap_or(*min + text.len() as u32 + 1) {
                    if i >= *min {
                        ends.iter_mut().zip(&now).for_each(|(end, now)| *end |= now);
                    }
                    now = after(of, &now, text, rules);
                }
            }
        }
        ends
    }
}

fn after(tree: &Tree, starts: &[bool], text: &[char], rules: &[Vec<Vec<bool>>]) -> Vec<bool> {
    let mut ends = vec![false; text.len() + 1];
    for (from, _) in starts.iter().enumerate().filter(|(_, start)| **start) {
        ends.iter_mut().zip(tree.ends(text, from, rules)).for_each(|(end, one)| *end |= one);
    }
    ends
}

/// True if the first rule allows the text.
fn allows(rules: &[Tree], text: &[char]) -> bool {
    let places = text.len() + 1;
    let mut known = vec![vec![vec![false; places]; places]; rules.len()];
    loop {
        let next: Vec<Vec<Vec<bool>>> =
            rules.iter().map(|rule| (0..places).map(|from| rule.ends(text, from, &known)).collect()).collect();
        if next == known {
            return known[0][0][text.len()];
        }
        known = next;
    }
}

/// For all texts up to some length, the grammar allows exactly those that the recognizer allows.
#[test]
fn languages_stay_the_same() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let grammars = grammars();
    let (mut members, mut in_pieces) = (0, 0);
    for _ in 0..150 {
        let rules: Vec<Tree> = (0..RULES).map(|_| Tree::random(&mut random, 3)).collect();
        let names = (0..RULES).map(|rule| Tree::Rule(rule).write());
        let lines: Vec<String> = names.zip(&rules).map(|(name, tree)| format!("{name} ::= {}", tree.write())).collect();
        let text = lines.join("\n");
        let inner = to_lark(&text).unwrap();
        in_pieces += usize::from(inner.contains("T1:"));
        let Ok(compiled) = grammars.compiled(&lark(&text)) else {
            // The library rejects a language without any text.
            assert!(texts().iter().all(|one| !allows(&rules, one)), "{text}\n{inner}");
            continue;
        };
        for one in texts() {
            let tokens: Vec<u32> = one.iter().map(|char| *char as u32).collect();
            let mut matcher = compiled.matcher();
            let taken = matcher.try_consume_tokens(&tokens).unwrap_or(0) == tokens.len();
            let found = taken && (matcher.is_stopped() || matcher.is_accepting().unwrap_or(false));
            let expected = allows(&rules, &one);
            assert_eq!(found, expected, "{one:?} by\n{text}\n{inner}");
            members += usize::from(expected);
        }
    }
    assert!(members > 2000 && in_pieces > 30, "{members} texts, {in_pieces} grammars of several lexemes");
}

fn texts() -> Vec<Vec<char>> {
    let mut all = vec![vec![]];
    let mut start = 0;
    for _ in 0..LONGEST {
        let end = all.len();
        for i in start..end {
            all.extend(ALPHABET.map(|char| [all[i].as_slice(), &[char]].concat()));
        }
        start = end;
    }
    all
}

const JSON: &str = r#"
# Any JSON value, with spaces.
root   ::= value
value  ::= (object | array | string | number | "true" | "false" | "null") space
object ::= "{" space (member ("," space member)*)? "}"
member ::= string space ":" space value
array  ::= "[" space (
    value ("," space value)*   # as many as there are
  )? "]"
string ::= "\"" (
    [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,10})? ([eE] [-+]? [0-9]{1,2})?
space  ::= [ \n\t]{0,2}
"#;

/// Strings and numbers are read as a whole, and texts are those that another JSON reader accepts.
#[test]
fn json_is_read_in_lexemes() {
    let written = to_lark(JSON).unwrap();
    let terminals = written.lines().filter(|line| line.starts_with('T')).count();
    assert!(terminals < 16, "{written}");
    let grammars = grammars();
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut complete = 0;
    for _ in 0..60 {
        if let Some(text) = walk(grammars.guide(&lark(JSON), true).unwrap(), &mut random, 400) {
            serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            complete += 1;
        }
    }
    assert!(complete > 20, "{complete}");
}

/// Tests every kind of escape and class.
#[test]
fn characters_are_what_they_are_written_as() {
    let grammars = grammars();
    for (grammar, good, bad) in [
        (r#"root ::= "\t\n\r\\\"\x41\u00e9\U0001F600""#, "\t\n\r\\\"A\u{e9}\u{1F600}", "\t\n\r\\\"Ae"),
        (r#"root ::= [^a-c\]\n]"#, "d", "b"),
        (r#"root ::= [^a-c\]\n]"#, "^", "]"),
        (r#"root ::= [a\-c] [x-]"#, "--", "b-"),
        (r#"root ::= . "\[" [\[\]]+"#, "\n[][]", "\n["),
        ("root ::=\n  a |\n  b\na ::= \"x\"?\n  | \"y\" # or\nb::=\"zz\"{2}", "zzzz", "zz"),
        ("root ::= \"ab\"{2,3} \"c\"{,1}", "abababc", "abc"),
        ("root ::= \"\" \"/\" ()", "/", ""),
    ] {
        for (text, expected) in [(good, true), (bad, false)] {
            let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
            let mut matcher = grammars.compiled(&lark(grammar)).unwrap().matcher();
            let taken = matcher.try_consume_tokens(&tokens).unwrap_or(0) == tokens.len();
            let found = taken && (matcher.is_stopped() || matcher.is_accepting().unwrap());
            assert_eq!(found, expected, "{text:?} by {grammar}: {}", to_lark(grammar).unwrap());
        }
    }
}

/// An invalid grammar is an error that names its line.
#[test]
fn wrong_grammars_are_refused() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(300), ")".repeat(300));
    let many = format!("root ::= \"{}\"", "a".repeat(30_000));
    for (grammar, part) in [
        ("root ::= item", "no rule item"),
        ("a ::= \"b\"", "no rule root"),
        ("root ::= \"a", "line 1: a text or a class without an end"),
        ("root ::= \"a\"\n\nb ::= [a", "line 3"),
        ("root ::= (\"a\"", ") is missing"),
        ("root ::= \"a\")", "')'"),
        ("root ::= \"a\"\nroot ::= \"b\"", "given before"),
        ("root ::= \"a\"\nb = \"b\"", "::= is missing"),
        ("root ::= \"\\q\"", "escape \\q"),
        ("root ::= \"\\ud800\"", "no character"),
        ("root ::= [z-a]", "is empty"),
        ("root ::= []", "no characters"),
        ("root ::= \"a\"{3,2}", "{3,2}"),
        ("root ::= \"a\"{9999}", "{9999}"),
        ("root ::= \"a\"{x}", "{x}"),
        ("root ::= <think> \"a\"", "not supported"),
        ("root ::= \"a\" *  *\n ::=", "name of a rule"),
        (deep.as_str(), "parentheses"),
        (many.as_str(), "parts"),
    ] {
        let problem = to_lark(grammar).unwrap_err();
        assert!(problem.contains(part), "{grammar:.60}: {problem}");
        assert!(is_gbnf(grammar));
    }
    for not in ["start: \"root ::=\"", "// a\nstart: b\nb: /::=/", "", "%llguidance {}\nstart: \"a\""] {
        assert!(!is_gbnf(not), "{not}");
    }
}

/// Grammars with exponential analysis end in bounded time.
#[test]
fn exploding_grammars_end_in_bounded_time() {
    let doubling: String = (0..60).map(|i| format!("r{i} ::= r{} r{} | \"a\"\n", i + 1, i + 1)).collect();
    let chain: String = (0..5000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    let star = "(\"a\" | ".repeat(150) + "\"b\"" + &")*".repeat(150);
    let words: Vec<String> = (0..900).map(|i| format!("\"word{i}\" root?")).collect();
    for grammar in [
        format!("root ::= r0\n{doubling}r60 ::= \"a\""),
        format!("root ::= r0\n{chain}r5000 ::= \"a\" root?"),
        format!("root ::= {star}"),
        format!("root ::= {}", words.join(" | ")),
        "root ::= (((\"a\"{0,2000}){0,2000}){0,2000}){0,2000}".into(),
        "root ::= root root | \"a\" | ".into(),
    ] {
        let start = std::time::Instant::now();
        // The engine's threads are alive, whether the grammar is rejected or not.
        let refused = grammars().guide(&lark(&grammar), true).is_err();
        assert!(start.elapsed().as_secs() < 30, "{grammar:.80}: {:?}, refused: {refused}", start.elapsed());
    }
}
