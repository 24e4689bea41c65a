#!/usr/bin/env python3
"""Renders small templates, a feature each, with Python's Jinja for jinja_golden_test. Writes data/jinja_golden.json: a list of
[source, rendering or null where Python refuses]. The environment is make_chat_template_golden.py's; needs jinja2 3.1."""

import json
import pathlib

from make_chat_template_golden import environment, render

HERE = pathlib.Path(__file__).resolve().parent

CONTEXT = {
    "n": 7, "f": 2.5, "t": True, "none_value": None, "s": "Hello Wörld", "empty": "", "items_key": {"items": 1, "get": 2},
    "l": [3, 1, 2], "names": ["b", "A", "c"], "d": {"one": 1, "two": [2, "x"], "three": None},
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25}, {"name": "Cy", "age": 30, "tags": []}],
    "html": "<a href='x'>\"&\"</a>", "lines": "one\n  two\n\nthree\r\nfour", "big": 9007199254740993,
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4}]}]}],
    "floats": [1.0, 0.1, 1e16, 123456789012345680.0, 1e-5, 0.0001, -0.0, 1e300, 3.14, 2.5e-10, 100000.0],
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 | 7 // 2 | -7 // 2 | 7 % 3 | -7 % 3 | 7 % -3 | 7 / 2 | 6 / 3 | 2 ** 10 | 2 ** -1 | 2 ** 3 ** 2 | -2 ** 2
7.5 // 2 | -7.5 // 2 | -7.5 % 2 | 7.5 % -2 | 1e3 | 1_000 | 0.1 + 0.2 | 1 / 3 | 10.0 | 1e100 | 5 // 0 | 5 % 0 | 5 / 0 | 1.5 ** 2
n + f | n * 'ab' | 'ab' * 3 | 'ab' * -1 | [1, 2] * 2 | [1] + [2] | (1,) + (2, 3) | 'a' + 1 | [1] + (2,) | none + 1 | true + 1
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1] | s ~ undefined_name | not n | not empty | n and f | empty and n | empty or n | n or boom()
1 < 2 < 3 | 1 < 2 > 5 | 1 == 1.0 | 1 == true | '1' == 1 | none == none | [1, 2] == [1, 2] | [1] == (1,) | {'a': 1} == {'a': 1.0}
'a' < 'b' | [1, 2] < [1, 3] | 1 < 'a' | none < 1 | missing == missing2 | missing == none | 'ä' > 'z'
'ell' in s | 'x' not in s | 1 in l | 9 in l | 'one' in d | 'zzz' in d | 1 in 'a1' | '' in 'abc' | n in missing | missing in l | 1 in 5
l[0] | l[-1] | l[9] | s[1] | s[-3] | s[99] | d['one'] | d.one | d['nope'] | d.two[1] | d.two.1 | missing.x | missing['x'] | d.nope.x
l[1:] | l[:-1] | l[::-1] | s[::-1] | s[1:8:2] | s[-5:] | s[:5] | s[7:2:-1] | l[5:] | (1, 2, 3)[1:] | s[::0] | missing[1:] | none_value[1:]
[1, 'a', none, true, 1.5, [2], (3,), {}, {'k': 'v'}] | (1,) | () | {'a': 'it\'s', "b": 'say "hi"', 'c': 'both \' and "'}
['\n\t\\', 'ä', '\u2028', '\x01', '\xad', '日本'] | floats | 'a' if n else 'b' | 'a' if empty else 'b' | 'x' if empty | ('x' if empty) is defined
'a' 'b' "c" | 'tab\there' | 'q\'q' | "q\"q" | 'oct\101' | 'hex\x41\u00e9\U0001F600' | 'bad\q' | 'line\
on' | {'a': {'b': {}}} | {} | [] | [1, 2,] | {'a': 1,} | (((1)))
n is defined | missing is defined | missing is undefined | none_value is none | n is number | t is number | t is integer | n is integer | f is float
s is string | l is sequence | d is sequence | d is mapping | l is iterable | n is iterable | missing is iterable | missing is sequence | s is sequence
n is odd | n is even | n is divisibleby 7 | n is divisibleby(2) | n is eq 7 | n is ne(7) | n is gt 3 | n is lt 3 | n is in [7] | n is not in [7] | t is true
t is boolean | n is boolean | n is not none | n is sameas 7 | none is sameas none | 'A' is upper | 'a' is lower | range is callable | n is callable | html|safe is escaped
s|upper | s|lower | 'hELLO wORLD'|title | "it's a-b (c)"|title | 'hELLO'|capitalize | '  x '|trim | 'xxaxx'|trim('x') | s|length | l|length | d|length | n|length
s|replace('l', 'L') | s|replace('l', 'L', 1) | 'aaa'|replace('', '-') | s|replace('', '-', 2) | lines|indent | lines|indent(2, true) | lines|indent('> ', first=true, blank=true)
missing|default('x') | empty|default('x') | empty|default('x', true) | none_value|default('x') | missing|d | '42'|int | '4x'|int | '4x'|int(9) | '3.9'|int | f|int | none_value|int | '1.5'|float | 'x'|float | ' 12 '|int
n|string | none|string | l|string | l|first | l|last | []|first | s|first | s|last | d|first | d|list | s|list | l|reverse|list | 'abc'|reverse | l|sort | l|sort(reverse=true) | names|sort | names|sort(case_sensitive=true)
people|sort(attribute='age')|map(attribute='name')|list | people|map(attribute='name')|join(', ') | people|map('length')|list | names|map('upper')|list | people|map(attribute='tags')|list | people|map(attribute='tags', default='-')|list
people|selectattr('age', 'equalto', 30)|map(attribute='name')|list | people|rejectattr('age', 'gt', 26)|list|length | people|selectattr('tags')|list|length | people|selectattr('tags', 'defined')|list|length
l|select('odd')|list | l|reject('odd')|list | [0, 1, '', 'a']|select|list | l|select|length | none|selectattr('x')|list | missing|map('upper')|list | l|join('-') | l|join | people|join(',', attribute='age')
d|dictsort | {'b': 1, 'A': 2}|dictsort | {'b': 1, 'A': 2}|dictsort(true) | {'b': 1, 'a': 2}|dictsort(by='value') | {'b': 1, 'a': 2}|dictsort(reverse=true) | d|items|list | missing|items|list | l|items|list
[1, 1, 2, 'a', 'A']|unique|list | l|min | l|max | l|sum | people|sum(attribute='age') | []|max | [1, 2, 3, 4, 5]|batch(2)|list | [1, 2, 3]|batch(2, 0)|list | (-5)|abs | -5|abs | 2.567|round(2) | 2.5|round | 3|round | 2.1|round(0, 'ceil') | 2.19|round(1, 'floor')
people|groupby('age')|map('first')|list | html|e | html|escape | html|safe | html|safe + html | html + ('<'|safe) | html|safe ~ html | [html|safe] | '%s is %d'|format('x', 3) | '%s' % 'a' | '%.2f|%5d|%-4d|%05d' % (1.005, 7, 8, 9) | '%s %s' % (1,) | '100%%' % ()
d|tojson | floats|tojson | 'a"b\\\n\t\x01é\u2028/😀'|tojson | 'é😀\x7f'|tojson(ensure_ascii=true) | d|tojson(indent=2) | []|tojson(indent=2) | {'a': [], 'b': {}, 'c': [1]}|tojson(indent=4) | {'b': 1, 'a': 2}|tojson(sort_keys=true) | d|tojson(separators=(',', ':')) | (1, 2)|tojson | missing|tojson | {1: 2, none: 3, true: 4}|tojson | d|tojson(indent='--') | l|map('string')|tojson | d|tojson(indent=0)
'a,b,,c'.split(',') | 'a,b,c'.split(',', 1) | '  a  b '.split() | ' a b  c '.split(none, 1) | 'a,b,c'.rsplit(',', 1) | ' a b  c '.rsplit(none, 1) | 'a--b--c'.rsplit('--', 1) | 'abc'.split('') | ''.split() | ''.split(',') | 'x'.split(maxsplit=1)
'xxaxx'.strip('x') | '  a '.lstrip() ~ '|' | '  a '.rstrip() ~ '|' | 'äöä'.strip('ä') | '\u2003a\u00a0'.strip() | s.startswith('Hell') | s.startswith(('x', 'H')) | s.endswith('ld') | s.endswith(['x']) | s.startswith('ell', 1) | s.find('W') | s.find('ö') | s.find('zz') | s.rfind('l') | s.index('zz') | s.count('l') | 'aaa'.count('aa') | 'ab'.count('')
s.upper() | s.lower() | s.title() | "they're 2nd"|title | "they're 2nd".title() | s.capitalize() | 'straße'.upper() | s.replace('l', '') | s.replace('l', 'x', 1) | '-'.join(['a', 'b']) | '-'.join([1]) | 'a\nb\r\nc'.splitlines() | 'pre-x'.removeprefix('pre-') | 'x.txt'.removesuffix('.txt') | '12'.isdigit() | 'a1'.isalpha() | 'a1'.isalnum() | ' '.isspace() | 'Ab'.isupper() | 'ab'.islower() | 'a'.ljust(3, '.') | 'a'.rjust(3)
'{} {}'.format(1, 'a') | '{0}{1}{0}'.format('x', 'y') | '{name}!'.format(name='z') | '{{}}'.format() | '{}'.format() | d.keys()|list | d.values()|list | d.items()|list | d.get('one') | d.get('x') | d.get('x', 5) | items_key['items'] | items_key.get('get') | l.append(1) | l.append is defined | d.pop('one') | d.update({}) | l.count(1) | l.index(2) | [l.copy()]
range(3)|list | range(1, 7, 2)|list | range(5, 0, -2)|list | range(200000)|length | range(3)[1] | 2 in range(3) | dict(a=1, b=2) | dict({'x': 1}, y=2) | namespace(a=1).a | namespace({'b': 2}).b | raise_exception('no') | strftime_now('%Y-%m-%d %H:%M:%S %d %b %B %A %j %y %%')
foo() | n() | n.x | n.x.y | n|nofilter | n is notest | big | big + 1 | 9223372036854775807 | s|wordcount | 'ab'|center(7) | 'a b c d e f g h'|truncate(9) | 'a b c d e f g h'|truncate(9, true, '!', 0) | people|attr('x') | -n | +n | -'a' | --n | not not n | n is not defined
1 in [1] == true | 'a' in 'abc' and 'b' in 'abc' | not 1 in [1] | 1 if 0 else 2 if 0 else 3 | l|length > 2 | l|length + 1 | (l|length) * 2 | -l|length | l[-1:][0] | 'abc'[1:]|upper | d['two'][0] + 1 | [l, l][1][0] | d|length == 3 and s|length > 2
"""

TEMPLATES = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.previtem is defined }},{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in s %}{{ c }}.{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% for x in missing %}x{% else %}none{% endfor %}", "{% for x in [] %}x{% else %}none{% endfor %}", "{% for x in l %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in tree recursive %}{{ x.v }}({{ loop(x.kids) if x.kids }}){{ loop.depth }}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}", "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in l %}{% if loop.first %}{% set y = 5 %}{% endif %}{{ y }},{% endfor %}{{ y }}",
    "{% set ns = namespace(c=0, log=[]) %}{% for i in l %}{% set ns.c = ns.c + i %}{% set ns.log = ns.log + [i] %}{% endfor %}{{ ns.c }}{{ ns.log }}{{ ns.nope }}",
    "{% set x.y = 1 %}", "{% set d.y = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set t2 = 1, %}{{ t2 }}", "{% set (a, b) = (1, 2) %}{{ b }}",
    "{% set x %}  a{{ n }}\n{% endset %}[{{ x }}]", "{% set x | upper | trim %} abc {% endset %}[{{ x }}]", "{% set x %}{% set inner = 1 %}{% endset %}{{ inner }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aaa{% endfilter %}", "{% filter trim | indent(2, true) %} a\nb {% endfilter %}",
    "{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(x=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro m() %}{{ later }}{% endmacro %}{% set later = 3 %}{{ m() }}",
    "{% macro m() %}{% set z = 1 %}{{ z }}{% endmacro %}{{ m() }}{{ z }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(y) m(3) %}<{{ y }}{{ n }}>{% endcall %}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body{% endcall %}", "{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %} x {% endmacro %}[{{ m()|trim }}]{{ m() ~ 1 }}",
    "{% macro m(*a) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% generation %}x{% set g = 1 %}{{ g }}{% endgeneration %}{{ g }}",
    "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}", "{% if empty %}a{% elif none_value %}b{% elif l %}c{% else %}d{% endif %}", "{% if n is notest %}{% endif %}", "{% if false %}{{ n|nofilter }}{% endif %}ok", "{% if true %}{{ n|nofilter }}{% endif %}ok", "{{ 1 if true else (n|nofilter) }}", "{% if true %}{% for x in [] %}{{ x|nofilter }}{% endfor %}{% endif %}",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if t -%}\n  b\n  {%- endif -%}\nc\n", "  {% if t %}x{% endif %}  \n y", "  {%+ if t %}x{%+ endif %}\n y", "a {{ n }} b\n  {{ n }}\n", "a {{- n -}} b", "{% if t +%}\nx{% endif %}", "{% set x = 1 %}\n{% set y = 2 %}\n\n{{ x }}\n\n",
    "a{# c #}b", "a {#- c -#} b", "  {# c #}\nb", "a\n  {# multi\nline #}  \nb", "{# {{ x }} #}z", "x{# unclosed", "{% raw %}{{ x }}{% if %}{% endraw %}", "a {%- raw -%}  {{ x }}  {%- endraw -%} b", "  {% raw %}\n  a\n  {% endraw %}\nb", "{% raw %}x",
    "line\r\nline\rline\n\n", "{{ 'a\r\nb' }}", "{{ x }", "{{ x", "{% if %}", "{% if t %}", "{% endif %}", "{% for %}", "{% nosuch %}", "{{ 1 + }}", "{{ (1 }}", "{{ 'abc }}", "{{ }}", "{{ a b }}", "{{ 1 ! 2 }}", "{% break %}", "{% set %}", "{% set 1 = 2 %}", "{% for true in l %}{% endfor %}", "{{ {1 2} }}", "{{ [1 2] }}", "{{ x.1.2 }}", "{{ x. }}", "{{ n|}}", "{{ n is }}", "{{ f(a=1, 2) }}",
    "{{ '}}' }}", "{{ '{%' }}", "{ {{ n }} }", "{{ {'a': {'b': 1}}.a.b }}", "{% if '%}' == '%}' %}y{% endif %}", "{{ {'a': 1}}}", "{{n}}{{-n}}", "{%if t%}y{%endif%}", "{{ n }}%}", "{{ '' }}|{{ none }}|{{ missing }}|{{ true }}|{{ 1.0 }}", "", "\n", "\n\n", "text only", "{", "{ %", "{{ 'é' }}é", "{{ {'é': 1}['é'] }}{{ ünï }}",
    "{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "{% for g in people|groupby('age') %}{{ g[0] }}:{{ g[1]|length }};{% endfor %}", "{% for a, b in people|groupby('age') %}{{ a }}{% endfor %}",
    "{% set g = l|select('odd') %}{{ g|list }}{{ g|list }}", "{% set x = l|map('string') %}{% if x %}yes{% endif %}", "{% for x in [1, 2, 3, 4, 5]|batch(2) %}{{ x }}{% endfor %}", "{% print n %}", "{{ loop }}", "{{ n, f }}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% set loop = 1 %}{{ loop }}", "{% set x = l if t else [] %}{{ x }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.a, b = 2, 3 %}{{ ns.a }}{{ b }}", "{% set ns = namespace(x=none) %}{{ ns.x is none }}{{ ns.y is defined }}", "{{ messages[0]['role'] }}", "{% if messages is defined and messages[0] %}x{% endif %}", "{% for m in people %}{{ m.name ~ ('' if loop.last else ', ') }}{% endfor %}", "{{ people[0].tags[0] if people[0].tags else '-' }}{{ people[1].tags }}",
    "{%- for m in people -%}\n{{ m['name'] }}\n{%- if not loop.last -%}\n,\n{%- endif -%}\n{%- endfor -%}", "{% for x in l -%}\n  {{ x }}\n{% endfor %}", "{% for x in l +%}\n  {{ x }}\n  {%- endfor %}", "{%- set a = 1 -%}   {{- a -}}   \n", "a\n\n  {%- if t %}\n\n b{% endif -%}  \n\n c",
]


def main():
    env = environment()
    sources = ["{{ " + part.strip() + " }}" for line in EXPRESSIONS.strip().replace("\\\non'", "\\\x00on'").split("\n") for part in line.replace("\x00", "\n").split(" | ")]
    rows = [[source, render(env, source, CONTEXT)] for source in sources + TEMPLATES]
    text = "\n".join(" " + json.dumps(row, ensure_ascii=False) + "," for row in rows)
    data = '{"context": ' + json.dumps(CONTEXT, ensure_ascii=False) + ',\n"rows": [\n' + text[:-1] + "\n]}\n"
    (HERE / "data" / "jinja_golden.json").write_text(data, encoding="utf-8")
    print(len(rows), "templates,", sum(row[1] is None for row in rows), "refused")


if __name__ == "__main__":
    main()
