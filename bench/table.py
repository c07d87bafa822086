"""The run as text: a table for each scenario, the ratios with their bars, and what limited each server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.appends import AppendResult, Appends, Bar
from bench.figures import Figure
from bench.machine import MEMORY_FILESYSTEMS, Machine
from bench.scenarios import Section

SATURATED = 0.85
MACHINE_SATURATED = 0.92
QUIET_SHARE_MAX = 0.25


def heading(machine: Machine) -> str:
    lines = [
        f"{machine.processor}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}",
        f"disk: {machine.filesystem}, append of 1 KiB + fdatasync {machine.sync_us:.0f} µs (median)",
        f"peers: nats-server {machine.nats}, valkey {machine.valkey}",
    ]
    if machine.filesystem in MEMORY_FILESYSTEMS:
        lines.append("WARNING: this directory is memory, not a disk; the durable figures mean nothing")
    return "\n".join(lines)


def section_text(section: Section, cores: int) -> str:
    lines = [f"{section.name}: {section.title}"]
    if section.scenario:
        lines += _append_lines(section.scenario, section.results, cores)
    if section.figures:
        lines += _grid([_figure_row(figure) for figure in section.figures])
        lines += [f"  limit: {section.limit}"] if section.limit else []
    return "\n".join(lines)


def as_json(machine: Machine, sections: Sequence[Section]) -> dict[str, Any]:
    return {
        "machine": machine._asdict(),
        "scenarios": [_section_json(each, machine.cores) for each in sections],
    }


def ratio(results: Sequence[AppendResult], peer: str) -> float:
    rates = {result.peer: result.median.appends_per_s for result in results}
    return rates["penstock"] / rates[peer]


def verdict(bar: Bar, reached: float) -> str:
    if reached >= bar.ratio:
        return "pass"
    return "short of the aim" if bar.is_aim else "MISS"


def limiting_factor(result: AppendResult, durable: bool, cores: int) -> str:
    """What to look at first. NATS spreads its work over threads: only a busy machine shows it is full."""
    median = result.median
    busy_share = median.server_share + median.client_share + median.other_share
    if median.client_share >= SATURATED:
        return f"the client ({median.client_share:.0%} of a core): the server may do more"
    if busy_share >= MACHINE_SATURATED * cores:
        others = f", {median.other_share:.0%} taken by others" if median.other_share >= 0.1 else ""
        return f"processor: all {cores} cores busy (server {median.server_share:.0%}{others})"
    if median.busiest_thread_share >= SATURATED:
        return f"one server thread ({median.busiest_thread_share:.0%} of a core)"
    if durable:
        return f"syncs to disk (server {median.server_share:.0%} of a core, the machine not full)"
    return f"round trips (server {median.server_share:.0%}, client {median.client_share:.0%} of a core)"


def _append_lines(scenario: Appends, results: Sequence[AppendResult], cores: int) -> list[str]:
    header = [
        "server",
        "appends/s",
        "slowest–fastest",
        "server µs/append",
        "server CPU",
        "client CPU",
        "others",
    ]
    rows = [header] + [_result_row(result) for result in results]
    bars = [["penstock ÷", "ratio", "bar", ""]] + [
        _ratio_row(scenario, results, peer) for peer in _others(results)
    ]
    limits = [f"  limit of {each.peer}: {limiting_factor(each, scenario.durable, cores)}" for each in results]
    settings = [f"  {each.peer}: {each.settings}" for each in results]
    return [*settings, *_grid(rows), *_grid(bars), *limits, *_noise_lines(results)]


def _noise_lines(results: Sequence[AppendResult]) -> list[str]:
    noisiest = max(result.median.other_share for result in results)
    if noisiest <= QUIET_SHARE_MAX:
        return []
    return [f"  NOISY: others took up to {noisiest:.0%} of a core; run again on a quiet machine"]


def _result_row(result: AppendResult) -> list[str]:
    median = result.median
    return [
        result.peer,
        f"{median.appends_per_s:,.0f}",
        f"{result.slowest_per_s:,.0f}–{result.fastest_per_s:,.0f}",
        f"{median.server_cpu_us_per_append:.1f}",
        f"{median.server_share:.0%}",
        f"{median.client_share:.0%}",
        f"{median.other_share:.0%}",
    ]


def _others(results: Sequence[AppendResult]) -> list[str]:
    return [result.peer for result in results if result.peer != "penstock"]


def _ratio_row(scenario: Appends, results: Sequence[AppendResult], peer: str) -> list[str]:
    reached = ratio(results, peer)
    bar = next((bar for bar in scenario.bars if bar.peer == peer), None)
    if bar is None:
        return [peer, f"{reached:.2f} ×", "–", ""]
    return [peer, f"{reached:.2f} ×", f"{'aim' if bar.is_aim else '≥'} {bar.ratio:g}", verdict(bar, reached)]


def _figure_row(figure: Figure) -> list[str]:
    bar = "–"
    if figure.at_least is not None:
        bar = f"≥ {figure.at_least:g}"
    elif figure.at_most is not None:
        bar = f"≤ {figure.at_most:g}"
    passed = {None: "", True: "pass", False: "MISS"}[figure.passes]
    return [figure.label, f"{figure.value:.2f} {figure.unit}", bar, passed]


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _section_json(section: Section, cores: int) -> dict[str, Any]:
    figures = [{**figure._asdict(), "passes": figure.passes} for figure in section.figures]
    if section.scenario is None:
        return {
            "name": section.name,
            "title": section.title,
            "figures": figures,
            "limiting_factor": section.limit,
        }
    scenario, results = section.scenario, section.results
    return {
        "name": section.name,
        "title": section.title,
        "figures": figures,
        "servers": [
            {
                "server": each.peer,
                "settings": each.settings,
                **each.median._asdict(),
                "slowest_per_s": each.slowest_per_s,
                "fastest_per_s": each.fastest_per_s,
                "limiting_factor": limiting_factor(each, scenario.durable, cores),
            }
            for each in results
        ],
        "ratios": {peer: ratio(results, peer) for peer in _others(results)},
        "bars": [
            {
                **bar._asdict(),
                "reached": ratio(results, bar.peer),
                "verdict": verdict(bar, ratio(results, bar.peer)),
            }
            for bar in scenario.bars
        ],
    }
