"""Options of the Java that Spark's driver runs in."""

from __future__ import annotations

import os

import pytest

from penstock.pipeline.session import JAVA_OPTIONS, LOGGING, java_options

EXTRA = "spark.driver.extraJavaOptions"


def test_its_log_is_ours() -> None:
    assert f'"-Dlog4j2.configurationFile={LOGGING}"' in java_options({})
    assert LOGGING.exists()


@pytest.mark.parametrize(("cores", "serial"), [(1, True), (2, True), (3, False), (None, True)])
def test_on_few_cores_garbage_is_collected_without_threads_of_its_own(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, serial: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert ("-XX:+UseSerialGC" in java_options({})) is serial


@pytest.mark.parametrize("name", [JAVA_OPTIONS, EXTRA])
def test_what_the_user_has_chosen_stands(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Java refuses to start with two collectors."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    options = java_options({name: "-XX:+UseParallelGC"})
    assert "-XX:+UseSerialGC" not in options
    assert ("-XX:+UseParallelGC" in options) is (name == JAVA_OPTIONS)  # Spark adds the others itself
