"""`python -m bench`: run the scenarios and print their tables."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench import machine, table
from bench.peers import PeerError
from bench.scenarios import FULL, QUICK, SCENARIOS


def main() -> None:
    arguments = _parser().parse_args()
    parent = Path(arguments.dir)
    parent.mkdir(parents=True, exist_ok=True)
    (parent / ".gitignore").write_text("*\n")
    effort = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(dir=parent, prefix="run-") as work:
        work_dir = Path(work)
        this_machine = machine.describe(work_dir)
        if not arguments.json:
            print(table.heading(this_machine), flush=True)
        sections = []
        for name in arguments.only:
            section = SCENARIOS[name](work_dir, effort, _progress)
            sections.append(section)
            if not arguments.json:
                print("\n" + table.section_text(section, this_machine.cores), flush=True)
    if arguments.json:
        print(json.dumps(table.as_json(this_machine, sections), indent=2, ensure_ascii=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Penstock beside NATS JetStream, Valkey, moto and ministack"
    )
    parser.add_argument("--quick", action="store_true", help="one short round each, a smaller store")
    parser.add_argument(
        "--only",
        type=_names,
        default=list(SCENARIOS),
        metavar="NAME,...",
        help="some of: " + ", ".join(SCENARIOS),
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--dir", default=".bench", help="where data goes; must be on the disk to be measured")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(SCENARIOS)}")
    return names


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.exit(str(error))
