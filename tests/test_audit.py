"""`make audit` fails on a known vulnerability, and never takes silence for a clean bill."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("pip_audit", reason="pip-audit is not installed; it is in CI.")

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / ".ci" / "audit.py"

if not SCRIPT.exists():
    pytest.skip("no audit here, as in a source distribution", allow_module_level=True)

#: What a service of advisories says of one package, in the form of osv.dev.
ADVISORY = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "summary": "a made-up one",
    "modified": "2026-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "numpy", "ecosystem": "PyPI"},
            "ranges": [
                {
                    "type": "ECOSYSTEM",
                    "events": [{"introduced": "0"}, {"fixed": "999.0"}],
                }
            ],
        }
    ],
}


@pytest.fixture
def service():
    """Yield a service of advisories on this machine: its address and what it is asked and knows."""
    asked: list[str] = []
    known: dict[str, list[dict[str, object]]] = {}

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = query["package"]["name"]
            asked.append(name)
            body = json.dumps({"vulns": known[name]} if name in known else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/query", asked, known
        server.shutdown()
        thread.join()


def audit(url):
    """Run the audit against one address alone; return its exit status and what it said."""
    command = [sys.executable, str(SCRIPT), "--vulnerability-service", "osv", "--osv-url", url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_known_vulnerability_fails(service):
    url, _, known = service
    known["numpy"] = [ADVISORY]
    status, said = audit(url)
    assert status == 1
    assert "GHSA-aaaa-bbbb-cccc, fixed in 999.0" in said
    assert "1 of the packages in requirements.lock have known vulnerabilities" in said


def test_every_pin_is_asked_for(service):
    url, asked, _ = service
    status, said = audit(url)
    assert status == 0
    assert f"No known vulnerabilities in {len(asked)} packages." in said
    assert {"numpy", "pymc", "pytensor", "arviz", "xarray", "h5py"} <= set(asked)
    assert len(asked) > 100


def test_where_no_service_answers_nothing_is_said_to_be_clean():
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        closed = server.server_port
    status, said = audit(f"http://127.0.0.1:{closed}/query")
    assert status == 0
    assert "NOT AUDITED" in said
    assert "No known vulnerabilities" not in said
