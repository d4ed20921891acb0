# SPDX-License-Identifier: Apache-2.0
"""A real browser, without a network: Chromium, headless, driven by selenium."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Only what hangs takes as long.
HANGS_AFTER_S = 600


class Browser:
    """One Chromium.

    Attributes:
        driver: selenium's.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path) -> None:
        """Open a file, and wait until its script has run."""
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(page.as_uri())
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str) -> None:
        """Wait until an expression of the page is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, HANGS_AFTER_S, 0.02).until(
            lambda driver: driver.execute_script(f"return Boolean({condition})")
        )

    def next_frame(self) -> None:
        """Wait until the page has been drawn again."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def keys(self, *keys: str) -> None:
        """Press keys, one after the other, where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def click_at(self, element: Any, x: float, y: float) -> None:
        """Click a place of an element, counted from its left upper corner, in CSS pixels."""
        from selenium.webdriver.common.action_chains import ActionChains

        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        size = element.rect
        offset = round(x - size["width"] / 2), round(y - size["height"] / 2)
        ActionChains(self.driver).move_to_element_with_offset(element, *offset).click().perform()

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return str(self.find(selector).text)

    def dark(self, is_dark: bool) -> None:
        """Have the system ask for dark pages, or for light ones."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """The window's size in CSS pixels."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600},
        )

    def messages(self) -> list[str]:
        """What the console said since the page was opened: errors, warnings, violations."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """What was asked of the network since the page was opened."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url: str = message["params"]["request"]["url"]
                if not url.startswith(("file:", "data:", "chrome")):  # its own empty page
                    found.append(url)
        return found


def missing() -> str | None:
    """Why there is no browser here, or None."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser that reaches no network. Skips the test where there is none."""
    why = missing()
    if why is not None:
        pytest.skip(f"not tried in a browser: {why}")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in (
            "--headless=new",
            "--no-sandbox",  # as root there is none
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--force-color-profile=srgb",
            "--window-size=1280,900",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(shutil.which("chromedriver"), log_output=os.devnull)
        driver = webdriver.Chrome(options=options, service=service)
        try:
            driver.set_script_timeout(HANGS_AFTER_S)
            yield Browser(driver)
        finally:
            driver.quit()
