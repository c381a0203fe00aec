// Describes the languages of code: where comments and strings begin and end, and which words are keywords.
//
// A language is {rules, words, ...options}. A rule is {kind, open, close, escapes, lines}: `open` is the source of a
// regular expression, `close` is a text. An empty `close` stands for the end of the line, and null for a token that
// ends where `open` ends. With `escapes`, a backslash hides the next character. With `lines`, a token may be longer
// than its line. Options: `ignoreCase` of the words, `dashes` in words, and `key`, the character behind a key;
// `keysAtLine` says that keys stand only at the beginning of a line.

const comment = (open, close = "") => ({ kind: "comment", open, close, escapes: false, lines: close !== "" });
const string = (open, close = open) => ({ kind: "string", open, close, escapes: true, lines: false });
const longString = (open, close = open) => ({ ...string(open, close), lines: true });
const rawString = (open, close = open) => ({ ...longString(open, close), escapes: false });
const plainString = (open, close = open) => ({ ...string(open, close), escapes: false });
const token = (kind, open) => ({ kind, open, close: null });

const SLASHES = [comment("//"), comment("/\\*", "*/")];
const HASH = [comment("#")];
const SPACED_HASH = [comment("(?<![^\\s;(])#")];
const QUOTES = [string('"'), string("'")];
const TRIPLE = longString('"""');
const PREPROCESSOR = token("keyword",
  "#[ \\t]{0,8}(?:define|elif|else|endif|error|if|ifdef|ifndef|include|pragma|undef)(?!\\w)");
const SIGIL = token("name", "\\$\\w+");
const DECORATOR = token("name", "@[\\w.]+");
// A slash that follows one of these begins no division.
const REGEX = string("(?<=[(,=:\\[!&|?{;] ?)/(?![/*])", "/");

const C = "break case char const continue default do double else enum extern float for goto if inline int long "
  + "register return short signed sizeof static struct switch typedef union unsigned void volatile while NULL true "
  + "false bool";
const CPP = `${C} alignas alignof auto catch class concept const_cast constexpr decltype delete dynamic_cast `
  + "explicit export friend mutable namespace new noexcept nullptr operator override private protected public "
  + "reinterpret_cast requires static_assert static_cast template this throw try typename using virtual";
const JAVA = "abstract assert boolean break byte case catch char class const continue default do double else enum "
  + "extends final finally float for if implements import instanceof int interface long native new null package "
  + "private protected public record return sealed short static super switch synchronized this throw throws "
  + "transient true false try var void volatile while yield";
const CSHARP = `${JAVA} as async await base bool checked decimal delegate event explicit fixed foreach get global `
  + "in init internal is lock nameof namespace object operator out override params partial readonly ref sbyte set "
  + "sizeof string struct typeof uint ulong unsafe ushort using value virtual when where";
const JAVASCRIPT = "arguments as async await break case catch class const continue debugger default delete do else "
  + "export extends false finally for from function get if import in instanceof let new null of return set static "
  + "super switch this throw true try typeof undefined var void while with yield";
const TYPESCRIPT = `${JAVASCRIPT} abstract any asserts bigint boolean declare enum implements infer interface is `
  + "keyof namespace never number object override private protected public readonly satisfies string symbol type "
  + "unknown";
const PYTHON = "and as assert async await break case class continue def del elif else except False finally for from "
  + "global if import in is lambda match None nonlocal not or pass raise return self True try while with yield";
const RUST = "as async await bool box break char const continue crate dyn else enum extern f32 f64 false fn for "
  + "i128 i16 i32 i64 i8 if impl in isize let loop match mod move mut pub ref return Self self static str struct "
  + "super trait true type u128 u16 u32 u64 u8 union unsafe use usize where while";
const GO = "any bool break byte case chan const continue default defer else error fallthrough false float32 float64 "
  + "for func go goto if import int int32 int64 interface iota map nil package range return rune select string "
  + "struct switch true type uint uint32 uint64 uint8 var";
const KOTLIN = "abstract as break by catch class companion const constructor continue data do else enum false final "
  + "finally for fun if import in init inline interface internal is lateinit null object open operator override "
  + "package private protected public return sealed super suspend this throw true try typealias val var when while";
const SWIFT = "actor any as associatedtype async await break case catch class continue default defer deinit do else "
  + "enum extension fallthrough false fileprivate final for func guard if import in init inout internal is lazy let "
  + "mutating nil open operator override private protocol public repeat rethrows return self Self some static "
  + "struct subscript super switch throw throws true try typealias var weak where while";
const DART = `${JAVA} as async await covariant deferred dynamic export extension external factory get in is late `
  + "library mixin on operator part required set show typedef with";
const SCALA = "abstract case catch class def do else enum extends extension false final finally for given if "
  + "implicit import lazy match new null object override package private protected return sealed super then this "
  + "throw trait true try type using val var while with yield";
const PHP = "abstract and array as break callable case catch class clone const continue declare default do echo "
  + "else elseif enum extends false final finally fn for foreach function global if implements include instanceof "
  + "interface isset match namespace new null or parent print private protected public readonly require "
  + "require_once return self static switch this throw trait true try unset use var void while yield";
const RUBY = "alias and begin break case class def defined? do else elsif end ensure extend false for if in include "
  + "lambda module next nil not or private proc protected public puts raise redo require rescue retry return self "
  + "super then true undef unless until when while yield attr_accessor attr_reader";
const SHELL = "alias break case cd continue declare do done echo elif else esac eval exec exit export false fi for "
  + "function if in local printf read readonly return select set shift source sudo then trap true unset until while";
const SQL = "add all alter and any as asc avg begin between bigint boolean by case cast check coalesce column "
  + "commit constraint count create cross database date decimal default delete desc distinct drop else end except "
  + "exists explain false float foreign from full function grant group having if in index inner insert int integer "
  + "intersect into is join key left like limit max min not null numeric offset on or order outer over partition "
  + "primary references replace returning right rollback row select serial set sum table text then timestamp "
  + "transaction trigger true truncate union unique update using values varchar view when where window with";
const LUA = "and break do else elseif end false for function goto if in local nil not or repeat return self then "
  + "true until while";
const HASKELL = "as case class data deriving do else forall hiding if import in infix instance let module newtype "
  + "of qualified then type where";
const R = "break else FALSE for function if in Inf library NA NaN next NULL repeat require return TRUE while";
const JULIA = "abstract baremodule begin break catch const continue do else elseif end export false finally for "
  + "function global if import in let local macro module mutable nothing primitive quote return struct true try "
  + "using where while";
const ELIXIR = "after alias and case catch cond def defimpl defmacro defmodule defp defprotocol defstruct do else "
  + "end false fn for if import in nil not or quote raise receive require rescue true try unless use when with";
const POWERSHELL = "begin break catch class continue do else elseif end exit filter finally for foreach function if "
  + "in param process return switch throw trap try until using while";
const ZIG = "and anyerror anytype bool break catch comptime const continue defer else enum errdefer error export "
  + "extern false fn for if inline null opaque or orelse packed pub return struct switch test true try type "
  + "undefined union unreachable usingnamespace var void volatile while";
const DOCKER = "ADD ARG AS CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL ONBUILD RUN SHELL STOPSIGNAL USER "
  + "VOLUME WORKDIR";
const PROTO = "bool bytes double enum extend false float import int32 int64 map message oneof option optional "
  + "package repeated reserved returns rpc service stream string syntax true uint32 uint64";
const CMAKE = "add_executable add_library add_subdirectory cmake_minimum_required else elseif endforeach "
  + "endfunction endif endmacro find_package foreach function if include macro option project return set "
  + "target_include_directories target_link_libraries";
const LITERALS = "true false null yes no on off";

const CSS = { dashes: true, key: ":" };
const STYLE = [token("keyword", "@[\\w-]+"), token("number", "#[\\da-fA-F]{3,8}(?![\\w-])"), ...QUOTES];

const LANGUAGES = {
  c: { rules: [PREPROCESSOR, ...SLASHES, ...QUOTES], words: C },
  cpp: { rules: [PREPROCESSOR, ...SLASHES, ...QUOTES, token("keyword", "__\\w+__(?!\\w)")], words: CPP },
  csharp: {
    rules: [...SLASHES, TRIPLE, rawString('\\$?@\\$?"', '"'), string('\\$?"', '"'), string("'")], words: CSHARP,
  },
  java: { rules: [...SLASHES, TRIPLE, ...QUOTES, DECORATOR], words: JAVA },
  javascript: { rules: [...SLASHES, ...QUOTES, longString("`"), REGEX, DECORATOR], words: JAVASCRIPT },
  typescript: { rules: [...SLASHES, ...QUOTES, longString("`"), REGEX, DECORATOR], words: TYPESCRIPT },
  python: {
    rules: [...HASH, longString('[rRbBfFuU]{0,2}"""', '"""'), longString("[rRbBfFuU]{0,2}'''", "'''"),
      string('[rRbBfFuU]{0,2}"', '"'), string("[rRbBfFuU]{0,2}'", "'"), DECORATOR],
    words: PYTHON,
  },
  rust: {
    rules: [...SLASHES, rawString('b?r#"', '"#'), rawString('b?r"', '"'), longString('b?"', '"'),
      string("b?'(?=\\\\|[^'\\n]')", "'"), token("name", "'\\w+"), token("name", "#!?\\[\\w+"),
      token("name", "\\w+!(?=[(\\[{])")],
    words: RUST,
  },
  go: { rules: [...SLASHES, ...QUOTES, rawString("`")], words: GO },
  kotlin: { rules: [...SLASHES, TRIPLE, ...QUOTES, DECORATOR], words: KOTLIN },
  swift: { rules: [...SLASHES, TRIPLE, string('"'), DECORATOR], words: SWIFT },
  dart: { rules: [...SLASHES, TRIPLE, longString("'''"), ...QUOTES, DECORATOR], words: DART },
  scala: { rules: [...SLASHES, TRIPLE, string('[fs]?"', '"'), DECORATOR], words: SCALA },
  php: { rules: [...SLASHES, comment("#(?!\\[)"), longString('"'), longString("'"), SIGIL], words: PHP },
  ruby: {
    rules: [...HASH, longString('"'), longString("'"), token("name", "@{1,2}\\w+"), token("name", "(?<!:):\\w+")],
    words: RUBY,
  },
  shell: {
    rules: [...SPACED_HASH, longString('"'), rawString("'"), token("name", "\\$(?:\\w+|\\{\\w{1,60}|[?#@*!$])")],
    words: SHELL,
  },
  powershell: {
    rules: [comment("<#", "#>"), ...HASH, string('"'), rawString("'"), SIGIL], words: POWERSHELL, ignoreCase: true,
  },
  sql: {
    rules: [comment("--"), comment("/\\*", "*/"), rawString("'"), rawString('"'), rawString("`")],
    words: SQL, ignoreCase: true,
  },
  lua: { rules: [comment("--\\[\\[", "]]"), comment("--"), rawString("\\[\\[", "]]"), ...QUOTES], words: LUA },
  haskell: {
    rules: [comment("\\{-", "-}"), comment("--"), string('"'), string("'(?=\\\\|[^'\\n]')", "'")], words: HASKELL,
  },
  r: { rules: [...HASH, longString('"'), longString("'")], words: R },
  julia: { rules: [comment("#=", "=#"), ...HASH, TRIPLE, string('"'), token("name", "@\\w+")], words: JULIA },
  elixir: { rules: [...HASH, TRIPLE, ...QUOTES, token("name", "@\\w+"), token("name", "(?<!:):\\w+")], words: ELIXIR },
  zig: { rules: [comment("//"), ...QUOTES, token("name", "@\\w+")], words: ZIG },
  protobuf: { rules: [...SLASHES, ...QUOTES], words: PROTO },
  json: { rules: [...SLASHES, string('"')], words: LITERALS, key: ":" },
  yaml: {
    rules: [...SPACED_HASH, string('"'), plainString("(?<![^\\s,\\[{'])'", "'")],
    words: LITERALS, dashes: true, key: ":", keysAtLine: true,
  },
  toml: {
    rules: [comment("[#;]"), TRIPLE, longString("'''"), string('"'), plainString("'"),
      token("keyword", "^\\[{1,2}[^\\]\\n]+\\]{0,2}")],
    words: LITERALS, dashes: true, key: "=", keysAtLine: true,
  },
  css: { rules: [comment("/\\*", "*/"), ...STYLE], words: "important", ...CSS },
  scss: { rules: [...SLASHES, SIGIL, ...STYLE], words: "important", ...CSS },
  dockerfile: { rules: [comment("^#"), ...QUOTES, SIGIL], words: DOCKER },
  makefile: {
    rules: [...SPACED_HASH, token("name", "\\$(?:[({]\\w{1,60}|[@<^*?])")],
    words: "define else endef endif export ifdef ifeq ifndef ifneq include", dashes: true, key: ":", keysAtLine: true,
  },
  cmake: { rules: [...HASH, longString('"'), token("name", "\\$\\{\\w{1,60}")], words: CMAKE, ignoreCase: true },
};

const OTHER_NAMES = {
  "c++": "cpp", cc: "cpp", cxx: "cpp", cu: "cpp", cuda: "cpp", h: "cpp", hip: "cpp", hpp: "cpp", glsl: "cpp",
  "c#": "csharp", cs: "csharp", js: "javascript", jsx: "javascript", mjs: "javascript", node: "javascript",
  ts: "typescript", tsx: "typescript", py: "python", python3: "python", rs: "rust", golang: "go", kt: "kotlin",
  rb: "ruby", bash: "shell", sh: "shell", zsh: "shell", ps1: "powershell", hs: "haskell", jl: "julia", ex: "elixir",
  proto: "protobuf", jsonc: "json", json5: "json", yml: "yaml", ini: "toml", less: "scss", sass: "scss",
  docker: "dockerfile", make: "makefile", mysql: "sql", postgresql: "sql", sqlite: "sql", htm: "html", svg: "html",
  vue: "html", xml: "html", patch: "diff",
};

/** The usual name of a language; empty where a fence names none. */
export function languageName(info) {
  const name = /^[a-z\d+#]*/.exec(info.toLowerCase())[0];
  return Object.hasOwn(OTHER_NAMES, name) ? OTHER_NAMES[name] : name;
}

/** The description of a language by its usual name, or null. */
export function languageOf(name) {
  return Object.hasOwn(LANGUAGES, name) ? LANGUAGES[name] : null;
}
