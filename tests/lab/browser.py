"""A headless Chromium, driven over pipes with the DevTools protocol: one JSON object each way, ended by a NUL."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from waiting import wait_until

PROGRAM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)


class Browser:
    """One browser with one page in it; `with` ends it."""

    def __init__(self, *, width: int = 1280, height: int = 900, offline_but: str = "127.0.0.1") -> None:
        """`offline_but` is the one host it may reach: every other name leads nowhere."""
        assert PROGRAM is not None
        self._folder = tempfile.mkdtemp(prefix="muster-browser-")
        to_browser, self._write = (_above(number) for number in os.pipe())
        self._read, from_browser = (_above(number) for number in os.pipe())
        argv = [
            PROGRAM,
            "--headless",
            "--no-sandbox",  # the tests run as root, and show nothing but the page under test
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            f"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE {offline_but}",
            f"--user-data-dir={self._folder}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        actions = [
            (os.POSIX_SPAWN_DUP2, to_browser, 3),
            (os.POSIX_SPAWN_DUP2, from_browser, 4),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        self._pid = os.posix_spawn(PROGRAM, argv, os.environ, file_actions=actions, setpgroup=0)
        os.close(to_browser)
        os.close(from_browser)
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        """The address of every request the page has made."""
        self._loaded: set[str] = set()
        self._origin = ""
        self._left: set[str] = set()
        """The servers of pages that were open before."""
        self.said: list[str] = []
        """What went wrong in the page: exceptions, and errors and warnings of its console."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        os.close(self._read)
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, limit: float = 40, /, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + limit
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._on_event(answer)

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, f"the browser did not answer {what}"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        return json.loads(line)

    def _on_event(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        elif method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            address = params["entry"].get("url", "")
            # Not a last request of the page before, whose server may have ended meanwhile.
            if not address.startswith(tuple(self._left)):
                self.said.append(f"{params['entry']['text']} {address}")

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Show the page at another size; as on a phone, if it is one."""
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def colours(self, scheme: str) -> None:
        """What the system prefers: `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address: str) -> None:
        """Go to an address, and wait until the page with its scripts is there."""
        # Not what document.readyState says: for a moment that may be of the page before.
        origin = "/".join(address.split("/")[:3])
        self._left = {*self._left, self._origin} - {origin, ""}
        self._origin = origin
        loader = self.call("Page.navigate", url=address)["loaderId"]
        deadline = time.monotonic() + 40
        while loader not in self._loaded:
            self._on_event(self._next(deadline, f"that {address} is loaded"))

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str, limit: float = 40) -> Any:
        """Wait until an expression is true, and return its value."""
        return wait_until(expression, lambda: self.js(expression), limit, lambda: f"{self.said}\n{self.text()}")

    def text(self, selector: str = "body") -> str:
        """The text of an element, as it is seen."""
        return self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def click(self, selector: str) -> None:
        """Press an element."""
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str) -> None:
        """A key of the keyboard, on whatever has the focus."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "ArrowUp": 38}.get(key, 0)
        more = {"windowsVirtualKeyCode": code} if code else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """A picture of what is seen, or of the page down to some height."""
        width = self.js("innerWidth")
        clip = (
            {}
            if height is None
            else {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}, "captureBeyondViewport": True}
        )
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))


def _above(number: int) -> int:
    """The same pipe at a number that does not collide with 3 and 4, which the browser wants."""
    copy = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(number)
    return copy
