"""A headless Chromium, driven by its DevTools protocol over a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol

from tests.e2e.stopwatch import within

SECONDS = 30.0
"""The timeout of a command on a busy machine; an idle one takes some milliseconds."""

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server", "--remote-debugging-pipe",
)  # fmt: skip

_HEADLESS_SHELL = "/usr/lib/chromium/chromium-headless-shell"
"""Debian's Chromium without windows, which uses half the CPU time of the whole one. The command of
that name is a shell that waits for it, and would not pass a signal on."""

_KEYS = {"Enter": (13, "\r"), "Tab": (9, "\t")}
"""The virtual code of each key, and the text that it types."""


def find_browser() -> str | None:
    """Return the path of a Chromium, or None."""
    names = (_HEADLESS_SHELL, "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class BrowserFailed(Exception):
    """The browser refused a command, or has ended."""


class Browser(ProcessProtocol):
    """The process. It reads commands from descriptor 3 and responds on 4; NUL ends each message."""

    def __init__(self, reactor, path: str) -> None:
        self._reactor = reactor
        self._directory = tempfile.mkdtemp(prefix="yurttunnel-browser-")
        self._data = b""
        self._errors = b""
        self._numbers = 0
        self._waiting: dict[int, Deferred] = {}
        self._pages: dict[str, Page] = {}
        self._ended: Deferred[None] = Deferred()
        environment = {**os.environ, "HOME": self._directory}
        reactor.spawnProcess(
            self,
            path,
            [path, *_FLAGS, f"--user-data-dir={self._directory}/profile", "about:blank"],
            env=environment,
            childFDs={0: "w", 1: "r", 2: "r", 3: "w", 4: "r"},
        )

    async def open_page(self, width: int, height: int, dark: bool = False, scripts: bool = True):
        """Open an empty page of the given size in CSS pixels."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = Page(self, attached["sessionId"])
        self._pages[attached["sessionId"]] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.call("Page.setLifecycleEventsEnabled", enabled=True)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.call("Emulation.setEmulatedMedia", features=[scheme])
        await page.resize(width, height)
        await page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        return page

    async def call(self, method: str, session: str | None = None, **parameters):
        """Send a command and wait for its result."""
        self._numbers += 1
        message = {"id": self._numbers, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        answer = self._waiting[self._numbers] = Deferred()
        self.transport.writeToChild(3, json.dumps(message).encode() + b"\0")
        return await within(self._reactor, SECONDS, answer)

    async def close(self) -> None:
        """End the process, and remove its files."""
        try:
            self.transport.signalProcess("KILL")
        except ProcessExitedAlready:
            pass  # It has ended by itself.
        await self._ended
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- ProcessProtocol -----------------------------------------------------------------------

    def childDataReceived(self, descriptor: int, data: bytes) -> None:
        """Dispatch responses and events."""
        if descriptor != 4:
            self._errors = (self._errors + data)[-4000:]
            return
        *messages, self._data = (self._data + data).split(b"\0")
        for message in messages:
            self._received(json.loads(message))

    def processEnded(self, reason) -> None:
        """Fail all pending commands."""
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.errback(BrowserFailed(self._errors.decode("utf-8", "replace")))
        self._ended.callback(None)

    def _received(self, message: dict) -> None:
        answer = self._waiting.pop(message.get("id"), None)
        if answer is not None:
            if answer.called:
                return
            if "error" in message:
                answer.errback(BrowserFailed(message["error"]["message"]))
            else:
                answer.callback(message["result"])
        elif message.get("sessionId") in self._pages:
            self._pages[message["sessionId"]].event_received(message["method"], message["params"])


class Page:
    """One tab. ``console_errors`` contains the errors and warnings of its console."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loaded: set[str] = set()
        self._desired: str | None = None
        self._waiting: Deferred[None] | None = None
        self.console_errors: list[str] = []
        self.requested: list[str] = []

    async def call(self, method: str, **parameters):
        """Send a command for this page."""
        return await self._browser.call(method, self._session, **parameters)

    async def resize(self, width: int, height: int) -> None:
        """Set the size of the page."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    async def visit(self, url: str) -> None:
        """Open ``url``, and wait until it is loaded completely."""
        answer = await self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise BrowserFailed(f"{url}: {answer['errorText']}")
        # The event may also be that of the previous page.
        self._desired = answer["loaderId"]
        if self._desired not in self._loaded:
            loaded = self._waiting = Deferred()
            await within(self._browser._reactor, SECONDS, loaded)

    async def evaluate(self, expression: str):
        """Return the value of a JavaScript expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserFailed(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key in the focused element."""
        code, char = _KEYS[key]
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": char} if kind == "char" else {}
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )

    async def text(self, selector: str) -> str:
        """Return the visible text of the first element that matches a selector."""
        return await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    async def screenshot(self, path: str) -> None:
        """Write a screenshot of the whole page as PNG."""
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(answer["data"]))

    def event_received(self, method: str, event: dict) -> None:
        """Record an event of the browser."""
        if method == "Page.lifecycleEvent" and event["name"] == "load":
            self._loaded.add(event["loaderId"])
            if self._waiting is not None and self._desired == event["loaderId"]:
                loaded, self._waiting = self._waiting, None
                loaded.callback(None)
        elif method == "Runtime.exceptionThrown":
            self.console_errors.append(str(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning"):
            self.console_errors.append(str(event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.console_errors.append(f"{event['entry']['text']} ({event['entry'].get('url')})")
        elif method == "Network.requestWillBeSent":
            self.requested.append(event["request"]["url"])
