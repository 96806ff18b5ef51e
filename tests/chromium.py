"""A page in a real, headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from choreographer import Browser

_OF_SPEED = re.compile("GL Driver Message|willReadFrequently")
"""Warnings of what is slow where WebGL is drawn in software."""
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Enter": 13}


class OpenPage:
    """An open page; use it as a context manager.

    Args:
        url: what to open.
        width, height: of the window, in CSS pixels.
        dark: whether the reader prefers dark pages.

    Attributes:
        complaints: what the browser logged as an error or warning: exceptions, what the page's
            policy refused.
        requested: addresses that the page asked for, its own included.
    """

    def __init__(
        self, url: str, *, width: int = 1100, height: int = 800, dark: bool = False
    ) -> None:
        self._url, self._width, self._height, self._dark = url, width, height, dark
        self._loop = asyncio.new_event_loop()
        self.complaints: list[str] = []
        self.requested: list[str] = []

    def __enter__(self) -> OpenPage:
        try:
            self._run(self._open())
            self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")
        except BaseException:
            self.__exit__(
                None, None, None
            )  # a browser that is left open keeps the tests from ending
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._run(self._browser.close())
        self._loop.close()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self._send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer["result"], answer["result"]["exceptionDetails"]
        return answer["result"]["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key of `KEYS` and let go of it."""
        code = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": KEYS[key],
            "nativeVirtualKeyCode": KEYS[key],
        }
        text = {"text": "\r"} if key == "Enter" else {}
        self._send("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self._send("Input.dispatchKeyEvent", type="keyUp", **code)

    def wait_for(self, expression: str, *, seconds: float = 30) -> None:
        """Wait until a JavaScript expression is true."""
        for _ in range(int(seconds / 0.1)):
            if self.evaluate(f"Boolean({expression})"):
                return
            self._run(asyncio.sleep(0.1))
        raise AssertionError(
            f"{expression} did not become true in {seconds} seconds; {self.complaints}"
        )

    def screenshot(self) -> bytes:
        """The window as a PNG."""
        return base64.b64decode(self._send("Page.captureScreenshot")["result"]["data"])

    def print_to_pdf(self) -> str:
        """The printed page, base64."""
        document: str = self._send("Page.printToPDF")["result"]["data"]
        return document

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._run(self._tab.send_command(method, parameters))
        assert "error" not in answer, answer
        return answer

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, 120))

    async def _open(self) -> None:
        self._browser = Browser(headless=True)
        await self._browser.open()
        self._tab = await self._browser.create_tab("about:blank")
        for event in ("Runtime.exceptionThrown", "Log.entryAdded", "Network.requestWillBeSent"):
            self._tab.subscribe(event, self._noticed)
        for domain in ("Runtime", "Log", "Network", "Page"):
            await self._tab.send_command(f"{domain}.enable")
        size = {
            "width": self._width,
            "height": self._height,
            "deviceScaleFactor": 1,
            "mobile": self._width < 600,
        }
        await self._tab.send_command("Emulation.setDeviceMetricsOverride", size)
        if self._dark:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            await self._tab.send_command("Emulation.setEmulatedMedia", {"features": features})
        await self._tab.send_command("Page.navigate", {"url": self._url})

    async def _noticed(self, message: dict[str, Any]) -> None:
        told = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif told["entry"]["level"] in ("error", "warning") and not _OF_SPEED.search(
            told["entry"]["text"]
        ):
            self.complaints.append(told["entry"]["text"])
