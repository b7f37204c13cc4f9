"""What the README shows works."""

import ast
import inspect
import re
import types
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import tenure
from conftest import Server

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.S)


@pytest.fixture
def world(shared: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the examples take for granted. Streams without an end have one here."""
    monkeypatch.setenv("TENURE_SERVER", shared.url)
    client = tenure.Client()
    client.objects.delete("sandbox", "a")
    for version in range(4):
        client.objects.put("sandbox", "a", f"version {version}")
    client.objects.put("provider", "gpu-1", "x")
    client.objects.put("counter", "visits", "1")
    client.objects.put("order", "1001", "new")
    observe, watch = client.observe, client.objects.watch
    monkeypatch.setattr(client, "observe", lambda scope: islice(observe(scope), 1))
    monkeypatch.setattr(client.objects, "watch", lambda *a, **k: islice(watch(*a, **k), 1))

    async def update_profile() -> None:
        pass

    sent: list[str] = []
    world: dict[str, Any] = {
        "tenure": tenure,
        "client": client,
        "update_profile": update_profile,
        "invoices": ["one", "two"],
        "send": lambda invoice, timeout: sent.append(invoice) if timeout > 0 else None,
        "sent": sent,
    }
    yield world
    client.close()
    made = world["client"]
    if isinstance(made, tenure.Client):
        made.close()


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
async def test_the_examples_run(block: str, world: dict[str, Any]) -> None:
    code = compile(block, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        await types.FunctionType(code, world)()
    else:
        exec(code, world)
    if "invoices" in block:
        assert world["sent"] == ["one", "two"]
    if "visits" in block:
        assert world["client"].objects.get("counter", "visits").text == "2"


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 4
