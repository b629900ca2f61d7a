"""The dynamic options for operators: what is set and by whom, what is in force, what a change would do.

Pure: from the settings, the records, and this node's values in force (`node.services.live_options`).
`node.admin_api.options` shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isthmus.config.dynamic_options import MIN_ISR, OPTIONS
from isthmus.config.forms import Choice
from isthmus.config.schema import SettingDefinition, SettingScope
from isthmus.node.nouns.option import OptionRow
from isthmus.node.services.live_options import EffectiveOptions
from isthmus.repl.controller.dynamic_options import OptionSettings, effective_min_isr
from isthmus.repl.model.record import PartitionRecord

Records = Mapping[int, PartitionRecord]


def option_rows(
    chosen: OptionSettings,
    records: Records,
    live: EffectiveOptions,
    *,
    names: Iterable[str] | None = None,
    bucket_type: str | None = None,
) -> list[OptionRow]:
    """A row for each option of the cluster, and one for each bucket type with its own setting; of min-ISR one for each
    bucket type. With `names` only these; with `bucket_type` the values of that one, a row each. None differs yet: that
    takes the other nodes' answers."""
    kinds = sorted({record.bucket_type for record in records.values()} | chosen.types.keys())
    rows = []
    for name in OPTIONS if names is None else names:
        option = OPTIONS[name]
        per_type = SettingScope.BUCKET_TYPE in option.scopes
        if bucket_type is not None:
            rows.append(_row(option, bucket_type if per_type else None, chosen, records, live))
            continue
        rows.append(_row(option, None, chosen, records, live))
        own = [kind for kind in kinds if name == MIN_ISR or name in chosen.of(kind)]
        rows += [_row(option, kind, chosen, records, live) for kind in own if per_type]
    return rows


def _row(
    option: SettingDefinition, kind: str | None, chosen: OptionSettings, records: Records, live: EffectiveOptions
) -> OptionRow:
    setting = chosen.of(kind).get(option.name)
    if option.name == MIN_ISR:
        effective, origin = _min_isr(kind, chosen, records)
    else:
        effective, origin = live.effective(option.name, kind, chosen)
    return OptionRow(
        option.name,
        bucket_type=kind,
        default=str(option.default),
        set=None if setting is None else setting.value,
        effective=effective,
        origin=origin,
        by=None if setting is None else setting.by,
        at_ms=None if setting is None else setting.at_ms,
        reason=None if setting is None else setting.reason,
        waiting=waiting(chosen, records, kind) if option.name == MIN_ISR else [],
        scope=option.scopes_text,
        unit=option.form.unit_name,
        range=option.form.plain,
        choices=list(option.form.values) if isinstance(option.form, Choice) else [],
        meaning=option.meaning,
        differs={},
    )


def _of_kind(chosen: OptionSettings, records: Records, kind: str | None) -> list[PartitionRecord]:
    """The partitions to which the setting of a bucket type, or of the cluster, applies."""
    return [
        record
        for _, record in sorted(records.items())
        if (record.bucket_type == kind if kind is not None else MIN_ISR not in chosen.of(record.bucket_type))
    ]


def _min_isr(kind: str | None, chosen: OptionSettings, records: Records) -> tuple[int | str, str]:
    """The effective min-ISR: a number, or a range where partitions have different numbers of replicas."""
    found = {effective_min_isr(record, chosen) for record in _of_kind(chosen, records, kind)}
    setting, origin = OPTIONS[MIN_ISR].preceding(chosen.by_scope(MIN_ISR, kind))
    if not found:
        return (OPTIONS[MIN_ISR].default if setting is None else max(1, int(setting.value))), origin
    return (min(found) if len(found) == 1 else f"{min(found)} to {max(found)}"), origin


def waiting(chosen: OptionSettings, records: Records, kind: str | None) -> list[int]:
    """The partitions whose records do not have the configured min-ISR yet."""
    found = _of_kind(chosen, records, kind)
    return [r.partition for r in found if r.min_isr != chosen.min_isr(r.bucket_type, r.factor)]


def warnings(chosen: OptionSettings, records: Records, name: str, kind: str | None) -> list[str]:
    """Warnings about an option as it is set in `chosen`."""
    if name != MIN_ISR:
        return []
    notes = []
    concerned = _of_kind(chosen, records, kind)
    setting = chosen.setting(name, kind)
    clamped = {
        (len(r.replicas), effective_min_isr(r, chosen))
        for r in concerned
        if setting is not None and effective_min_isr(r, chosen) != setting.value
    }
    notes += [
        f"{setting.value} is clamped to {number} where there are {count} replicas"
        for count, number in sorted(clamped)
        if setting is not None
    ]
    short = [r.partition for r in concerned if len(r.isr) < effective_min_isr(r, chosen)]
    if short:
        notes.append(f"too few replicas are in sync for it: writes are refused in partitions {some(short)}")
    alone = [r.partition for r in concerned if effective_min_isr(r, chosen) == 1 < len(r.replicas)]
    if alone:
        notes.append("1 means that an acknowledged write may be on one disk alone")
    return notes


def some(numbers: list[int]) -> str:
    """The first few of the partitions."""
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
