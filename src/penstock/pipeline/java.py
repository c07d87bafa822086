"""Java, which Spark runs on: whether there is one, and what to do if not."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

VERSION_MIN = 17
ANSWER_S = 30

ADVICE = (
    f"delivering needs Java {VERSION_MIN} or newer: install one (Debian: apt-get install default-jre-headless) "
    "or set JAVA_HOME"
)


def find_java(env: Mapping[str, str]) -> str | None:
    """The one that Spark would start."""
    home = env.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java") if home else shutil.which("java", path=env.get("PATH"))


def java_problem(env: Mapping[str, str]) -> str | None:
    """What is wrong with the Java that Spark would start, if something is."""
    home, java = env.get("JAVA_HOME"), find_java(env)
    if java is None:
        return f"no Java was found in JAVA_HOME ({home})" if home else "no Java was found"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run ({error})"
    version = re.search(rb'version "(\d+)', answer.stderr)
    if version is None:
        return f"{java} does not tell its version"
    return f"{java} is too old" if int(version[1]) < VERSION_MIN else None
