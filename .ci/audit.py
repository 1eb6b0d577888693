"""Look for known vulnerabilities in the packages that requirements.lock pins, by pip-audit.

    make audit
    make audit ARGS="--ignore-vuln GHSA-xxxx-xxxx-xxxx"    # further arguments of pip-audit

It fails on a known vulnerability and on any other error. If no advisory service can be reached, it
says that nothing was audited and does not fail, because the pins are not at fault. Packages that
are pinned for other systems or other versions of Python are not audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
LOCK = "requirements.lock"
#: Advisory services, asked in turn until one answers.
SERVICES = ("pypi", "osv")
#: Words in the errors of pip-audit and its libraries if a service cannot be reached.
UNREACHABLE = ("ConnectionError", "Could not connect", "Connection refused", "ReadTimeout")

console = Console(highlight=False, soft_wrap=True)


def ask(service: str, arguments: list[str]) -> list[dict[str, Any]] | None:
    """Return a service's report on each dependency, or None if it cannot be reached."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip_audit", "--requirement", LOCK, "--require-hashes"]
        command += ["--disable-pip", "--progress-spinner", "off", "--timeout", "15"]
        command += ["--vulnerability-service", service, "--format", "json", "--output", str(report)]
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if report.exists() and report.stat().st_size:
            found: list[dict[str, Any]] = json.loads(report.read_text())["dependencies"]
            return found
    if any(word in done.stderr for word in UNREACHABLE):
        return None
    console.print(done.stdout + done.stderr, markup=False)
    sys.exit(f"pip-audit ended with {done.returncode} and no report.")


def main() -> None:
    """Ask the services in turn, print the result, and fail if there are vulnerabilities."""
    for service in SERVICES:
        dependencies = ask(service, sys.argv[1:])
        if dependencies is None:
            console.print(f"{service}: cannot be reached.")
            continue
        audited = [each for each in dependencies if "skip_reason" not in each]
        # A mirror of PyPI answers, but has no advisories.
        if dependencies and not audited:
            console.print(f"{service}: has nothing on any of {len(dependencies)} packages.")
            continue
        skipped = [each["name"] for each in dependencies if "skip_reason" in each]
        if skipped:
            console.print(f"Not known to {service}, and not audited: {', '.join(skipped)}.")
        bad = [each for each in audited if each["vulns"]]
        for each in bad:
            for vulnerability in each["vulns"]:
                fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
                console.print(
                    f"{each['name']} {each['version']}: {vulnerability['id']}, fixed in {fixed}"
                )
        if bad:
            sys.exit(f"{len(bad)} of the packages in {LOCK} have known vulnerabilities.")
        console.print(f"No known vulnerabilities in {len(audited)} packages.")
        return
    console.print(
        f"[bold]NOT AUDITED:[/bold] no service of advisories can be reached from here, so nothing "
        f"is known of what {LOCK} pins. Run `make audit` where there is a network."
    )


if __name__ == "__main__":
    main()
