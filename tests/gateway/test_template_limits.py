"""No chat template takes long or much memory, whatever it does, and none reaches Python."""

import asyncio
import resource
import time

import pytest

from agentgym_rl.core import ConfigError
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gateway.template import costs
from agentgym_rl.gateway.template.sandbox import Environment
from agentgym_rl.gateway.template.steps import EndlessTemplate
from agentgym_rl.gateway.template.template import ChatTemplate
from tests.kit.cases import cases

HI = [{"role": "user", "content": "hi"}]
TIMES = "{% set ns = namespace(x=START, y=START) %}{% for i in range(60) %}STEP{% endfor %}"


def _doubled(start, step, use=""):
    """A template that applies a step sixty times."""
    steps = "".join(f"{{% set ns.{name} = {step.replace('$', f'ns.{name}')} %}}" for name in "xy")
    return TIMES.replace("START", start).replace("STEP", steps) + use


LONG = "{% set x = 'a' * 15000000 %}"
LARGE = {
    # single calls: widths, repetitions, and what grows by an argument
    "center": "{{ 'a' | center(10**9) }}",
    "filter_block": "{% filter center(10**9) %}a{% endfilter %}",
    "set_filter": "{% set x | center(10**9) %}a{% endset %}",
    "map": "{{ ['a'] | map('center', 10**9) | list }}",
    "method": "{{ 'a'.zfill(10**9) }}",
    "method_by_item": "{{ ('a'['ljust'])(10**9) }}",
    "method_by_filter": "{{ ('a' | attr('rjust'))(10**9) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent_star": "{{ '%*d' % (10**9, 1) }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "format_nested": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "format_map": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "format_filter": "{{ '%1000000000d' | format(1) }}",
    "indent": "{{ 'a\\nb' | indent(10**9) }}",
    "tojson_indent": "{{ messages | tojson(indent=10**8) }}",
    "tojson_separators": "{{ range(9**5) | list | tojson(separators=('b' * 10**6, ':')) }}",
    "replace": "{{ ('a' * 10**6).replace('', 'b' * 1000) }}",
    "replace_filter": "{{ ('a' * 10**6) | replace('a', 'b' * 1000) }}",
    "join": "{{ (['a'] * 10**5) | join('b' * 10**6) }}",
    "join_method": "{{ ('b' * 10**6).join(range(9**5) | map('string')) }}",
    "translate": "{{ ('a' * 10**6).translate({97: 'b' * 5000}) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10**9) }}",
    "to_bytes": "{{ (5).to_bytes(10**9, 'big') }}",
    "encode": "{{ ('\u00fc' * 10**7).encode('idna') }}",
    "wordwrap": "{{ ('a ' * 10**6) | wordwrap(1) }}",
    "striptags": "{{ ('<!---->' * 10**5) | striptags }}",
    "slice": "{{ [1] | slice(10**8) | list }}",
    "batch": "{{ [1] | batch(10**8, 1) | list }}",
    "pprint": "{{ ([[1] * 1000] * 1000) | pprint }}",
    "round": "{{ 1.5 | round(10**8, 'ceil') }}",
    "multiply": "{{ 'a' * 10**10 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    # values that grow from step to step
    "sum": _doubled("'ab'", "$ + $"),
    "concat": _doubled("'ab'", "$ ~ $"),
    "list": _doubled("[1]", "$ + $"),
    "product": _doubled("3", "$ * $"),
    "set_block": "{% set x %}ab{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
    "macro": "{% macro m(x, n) %}{{ m(x ~ x, n - 1) if n else x }}{% endmacro %}{{ m('a', 60) }}",
    "chain": LONG + "{% set y = x" + " + x" * 100 + " %}",
    "output": LONG + "{{ x }}" * 100,
    # one object that stands in another many times
    "printed": _doubled("[1]", "[$, $]", "{{ ns.x }}"),
    "json": _doubled("{'a': 1}", "{'a': $, 'b': $}", "{{ ns.x | tojson }}"),
    "appended": _doubled("[1]", "[$, $]", "{{ '' ~ ns.x }}"),
    "as_text": _doubled("[1]", "[$, $]", "{{ '%s' % ns.x }}{{ '{}'.format(ns.x) }}"),
    "compared": _doubled("[1]", "[$, $]", "{{ ns.x == ns.y }}"),
    "tested": _doubled("[1]", "[$, $]", "{{ ns.x is eq(ns.y) }}"),
    "selected": _doubled("[1]", "[$, $]", "{{ [ns.x] | select('eq', ns.y) | list }}"),
    "found": _doubled("[1]", "[$, $]", "{{ ns.x in [ns.y] }}"),
    "counted": _doubled("[1]", "[$, $]", "{{ [ns.y].count(ns.x) }}"),
    "sorted": _doubled("[1]", "[$, $]", "{{ [ns.x, ns.y] | sort }}"),
    "hashed": _doubled("(1,)", "($, $)", "{{ messages[0][ns.x] }}"),
    "namespaces": _doubled("namespace(a=1)", "namespace(a=$, b=$)", "{{ ns.x }}"),
    # time: loops over large values
    "loops": "{% for a in range(9**5) %}{% for b in range(9**5) %}{% endfor %}{% endfor %}",
    "calls": "{% macro f(n) %}{{ f(n-1) ~ f(n-1) if n }}{% endmacro %}{{ f(60) }}",
    "methods": LONG + "{% for i in range(9**5) %}{% set y = x.upper() %}{% endfor %}",
    "searches": LONG + "{% for i in range(9**5) %}{{ 'b' in x }}{% endfor %}",
    "slices": LONG + "{% for i in range(9**5) %}{% set y = x[1:] %}{% endfor %}",
    "blocks": LONG + "{% for i in range(9**5) %}{% set y %}{{ x }}b{% endset %}{% endfor %}",
    "ranges": "{% for i in range(9**5) %}{% set y = range(9**5) | list %}{% endfor %}",
    "late": "{% if messages | length > 0 %}{{ 'a' | center(10**9) }}{% endif %}",
}


@pytest.mark.slow
@cases("source", LARGE.values(), ids=list(LARGE))
def test_a_template_ends_soon_and_stays_small(source):
    template, began = ChatTemplate(source, special_tokens={}), time.thread_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EndlessTemplate, match="seems never to end"):
        template.render(HI)
    assert time.thread_time() - began < 20  # seconds of this thread alone: a hundred times as long
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000


@cases("source", [LARGE["center"], "{% if tools %}" + LARGE["center"] + "{% endif %}"], ids="ab")
def test_an_endless_template_is_refused_when_it_is_loaded(folder_with, source):
    shown = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    with pytest.raises(ConfigError, match="seems never to end"):
        ChatFormat.load(folder_with(template=shown + source))


@cases("source", ["{{ " + "(" * 5000, "{{ " + "9" * 5000 + " }}", "x" * 1_000_001], ids="abc")
def test_a_template_that_cannot_be_compiled_is_a_configuration_error(source):
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate(source, special_tokens={})


def test_every_filter_and_test_is_known_to_cost_something_or_nothing():
    environment = Environment(None)
    known = costs.FREE | costs.FILTERS.keys() | {"wordwrap", "round", "sum"}  # these: as the worst
    assert {name for name in environment.filters if " " not in name} == known
    assert environment.tests.keys() > costs.FREE_TESTS


def test_what_ordinary_templates_use_costs_next_to_nothing():
    source = (
        "{{ 'a' | center(5) }}|{{ 'b'.ljust(3) }}|{{ '%3d' % 5 }}|{{ '{:>4}'.format('x') }}|"
        "{{ 'a\nb' | indent(2) }}|{{ {'a': [1]} | tojson(indent=1) }}|"
        "{{ 'aXb'.replace('X', '--') }}|"
        "{{ ['a', 'b'] | join(', ') }}|{{ [1, 2, 3] | batch(2, 0) | list }}|{{ 2 ** 10 }}|"
        "{{ dict(a=1) }}|{{ dict.fromkeys(['k'], 2) }}|{{ [3, 1] | sort }}|"
        "{{ 1.26 | round(1) }}|"
        "{{ 'a b' | wordwrap(1) }}|{{ [1, 2] | sum }}|{{ messages[0:1] }}"
    )
    assert ChatTemplate(source, special_tokens={}).render(HI).splitlines() == [
        "  a  |b  |  5|   x|a",
        "  b|{",
        ' "a": [',
        "  1",
        " ]",
        "}|a--b|a, b|[[1, 2], [3, 0]]|1024|{'a': 1}|{'k': 2}|[1, 3]|1.3|a",
        "b|3|[{'role': 'user', 'content': 'hi'}]",
    ]


@cases(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ namespace(_x=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{% include '/etc/passwd' %}",
        "{{ messages.append(1) }}",
    ],
    ids=range(8),
)
def test_no_template_reaches_python(source):
    with pytest.raises(ValueError, match="refuses"):
        ChatTemplate(source, special_tokens={}).render(HI)


def test_a_template_that_ends_only_at_times_is_the_error_of_a_request(stage, words, folder_with):
    opening = "{% if messages[0].content == 'boom' %}{{ 'a' | center(10**9) }}{% endif %}"
    chat = ChatFormat.load(folder_with(opening=opening))
    scene = stage(lambda _: chat.encode("Hm.<|im_end|>"), chat=chat)
    session, boom = scene.open(), [{"role": "user", "content": "boom"}]

    async def ask():
        assert (await scene.post(session, messages=HI)).message["content"] == "Hm."
        return await scene.post(session, messages=boom)

    refused = asyncio.run(ask())
    assert refused.status == 400
    assert "seems never to end" in refused.error["message"]


@cases("source", ["{{ [1, 2] | random }}", "{{ lipsum() }}"])
def test_a_template_that_writes_by_chance_is_refused(source):
    with pytest.raises((ConfigError, ValueError), match=r"'random'|'lipsum'"):
        ChatTemplate(source, special_tokens={}).render([{"role": "user", "content": "hi"}])


@cases("text", ["messages | map('upper')", "messages[0].items", "raise_exception", "'x'.upper"])
def test_a_template_that_writes_an_address_is_refused(text):
    template = ChatTemplate(f"{{{{ {text} }}}}", special_tokens={})
    with pytest.raises(ValueError, match="whose text differs each time"):
        template.render([{"role": "user", "content": "hi"}])


def test_an_address_in_a_message_is_text():
    template = ChatTemplate("{{ messages }}", special_tokens={})
    assert " at 0x7f" in template.render([{"role": "user", "content": "<x at 0x7f>"}])
