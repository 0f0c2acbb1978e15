"""The delegation secret is changed while conversations go on."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from tests.support.serving import ERAS, http_app
from tests.swarm.faults import fronted
from tests.swarm.parts import SECRET, specialist, talk, triage, until

pytestmark = pytest.mark.anyio

NEW = "the-next-secret-000000000000000000000000001"


class Deployment:
    """A specialist at one address, of which another version can be put in place."""

    def __init__(self) -> None:
        self.version: Any = None

    def asgi(self, host: str) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":  # each version has a life of its own
                await self.version(scope, receive, send)

        return app


async def versions(stack: AsyncExitStack, name: str) -> list[Any]:
    """Return the apps of a specialist that knows the old secret, both, and the new one."""
    apps = [specialist(name, secret=secret).asgi(host="127.0.0.1") for secret in (SECRET, [NEW, SECRET], NEW)]
    for app in apps:
        await stack.enter_async_context(http_app(app))
    return apps


async def test_the_secret_is_changed_under_load_without_a_refused_call() -> None:
    """Specialists learn the new secret, gateways use it for what begins, specialists forget the old one."""
    async with AsyncExitStack() as stack:
        deployments = {"finance": Deployment(), "support": Deployment()}
        apps = {name: await versions(stack, name) for name in deployments}
        registry = {}
        for name, deployment in deployments.items():
            url, _ = await stack.enter_async_context(fronted(deployment, handshake=name == "support"))
            registry[name] = url

        def deploy(version: int) -> None:
            for name, deployment in deployments.items():
                deployment.version = apps[name][version]

        deploy(0)
        gateways, urls = [], []
        for secret in (SECRET, NEW):
            with_secret = {name: {"url": url, "secret": secret} for name, url in registry.items()}
            server = triage(with_secret)
            gateways.append(server.swarm)
            urls.append(await stack.enter_async_context(http_app(server.asgi(host="127.0.0.1"))) + "/mcp")

        current, done, failed = urls[0], False, []
        calls = [0]

        async def load(era: str, domain: str) -> None:
            while not done:
                async with talk(current, era) as client:
                    answers = [await client.route(domain, "x")]
                    for n in range(4):
                        answers.append(await client.call(f"{domain}.pay.refund", {"amount": n}))
                        await anyio.sleep(0.02)
                    answers.append(await client.back())
                    failed.extend(answer for answer in answers if answer.is_error)
                    calls[0] += len(answers)

        async def some_more() -> None:
            before = calls[0]
            await until(lambda: calls[0] >= before + 40 or bool(failed))

        async with anyio.create_task_group() as group:
            for era in ERAS:
                for domain in registry:
                    group.start_soon(load, era, domain)
            await some_more()
            deploy(1)
            await some_more()
            current = urls[1]
            await until(lambda: gateways[0].session_count + gateways[0].connecting_count == 0)
            await some_more()
            deploy(2)
            await some_more()
            done = True
        assert failed == []
        assert [gateway.session_count for gateway in gateways] == [0, 0]
