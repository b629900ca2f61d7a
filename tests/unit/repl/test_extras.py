"""Packages of extras: found without being imported, and named with the extra that brings them."""

from __future__ import annotations

import sys

import pytest

from isthmus.repl import extras


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ImportError has the package as its name; installed ones pass, and none is imported."""
    installed = {"pyspark"}
    monkeypatch.setattr(extras, "is_installed", installed.__contains__)
    extras.check_packages("a job", "pyspark")
    with pytest.raises(ImportError) as raised:
        extras.check_packages("a job", "pyspark", "pyarrow")
    assert raised.value.name == "pyarrow"
    assert str(raised.value) == (
        f"a job needs the package pyarrow, which {sys.executable} does not have: pip install 'isthmus[spark]'"
    )


def test_what_cannot_be_imported_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such package, one that an importer refuses, and one that a program has taken out of sys.modules."""
    assert extras.is_installed("json")
    assert not extras.is_installed("no_such_package")
    monkeypatch.setitem(sys.modules, "refused", None)
    assert not extras.is_installed("refused")
