"""HTTPS: a certificate made here, a real server, OpenAI's client."""

import ssl

import httpx
import openai
import pytest
import trustme
from server_process import serving


def test_openais_client_speaks_https(model, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain, key, root = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "root.pem"
    for number, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(chain, append=number > 0)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(root)

    arguments = ["--device", "cpu", "--ssl-certfile", chain, "--ssl-keyfile", key, "--served-model-name", "tiny"]
    with serving(tmp_path, model, *arguments) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = httpx.Client(verify=ssl.create_default_context(cafile=root))
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=trusting) as client:
            answer = client.completions.create(model="tiny", prompt="a", max_tokens=4, temperature=0)
            stream = client.completions.create(model="tiny", prompt="a", max_tokens=4, temperature=0, stream=True)
            assert "".join(piece.choices[0].text for piece in stream if piece.choices) == answer.choices[0].text
        # Whoever does not trust the authority gets nothing, and neither does plain HTTP.
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{server.url}/live")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url.replace('https', 'http')}/live")
