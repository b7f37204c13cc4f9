"""Tokens and certificates, against a real server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from conftest import Server, binary


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "tls.crt", folder / "tls.key"
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=tenure", "-addext", "subjectAltName=IP:127.0.0.1",
        "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", str(key), "-out", str(cert),
    )  # fmt: skip
    return cert, key


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[tuple[Server, str]]:
    """A server with a certificate that lets one token in, and that token."""
    folder = tmp_path_factory.mktemp("secured")
    made = subprocess.run(
        [binary(), "token", "billing", "--may", "leases:*:billing.*"],
        check=True,
        capture_output=True,
        text=True,
    )
    token = next(line for line in made.stderr.splitlines() if line.startswith("tnr_"))
    (folder / "tokens.toml").write_text(made.stdout)
    cert, key = certificate
    extra = ("--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(folder / "tokens.toml"))
    server = Server(folder, None, *extra)
    yield server, token
    server.end()


def test_a_token_opens_what_it_is_for_and_nothing_else(
    secured: tuple[Server, str], certificate: tuple[Path, Path]
) -> None:
    server, token = secured
    with tenure.Client(server.url, token=token, ca=certificate[0]) as client:
        with client.lease("billing.nightly/close", ttl=30) as lease:
            lease.check()
        with pytest.raises(tenure.Denied, match="billing may not"):
            client.lease("search.indexer/main").acquire()
        with pytest.raises(tenure.Denied):
            client.objects.get("order", "1")


def test_nobody_comes_in_without_a_token(secured: tuple[Server, str], certificate: tuple[Path, Path]) -> None:
    for token in (None, "tnr_wrong"):
        with tenure.Client(secured[0].url, token=token, ca=certificate[0]) as client:
            with pytest.raises(tenure.Unauthenticated) as caught:
                client.lease("billing.nightly/close").acquire()
            assert "tnr_wrong" not in str(caught.value)


def test_an_unknown_certificate_is_not_trusted_and_not_mistaken_for_no_server(
    secured: tuple[Server, str],
) -> None:
    with tenure.Client(secured[0].url, token=secured[1]) as client:
        with pytest.raises(tenure.NoServer, match="(?i)certificate") as caught:
            client.capabilities()
        assert "tenure serve" not in str(caught.value)
        assert "name its authority with ca=" in str(caught.value)


def test_a_server_without_tls_is_told_as_that(shared: Server) -> None:
    with tenure.Client(f"https://127.0.0.1:{shared.port}") as client:
        with pytest.raises(tenure.NoServer, match=rf"does not speak TLS; write {shared.url}"):
            client.capabilities()


async def test_the_same_with_asyncio(secured: tuple[Server, str], certificate: tuple[Path, Path]) -> None:
    server, token = secured
    async with tenure.AsyncClient(server.url, token=token, ca=certificate[0]) as client:
        async with client.lease("billing.nightly/close", ttl=30) as lease:
            await client.leases.show(lease.scope)
            lease.check()
    async with tenure.AsyncClient(server.url, token=token) as client:
        with pytest.raises(tenure.NoServer, match="(?i)certificate"):
            await client.capabilities()
