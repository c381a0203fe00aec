"""Filters of values that count as false, and small differences to Jinja that models' templates have shown.

Like jinja_cases.py: templates on which rocmforge and Jinja agree, be it on an error.
"""

_FALSE = ("none", "false", "0", "''", "nothing")
_OF_SEQUENCES = (
    "map('upper')",
    "map(attribute='a')",
    "map",
    "select",
    "select('no such test')",
    "reject('odd')",
    "selectattr('a')",
    "rejectattr('a', 'odd')",
)
_OF_ANYTHING = (
    *("abs", "batch(2)|list", "default('d')", "default('d', true)", "dictsort", "first", "float", "groupby('a')|list"),
    *("indent", "int", "items|list", "join", "last", "length", "list", "min", "replace('a', 'b')", "reverse|list"),
    *("round", "sort", "string", "sum", "tojson", "trim", "unique|list", "upper", "wordcount"),
)

FALSY_CASES = [
    *(f"{{{{ {value}|{name}|list }}}}" for value in _FALSE for name in _OF_SEQUENCES),
    *(f"{{{{ {value}|{name} }}}}" for value in ("none", "nothing") for name in _OF_ANYTHING),
]

SMALL_CASES = [
    "{{ 'a'|safe + '<b>' }}|{{ '<b>' + 'a'|safe }}|{{ '<' + '>' }}",
    "{{ '<a>'|e|e }}|{{ '<a>'|e|forceescape }}|{{ '<a>'|safe|e }}",
    "{{ '<a>'|e is escaped }}|{{ 'a' is escaped }}|{{ 'a'|safe is escaped }}",
    "{{ 'a'|safe ~ '<b>' }}|{{ ['<', 'a'|safe]|join }}",
    "{{ 'ΑΣ'.lower() }}|{{ 'ΑΣ Σ ΣΑ'|lower }}|{{ 'ΟΔΥΣΣΕΥΣ'|title }}|{{ 'αΣ'|capitalize }}|{{ 'ας'.swapcase() }}",
    "{{ 'ß'.capitalize() }}|{{ 'ßa'|title }}|{{ 'ﬁn'.title() }}|{{ 'ŉ'.title() }}|{{ 'ᾳ ᾲ ᾀ'.title() }}",
    "{{ 'ǆ'.title() }}|{{ 'ǆ'|capitalize }}|{{ 'ǅ'.upper() }}|{{ 'ა'.title() }}|{{ 'ა'.upper() }}",
    "{{ 'ß \u017f \u0131 İ \u13a0 \uab70 ﬃ \u2126'.casefold() }}",
    "{{ 'Ab'.istitle() }}|{{ 'AB'.istitle() }}|{{ 'A b'.istitle() }}|{{ '1 Ab Cd'.istitle() }}|"
    "{{ ''.istitle() }}|{{ 'ǅa'.istitle() }}",
    "{{ 'a' is sameas 'a' }}|{{ 1 is sameas 1 }}|{{ 1000 is sameas 10 }}|{{ none is sameas none }}|"
    "{{ 'a' is sameas 1 }}",
    "{{ '{:.2f}|{:8.3f}|{:<6}|{:>6}|{:^6}|{:*^7}|{:06d}|{:+d}|"
    "{: d}'.format(1.234, 2.5, 'a', 'b', 'c', 'd', 42, 3, 4) }}",
    "{{ '{:,}|{:_}|{:,.2f}|{:x}|{:#x}|{:#b}|{:o}|{:X}|{:c}|{:%}|"
    "{:.1%}'.format(1234567, 1234567, 1234.5, 255, 255, 5, 8, 255, 65, 0.25, 0.125) }}",
    "{{ '{:e}|{:.2e}|{:g}|{:g}|{:g}|{:.3g}|{:G}|{:E}'.format(1.5, 12345.678, 0.1, 1e10, 1e-5, 1234.5, 1e-10, 0.5) }}",
    "{{ '{:.3}|{:.3}|{:.3}|{:.10}'.format(1.0, 1234.0, 0.5, 100.0) }}",
    "{{ '{a.b}|{a[b]}|{0}|{0[1]}|{c!r}|{c!s:>4}'.format([1, 2], a={'b': 1}, c='x') }}",
    "{{ '{:d}'.format('a') }}",
    "{{ '{:.2f}'.format('a') }}",
    "{{ '{:s}'.format(1) }}",
    "{{ '{:.3s}|{:5.2s}|'.format('abcd', 'xyz') }}",
    "{{ '{:d}'.format(1.5) }}",
    "{{ '{:=+8.2f}|{:=8}'.format(-1.5, 12) }}",
    "{{ '{x}'.format(y=1) }}",
    "{{ '{:5}|{:<5}|{}'.format(true, true, true) }}",
    "{{ '{:5}'.format(none) }}",
    "{{ '%e|%g|%G|%E|%.2e|%g|%g|%08.3g|%-8g|' % (1.5, 0.1, 1e-10, 2.5, 12345.6, 100000, 1000000, 3.14159, 2.5) }}",
    "{{ dict([['a', 1], ('b', 2)]) }}|{{ dict([['a', 1]], c=3) }}",
    "{{ {'a': 1}[nope] is defined }}|{{ {'a': 1}.get(nope) }}|{{ nope in {'a': 1} }}|{{ {nope: 1, nope: 2}|length }}",
    "{{ {'a': 1}[['a']] is defined }}|{{ {'a': 1}[{}] is defined }}|{{ {9999999999999999999999999999999999999: 1} }}",
    "{{ ['a'] in {'a': 1} }}",
    "{{ {'a': 1}.get(['a']) }}",
    "{{ dict([1]) }}",
    "{{ dict([[1]]) }}",
    "{{ 'a\tb'.expandtabs(4) }}|{{ 'ab\tc\n\td'.expandtabs() }}|{{ 'a\tb'.expandtabs(0) }}",
    "{% autoescape false %}{{ '<' }}{% set x = 1 %}{{ x }}{% endautoescape %}",
    "{{ 10|filesizeformat }}|{{ 1|filesizeformat }}|{{ 1000|filesizeformat }}|{{ 1500000|filesizeformat }}|"
    "{{ 1024|filesizeformat(true) }}|{{ '2048'|filesizeformat(binary=true) }}",
]

# Templates of Kimi K2 Thinking change lists, which llama.cpp allows and transformers' sandbox refuses.
CHANGING_CASES = [
    "{% set l = [] %}{% set _ = l.append(1) %}{{ l }}|{{ l.append('a') }}|{{ l }}",
    "{% set a = [1] %}{% set b = a %}{% set _ = a.append(2) %}{{ b }}|{{ a|length }}|{{ b[-1] }}",
    "{% set n = namespace(ids=[]) %}{% for m in messages %}{% set _ = n.ids.append(m.role) %}{% endfor %}"
    "{{ n.ids.pop(0) }}|{{ n.ids }}|{{ n.ids.pop() }}|{{ n.ids }}",
    "{% set l = [1, 2] %}{% set _ = l.extend(l) %}{{ l }}|{% set _ = l.extend('ab') %}{{ l }}|"
    "{{ l.extend({'k': 1}) }}{{ l }}",
    "{% set l = [] %}{% for at in (0, 9, -1, -9, 1) %}{% set _ = l.insert(at, at) %}{% endfor %}{{ l }}",
    "{% set l = [1] %}{{ l.pop(1) }}",
    "{{ [].pop() }}",
    "{% set l = [1, 2, 3] %}{{ l.pop(-3) }}{{ l.pop(-1) }}{{ l }}{{ l.pop(-2) }}",
    "{% set a = [1] %}{% set b = a|list %}{% set c = a.copy() %}{% set d = a[:] %}{% set e = a + [] %}"
    "{% set _ = a.append(2) %}{{ a }}{{ b }}{{ c }}{{ d }}{{ e }}",
    "{% set _ = messages.append({'role': 'user', 'content': [{'type': 'text', 'text': 'z'}]}) %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}",
    "{% macro add(l, v) %}{% set _ = l.append(v) %}{% endmacro %}{% set l = [] %}"
    "{{ add(l, [1, {'a': l|length}]) }}{{ l }}",
    "{% set l = [[]] %}{% set _ = l[0].append('x') %}{{ l }}{{ l == [['x']] }}{{ ['x'] in l }}",
    "{% set l = [3, 1, 2] %}{% set f = l.append %}{% set _ = f(0) %}{{ l|sort }}{{ l|join('-') }}",
    "{% set l = [] %}{% for i in range(3) %}{% set _ = l.append([i, [i]]) %}{% endfor %}"
    "{% set _ = l[0][1].append(l[1]) %}{% set _ = l[1][1].append({'l': l[2]}) %}{% set _ = l[2].pop() %}{{ l }}",
    "{% set kept = [] %}{% for m in messages %}{% set _ = kept.append({'m': m, 'parts': [{'t': ([1], 2)}]}) %}"
    "{% endfor %}{% set all = [] %}{% set _ = all.extend([kept, kept[:1]]) %}{{ all }}",
    "{% set t = (1, 2) %}{{ t.append(3) }}",
    "{{ 'a'.append('b') }}",
    "{{ [1].append() }}",
    "{{ [1].insert(0) }}",
]
