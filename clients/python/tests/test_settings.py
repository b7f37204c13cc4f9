"""Where the servers are, and who asks."""

from collections.abc import Mapping, Sequence

import pytest

import tenure
from tenure._settings import Settings


def find(
    url: str | Sequence[str] | None = None, name: str | None = None, env: Mapping[str, str] | None = None
) -> Settings:
    return Settings.find(url, None, name, None, None, 10.0, env or {})


def test_defaults() -> None:
    settings = find()
    assert settings.servers.urls == ("http://127.0.0.1:8368",)
    assert settings.token is None
    assert settings.headers() == {}
    assert settings.name


def test_the_environment_and_what_is_given_before_it() -> None:
    env = {"TENURE_SERVER": "https://a:1/, https://b:2", "TENURE_BEARER": "secret\n", "TENURE_NAME": "me"}
    settings = find(env=env)
    assert settings.servers.urls == ("https://a:1", "https://b:2")
    assert settings.headers() == {"Authorization": "Bearer secret"}
    assert settings.name == "me"
    given = find(url=["http://c:3"], name="you", env=env)
    assert (given.servers.urls, given.name) == (("http://c:3",), "you")


@pytest.mark.parametrize("url", ["127.0.0.1:8368", "tcp://a:1", "http://", "http://me:secret@a:1"])
def test_what_is_no_address_is_refused_without_telling_secrets(url: str) -> None:
    with pytest.raises(ValueError, match=r"no address of a server|pass it as token=") as caught:
        find(url=url)
    assert "secret" not in str(caught.value)


def test_names_leave_the_separator_out() -> None:
    with pytest.raises(ValueError, match="use another"):
        find(name="a#b")


def test_tokens_are_not_shown() -> None:
    with tenure.Client("http://a:1", token="secret", name="me") as client:
        assert repr(client) == "<Client me at a:1>"
        assert "secret" not in repr(client._settings)
