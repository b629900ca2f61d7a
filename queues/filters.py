"""Queue filters: which buckets a queue includes, by bucket type and bucket (pure).

A filter is a list of rules, in a text separated by commas:

    any                every change                block_rtq          nothing in real time, only pushed references
    buckettype:T       of this bucket type         bucketname:B       of buckets of this name, of any type
    bucketprefix:P     of buckets whose name begins so
    !RULE              not those; with negations alone, all others

A negation that matches decides before any other rule. Names with a comma, a percent sign or bytes that are no text are
percent-encoded. The rules are those of Riak's queues; lists and negations are ours. Origins are not filtered here
(`queues.window_rules`).

A filter includes a bucket, or not: this decides about its changes in real time. Repairs (references that a full-sync
pushes) are accepted by the same rules, except that a queue with `block_rtq`, which includes nothing, accepts all of
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from isthmus.repl.model.errors import BadConfig

RULES_MAX: Final = 256
"""Most rules of one filter: each new bucket is matched against all of them."""

ANY: Final = "any"
BLOCK: Final = "block_rtq"
TYPE: Final = "buckettype"
NAME: Final = "bucketname"
PREFIX: Final = "bucketprefix"

_VALUED: Final = (TYPE, NAME, PREFIX)
_PLAIN_BYTES: Final = "-_.~ /:@+*()'$&;="


class Rule(NamedTuple):
    """One rule; `value` is empty for `any` and `block_rtq`."""

    negated: bool
    kind: str
    value: bytes

    def matches(self, bucket_type: bytes, bucket: bytes) -> bool:
        """Whether the rule matches this bucket."""
        if self.kind == TYPE:
            return bucket_type == self.value
        if self.kind == NAME:
            return bucket == self.value
        if self.kind == PREFIX:
            return bucket.startswith(self.value)
        return True

    def __str__(self) -> str:
        text = self.kind + (f":{quote_from_bytes(self.value, safe=_PLAIN_BYTES)}" if self.kind in _VALUED else "")
        return f"!{text}" if self.negated else text


class Decision(NamedTuple):
    """Whether a bucket is included, and the rule that decides; None: no rule matches."""

    included: bool
    rule: Rule | None

    def reason(self) -> str:
        """The decision as a sentence."""
        if self.rule is not None:
            return f"rule {self.rule} {'offers it' if self.included else 'holds it back'}"
        return "no rule holds it back" if self.included else "no rule offers it"


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter."""

    rules: tuple[Rule, ...]

    @property
    def everything(self) -> bool:
        """Whether every bucket is included."""
        return all(rule.kind == ANY for rule in self.rules)

    @property
    def blocks(self) -> bool:
        """Whether no bucket is included: the queue is for pushed references alone."""
        return any(rule.kind == BLOCK for rule in self.rules)

    @property
    def only_negations(self) -> bool:
        """Whether a bucket that no rule names is included."""
        return all(rule.negated for rule in self.rules)

    def decide(self, bucket_type: bytes, bucket: bytes) -> Decision:
        """The decision for changes of this bucket in real time."""
        matching = [rule for rule in self.rules if rule.matches(bucket_type, bucket)]
        for rule in matching:
            if rule.negated or rule.kind == BLOCK:
                return Decision(False, rule)
        if matching:
            return Decision(True, matching[0])
        return Decision(self.only_negations, None)

    def includes(self, bucket_type: bytes, bucket: bytes) -> bool:
        """Whether changes of this bucket go into the queue in real time."""
        return self.decide(bucket_type, bucket).included

    def includes_some(self, bucket_type: bytes) -> bool:
        """Whether some bucket of this type may be included."""
        return _of_type(self, bucket_type).included != frozenset()

    def accepts_repairs(self, bucket_type: bytes, bucket: bytes) -> bool:
        """Whether repairs of this bucket go into the queue."""
        return self.blocks or self.includes(bucket_type, bucket)

    def accepts_some_repairs(self, bucket_type: bytes) -> bool:
        """Whether repairs of some bucket of this type may go into the queue."""
        return self.blocks or self.includes_some(bucket_type)

    def accepts_all_repairs(self, bucket_type: bytes) -> bool:
        """Whether repairs of every bucket of this type go into the queue."""
        return self.blocks or _of_type(self, bucket_type) == _EVERY_BUCKET

    def accepts_all_repairs_of(self, other: Filter, bucket_type: bytes) -> bool:
        """Whether all buckets of this type that a queue with the filter `other` may contain are accepted as repairs
        here. May be False by mistake: filters by buckets are compared rule by rule (`includes_more`)."""
        if self.accepts_all_repairs(bucket_type):
            return True
        return not other.blocks and not includes_more(other, self, bucket_type)

    def __str__(self) -> str:
        return ", ".join(map(str, self.rules))


class _TypeRules(NamedTuple):
    """The part of a filter for one bucket type: includes buckets that match one of `included` (None: every bucket) and
    none of `excluded`."""

    included: frozenset[Rule] | None
    excluded: frozenset[Rule]


OF_TYPE_COUNT: Final = 1_024
"""Parts of filters that are kept: every status and sample asks for those of all queues and bucket types. Others are
made again."""

_EVERY_BUCKET: Final = _TypeRules(None, frozenset())


@lru_cache(maxsize=OF_TYPE_COUNT)
def _of_type(of: Filter, bucket_type: bytes) -> _TypeRules:
    nothing = _TypeRules(frozenset(), frozenset())
    here = [rule for rule in of.rules if rule.kind != TYPE or rule.value == bucket_type]
    if of.blocks or any(rule.negated and rule.kind == TYPE for rule in here):
        return nothing
    excluded = frozenset(rule._replace(negated=False) for rule in here if rule.negated)
    included = frozenset(rule for rule in here if not rule.negated)
    if of.only_negations or any(rule.kind in (ANY, TYPE) for rule in included):
        return _TypeRules(None, excluded)
    return _TypeRules(included, excluded)


def _rule_includes(outer: Rule, inner: Rule) -> bool:
    """Whether each bucket that matches `inner` matches `outer`; both are of names or prefixes."""
    return outer == inner or (outer.kind == PREFIX and inner.value.startswith(outer.value))


def includes_more(now: Filter, before: Filter, bucket_type: bytes) -> bool:
    """False when the rules show that `before` included each bucket of the type that `now` includes."""
    new, old = _of_type(now, bucket_type), _of_type(before, bucket_type)
    if new.included == frozenset():
        return False
    if old.included is not None and (
        new.included is None or not all(any(_rule_includes(o, n) for o in old.included) for n in new.included)
    ):
        return True
    return not all(any(_rule_includes(n, o) for n in new.excluded) for o in old.excluded)


def parse_filter(text: str) -> Filter:
    """Parse a filter. Raises BadConfig, which names the rules that there are."""
    rules = tuple(_rule(part.strip(), text) for part in text.split(","))
    if len(rules) > RULES_MAX:
        raise BadConfig(f"a queue filter has {len(rules)} rules, at most {RULES_MAX} are possible")
    kinds = {rule.kind for rule in rules}
    if len(rules) > 1 and BLOCK in kinds:
        raise BadConfig(f"queue filter {text!r}: {BLOCK} stands alone, it offers nothing in real time")
    if ANY in kinds and any(rule.kind != ANY and not rule.negated for rule in rules):
        raise BadConfig(f"queue filter {text!r}: beside {ANY} only negations (!...) change something")
    return Filter(rules)


def _rule(part: str, text: str) -> Rule:
    negated, word = part.startswith("!"), part.removeprefix("!").strip()
    kind, colon, value = word.partition(":")
    if kind in _VALUED and colon and value:
        try:
            return Rule(negated, kind, unquote_to_bytes(value))
        except UnicodeEncodeError as error:
            raise BadConfig(f"queue filter {text!r}: write bytes that are not UTF-8 as %XX") from error
    if word in (ANY, BLOCK) and not negated:
        return Rule(False, word, b"")
    known = f"{ANY}, {BLOCK}, {TYPE}:T, {NAME}:B, {PREFIX}:P, and ! before one of the last three"
    raise BadConfig(f"queue filter {text!r}: {part!r} is not known; there are: {known}")
