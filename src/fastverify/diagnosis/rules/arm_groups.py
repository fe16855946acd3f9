"""Sweeps: arms that are alike in everything but one thing, found among the arms of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastverify.diagnosis.arm_readings import ARM_SETTINGS, ArmReading

# What makes two arms the same experiment. Labels are words, never a difference by themselves.
_IDENTITY = (*ARM_SETTINGS, "is_reference")


def groups_varying(arms: Iterable[ArmReading], *varying: str) -> Iterator[tuple[ArmReading, ...]]:
    """Groups of at least two arms that agree in everything except `varying`."""
    kept = [name for name in _IDENTITY if name not in varying]
    groups: dict[tuple[object, ...], list[ArmReading]] = {}
    for arm in arms:
        groups.setdefault(tuple(getattr(arm.facts, name) for name in kept), []).append(arm)
    return (tuple(group) for group in groups.values() if len(group) > 1)


def names(arms: Iterable[ArmReading]) -> tuple[str, ...]:
    """Names of the arms, in order."""
    return tuple(arm.name for arm in arms)
