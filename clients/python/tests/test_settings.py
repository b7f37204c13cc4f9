"""Where the servers are, and who asks."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest

import tenure
from tenure._settings import Settings


def find(
    url: str | Sequence[str] | None = None, name: str | None = None, env: Mapping[str, str] | None = None
) -> Settings:
    return Settings.find(url, None, name, None, None, 10.0, env or {})


def shown(settings: Settings) -> str | None:
    """What a request shows to the server."""
    found: str | None = settings.authorize(httpx.Request("GET", "http://a:1")).headers.get("Authorization")
    return found


def test_defaults() -> None:
    settings = find()
    assert settings.servers.urls == ("http://127.0.0.1:8368",)
    assert settings.token is None
    assert shown(settings) is None
    assert settings.name


def test_the_environment_and_what_is_given_before_it() -> None:
    env = {"TENURE_SERVER": "https://a:1/, https://b:2", "TENURE_BEARER": "secret\n", "TENURE_NAME": "me"}
    settings = find(env=env)
    assert settings.servers.urls == ("https://a:1", "https://b:2")
    assert shown(settings) == "Bearer secret"
    assert settings.name == "me"
    given = find(url=["http://c:3"], name="you", env=env)
    assert (given.servers.urls, given.name) == (("http://c:3",), "you")


@pytest.mark.parametrize(
    "url", ["https://a:8368,https://b:8368", "https://a:8368,b:8368", "https://a, b,", "HTTPS://a,b/"]
)
def test_both_forms_of_a_list_are_the_same_servers(url: str) -> None:
    assert find(env={"TENURE_SERVER": url}).servers.urls == ("https://a:8368", "https://b:8368")


def test_addresses_of_ipv6_have_brackets() -> None:
    assert find(url="http://[::1]/").servers.urls == ("http://[::1]:8368",)
    several = find(url="http://[::1]:9,[fe80::1],http://b:2")
    assert several.servers.urls == ("http://[::1]:9", "http://[fe80::1]:8368", "http://b:2")
    for bad in ("http://::1", "http://[::1", "http://[a]:1", "http://[::1]9"):
        with pytest.raises(ValueError, match=r"http://\[::1\]:8368"):
            find(url=bad)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("127.0.0.1:8368", "127.0.0.1:8368"),
        ("tcp://a:1", "tcp://a:1"),
        ("http://", "http://"),
        ("http://a b", "http://a b"),
        ("http://a,http://http://b", "http://http://b"),
        ("http://a,b:0", "b:0"),
        ("http://a,b:port", "b:port"),
        ("http://a:70000", "http://a:70000"),
        ("http://a/path", "http://a/path"),
        ("http://a,tcp://b", "tcp://b"),
    ],
)
def test_what_is_no_address_is_named_with_what_is(url: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"^'{re.escape(named)}' is no address of a server; write it like"):
        find(url=url)


def test_mixed_schemes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'http://c:1' .* is https"):
        find(url=["https://a", "b", "http://c:1"])


@pytest.mark.parametrize("url", ["http://me:secret@a:1", "http://me:sec,secret@a:1"])
def test_a_login_is_refused_without_telling_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"the address of a:1 .* pass it as token=") as caught:
        find(url=url)
    assert "sec" not in str(caught.value)


def test_names_leave_the_separator_out() -> None:
    with pytest.raises(ValueError, match="use another"):
        find(name="a#b")


def test_tokens_are_not_shown() -> None:
    with tenure.Client("http://a:1", token="secret", name="me") as client:
        assert repr(client) == "<Client me at a:1>"
        assert "secret" not in repr(client._settings)


def test_a_token_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    for token in ("top\nsecret", "top\tsecret", "geheïm"):
        with pytest.raises(ValueError, match="no header can carry") as caught:
            tenure.Client(token=token)
        assert "secret" not in str(caught.value)
        assert "gehe" not in str(caught.value)


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for file in (tmp_path / "nothing.pem", empty):
        with pytest.raises(ValueError, match=file.name):
            tenure.Client(ca=file)
        with pytest.raises(ValueError, match=file.name):
            tenure.Client(cert=(str(file), str(file)))


def test_a_function_is_asked_for_the_token_of_each_request() -> None:
    tokens = iter(["first\n", "second\n", ""])
    settings = Settings.find("http://a:1", lambda: next(tokens), "me", None, None, 1.0, {})
    assert [shown(settings) for _ in range(3)] == ["Bearer first", "Bearer second", None]
    assert "first" not in repr(settings)
